"""The same client without asyncio: a loop in a thread of its own does the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from inferwire.background_loop import BackgroundLoop
from inferwire.client import AsyncClient, Prompt, TextStream
from inferwire.credentials import CredentialSource
from inferwire.observation import Observer
from inferwire.replies import Chunk, Reply
from inferwire.requests import Message, Options
from inferwire.settings import ClientConfig
from inferwire.v1 import inference_pb2, model_pb2, operations_pb2


class Client:
    """As AsyncClient, for ordinary code. Use it as `with`, or call `close`. Safe to share between threads."""

    def __init__(
        self,
        target: str | ClientConfig = "127.0.0.1:50051",
        *,
        tenant: str = "",
        credential: CredentialSource | None = None,
        observer: Observer | None = None,
    ) -> None:
        """As for AsyncClient; the observer is called in the client's own thread."""
        self._client = AsyncClient(target, tenant=tenant, credential=credential, observer=observer)
        self._loop = BackgroundLoop("inferwire-client")

    def __repr__(self) -> str:
        return f"<Client around {self._client!r}>"

    def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Reply:
        """One whole generation."""
        return self._loop.run(self._client.generate(prompt, timeout_s=timeout_s, **options))

    def chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Reply:
        """Answer a conversation; a text is one user's message."""
        return self._loop.run(self._client.chat(messages, timeout_s=timeout_s, **options))

    def stream(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> BlockingTextStream:
        """Chunks as they are produced; leaving the stream cancels the generation."""
        return BlockingTextStream(self, self._client.stream(prompt, timeout_s=timeout_s, **options))

    def stream_chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> BlockingTextStream:
        """As `chat`, in chunks."""
        return BlockingTextStream(self, self._client.stream_chat(messages, timeout_s=timeout_s, **options))

    def tokenize(
        self, prompt: str | Sequence[Message], *, model: str = "", timeout_s: float | None = None
    ) -> list[int]:
        """The token ids that a generation of the same prompt would be given."""
        return self._loop.run(self._client.tokenize(prompt, model=model, timeout_s=timeout_s))

    def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids."""
        return self._loop.run(self._client.detokenize(token_ids, model=model, timeout_s=timeout_s))

    def models(self, *, timeout_s: float | None = None) -> list[model_pb2.Model]:
        """What is served."""
        return self._loop.run(self._client.models(timeout_s=timeout_s))

    def server_info(self, *, timeout_s: float | None = None) -> inference_pb2.GetServerInfoResponse:
        """What the server is and accepts."""
        return self._loop.run(self._client.server_info(timeout_s=timeout_s))

    def status(self, *, timeout_s: float | None = None) -> operations_pb2.GetServerStatusResponse:
        """How the server is; for operators."""
        return self._loop.run(self._client.status(timeout_s=timeout_s))

    def close(self) -> None:
        """Give up every connection and end the thread."""
        self._loop.stop(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingTextStream(Iterator[Chunk]):
    """`for` it. Leaving early (break, an error, `with`) cancels the generation."""

    def __init__(self, client: Client, stream: TextStream) -> None:
        self._client = client
        self._stream = stream
        self._has_ended = False

    @property
    def text(self) -> str:
        """Of the first output, so far."""
        return self._stream.text

    @property
    def reply(self) -> Reply:
        """Everything so far; complete once the iteration has ended."""
        return self._stream.reply

    def cancel(self) -> None:
        """End the generation."""
        if not self._has_ended:
            self._has_ended = True
            self._client._loop.run(self._stream.cancel())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._client._loop.run(self._next())
        if chunk is None:
            self._has_ended = True
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if not self._has_ended:
            self._client._loop.post(self._stream.cancel())

    async def _next(self) -> Chunk | None:
        return await anext(self._stream, None)
