"""The short typed client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from inferwire.credentials import CredentialSource, credential_source
from inferwire.errors import InvalidRequest
from inferwire.observation import Observer
from inferwire.prompts import SESSION_KEY
from inferwire.replies import Chunk, Collector, Reply, reply_of
from inferwire.requests import Message, Options, build_request, fill_chat
from inferwire.resilient_channel import ResilientChannel, ResilientRpcError
from inferwire.settings import ClientConfig
from inferwire.v1 import (
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    operations_pb2,
    operations_pb2_grpc,
)

Prompt = str | Sequence[Message] | Sequence[int] | generation_pb2.GenerateRequest
"""A text, a conversation, token ids, or a ready-made request for everything the keywords do not cover."""


class AsyncClient:
    """Generates, streams and tokenises. Use it as `async with`, or call `close`.

    Every call raises an `inferwire.errors.InferwireError` when it fails. `timeout_s` is the deadline of a call.
    """

    def __init__(
        self,
        target: str | ClientConfig = "127.0.0.1:50051",
        *,
        tenant: str = "",
        credential: CredentialSource | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`target` is one address, or a configuration with regions; `observer` hears of attempts and calls.

        `credential` goes with each call: an API key or token, the Path of a file that holds one, or a function that
        gives a `Token`. `tenant` is for servers that ask for none. Nothing is connected yet. Raises SettingsError.
        """
        self._observer = observer
        self._is_closed = False
        self._stubs: _Stubs | None = None
        self._config = ClientConfig.for_address(target) if isinstance(target, str) else target
        self._credential = credential_source(self._config, credential)
        self._metadata = (("x-inferwire-tenant", tenant),) if tenant else ()
        self._channel: grpc.aio.Channel | None = None
        self._model = ""

    def __repr__(self) -> str:
        regions = ", ".join(region.name for region in self._config.regions)
        state = "closed" if self._is_closed else "idle" if self._channel is None else repr(self._channel)
        return f"<{type(self).__name__} of {regions}, {state}>"

    async def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Reply:
        """One whole generation."""
        request = await self._request(prompt, options)
        return reply_of(await self._call(self._inference.Generate, request, timeout_s, self._metadata_for(options)))

    async def chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Reply:
        """Answer a conversation; a text is one user's message."""
        return await self.generate(_conversation(messages), timeout_s=timeout_s, **options)

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> TextStream:
        """Chunks as they are produced; leaving the stream cancels the generation."""
        return TextStream(self, prompt, options, timeout_s)

    def stream_chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """As `chat`, in chunks."""
        return TextStream(self, _conversation(messages), options, timeout_s)

    async def tokenize(
        self, prompt: str | Sequence[Message], *, model: str = "", timeout_s: float | None = None
    ) -> list[int]:
        """The token ids that a generation of the same prompt would be given."""
        request = inference_pb2.TokenizeRequest(model=model or await self.default_model())
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            fill_chat(request.chat, prompt)
        return list((await self._call(self._inference.Tokenize, request, timeout_s)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids."""
        name = model or await self.default_model()
        request = inference_pb2.DetokenizeRequest(model=name, token_ids=token_ids)
        text: str = (await self._call(self._inference.Detokenize, request, timeout_s)).text
        return text

    async def models(self, *, timeout_s: float | None = None) -> list[model_pb2.Model]:
        """What is served."""
        found: list[model_pb2.Model] = []
        token = ""
        while True:
            request = model_pb2.ListModelsRequest(page_token=token)
            page = await self._call(self._models.ListModels, request, timeout_s)
            found += page.models
            token = page.next_page_token
            if not token:
                return found

    async def server_info(self, *, timeout_s: float | None = None) -> inference_pb2.GetServerInfoResponse:
        """What the server is and accepts."""
        request = inference_pb2.GetServerInfoRequest()
        info: inference_pb2.GetServerInfoResponse = await self._call(self._inference.GetServerInfo, request, timeout_s)
        return info

    async def status(self, *, timeout_s: float | None = None) -> operations_pb2.GetServerStatusResponse:
        """How the server is; for operators."""
        request = operations_pb2.GetServerStatusRequest()
        status: operations_pb2.GetServerStatusResponse = await self._call(
            self._operations.GetServerStatus, request, timeout_s
        )
        return status

    async def default_model(self) -> str:
        """The server's only model. Raises InvalidRequest when there are several."""
        if not self._model:
            names = [model.name for model in await self.models()]
            if len(names) != 1:
                raise InvalidRequest(f"name a model: there are {', '.join(names) or 'none'}")
            self._model = names[0]
        return self._model

    async def close(self) -> None:
        """Give up every connection; running calls end as cancelled."""
        self._is_closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _inference(self) -> inference_pb2_grpc.InferenceServiceAsyncStub:
        return self._open().inference

    @property
    def _models(self) -> model_pb2_grpc.ModelServiceAsyncStub:
        return self._open().models

    @property
    def _operations(self) -> operations_pb2_grpc.OperationsServiceAsyncStub:
        return self._open().operations

    def _open(self) -> _Stubs:
        if self._is_closed:
            raise RuntimeError("this client is closed; make another one")
        if self._channel is None:
            self._channel = ResilientChannel(self._config, observer=self._observer, credential=self._credential)
        if self._stubs is None:
            self._stubs = _Stubs(self._channel)
        return self._stubs

    async def _request(self, prompt: Prompt, options: Options) -> generation_pb2.GenerateRequest:
        request = build_request(prompt, options)
        if not request.model:
            request.model = await self.default_model()
        return request

    def _metadata_for(self, options: Options) -> tuple[tuple[str, str], ...]:
        session = options.get("session")
        return (*self._metadata, (SESSION_KEY, session)) if session else self._metadata

    async def _call(
        self, method: Any, request: Any, timeout_s: float | None, metadata: tuple[tuple[str, str], ...] | None = None
    ) -> Any:
        try:
            return await method(request, timeout=self._timeout(timeout_s), metadata=metadata or self._metadata)
        except ResilientRpcError as failure:
            raise failure.error from None

    def _timeout(self, timeout_s: float | None) -> float | None:
        return self._config.deadline_s if timeout_s is None else timeout_s


class _Stubs:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.inference: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        self.models: model_pb2_grpc.ModelServiceAsyncStub = model_pb2_grpc.ModelServiceStub(channel)
        self.operations: operations_pb2_grpc.OperationsServiceAsyncStub = operations_pb2_grpc.OperationsServiceStub(
            channel
        )


class TextStream(AsyncIterator[Chunk]):
    """`async for` it. Leaving early (break, an error, `async with`) cancels the generation."""

    def __init__(self, client: AsyncClient, prompt: Prompt, options: Options, timeout_s: float | None) -> None:
        self._client = client
        self._prompt = prompt
        self._options = options
        self._timeout_s = timeout_s
        self._call: Any = None
        self._collector = Collector()

    @property
    def text(self) -> str:
        """Of the first output, so far."""
        return self._collector.text()

    @property
    def reply(self) -> Reply:
        """Everything so far; complete once the iteration has ended."""
        return self._collector.reply()

    async def cancel(self) -> None:
        """End the generation."""
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        try:
            while True:
                event = await self._next_event()
                if event is None:
                    raise StopAsyncIteration
                self._collector.add(event)
                if event.HasField("delta"):
                    delta = event.delta
                    return Chunk(delta.text, delta.output_index, tuple(delta.token_ids), delta.token_count)
        except ResilientRpcError as failure:
            raise failure.error from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.cancel()

    async def _next_event(self) -> generation_pb2.StreamGenerateResponse | None:
        if self._call is None:
            request = await self._client._request(self._prompt, self._options)
            self._call = self._client._inference.StreamGenerate(
                request,
                timeout=self._client._timeout(self._timeout_s),
                metadata=self._client._metadata_for(self._options),
            )
        event = await self._call.read()
        return None if event is grpc.aio.EOF else event


def _conversation(messages: str | Sequence[Message]) -> Sequence[Message]:
    return [("user", messages)] if isinstance(messages, str) else messages
