"""InferenceService: check, call, map, reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from inferwire.v1 import generation_pb2, inference_pb2, inference_pb2_grpc

from inferwire_server.domain.errors import ServiceError
from inferwire_server.domain.generation import Event
from inferwire_server.rpc import translate
from inferwire_server.rpc.call import Call, current_call
from inferwire_server.rpc.load_trailer import load_trailer
from inferwire_server.rpc.server_info import ServerInfo
from inferwire_server.rpc.sizes import excess
from inferwire_server.scheduling.intake import Intake
from inferwire_server.scheduling.load_report import LoadReporter
from inferwire_server.scheduling.reading import Reading
from inferwire_server.scheduling.sessions import Sessions

Context = grpc.aio.ServicerContext[Any, Any]
_Sized = generation_pb2.GenerateRequest | inference_pb2.TokenizeRequest | inference_pb2.DetokenizeRequest


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Generation and tokenising."""

    def __init__(
        self,
        intake: Intake,
        sessions: Sessions,
        info: ServerInfo,
        load: LoadReporter,
        piece_bytes: Callable[[int], bytes],
    ) -> None:
        """`piece_bytes` gives the bytes that a token id stands for."""
        self._load = load
        self._piece_bytes = piece_bytes
        self._intake = intake
        self._sessions = sessions
        self._info = info

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        """Collect the whole log, then reply once."""
        async with await self._open(request, is_streaming=False) as reading:
            events = await reading.all()
        context.set_trailing_metadata(load_trailer(self._load.utilization()))
        return translate.ResponseWriter(request.output, self._piece_bytes).whole(events)

    async def StreamGenerate(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> None:
        """Send the log as it grows; a reader that lags gets fewer, larger messages."""
        encoded, write = translate.ResponseWriter(request.output, self._piece_bytes).encoded, context.write
        async with await self._open(request, is_streaming=True) as reading:
            interval_s = translate.progress_interval_s(request)
            await deliver(reading, lambda event: write(encoded(event)), progress_interval_s=interval_s)
        context.set_trailing_metadata(load_trailer(self._load.utilization()))

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """The ids that a generation of the same input would be given."""
        self._check_sizes(request)
        kind = request.WhichOneof("input")
        prompt = translate.conversation(request.chat) if kind == "chat" else request.prompt if kind else None
        add = request.add_special_tokens if request.HasField("add_special_tokens") else None
        tokens = await self._intake.tokenize(
            request.model, prompt, add_special_tokens=add, deadline=current_call().deadline
        )
        return inference_pb2.TokenizeResponse(
            model=tokens.model,
            token_count=len(tokens.token_ids),
            token_ids=tokens.token_ids,
            tokenizer_digest=tokens.tokenizer_digest,
        )

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        """The text of ids."""
        self._check_sizes(request, answer_tokens=0)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await self._intake.detokenize(
            request.model, tuple(request.token_ids), skip_special_tokens=skip, deadline=current_call().deadline
        )
        return inference_pb2.DetokenizeResponse(text=text)

    async def GetServerInfo(
        self, request: inference_pb2.GetServerInfoRequest, context: Context
    ) -> inference_pb2.GetServerInfoResponse:
        """What this server is and accepts."""
        return self._info.message()

    async def _open(self, request: generation_pb2.GenerateRequest, *, is_streaming: bool) -> Reading:
        call = current_call()
        try:
            self._check_sizes(request)
            draft = translate.draft(request, is_streaming=is_streaming, deadline=call.deadline)
        except ServiceError as error:
            self._sessions.refuse(call.caller, error)
            raise
        reading = await self._sessions.open(draft, call.caller, arrived_at=call.arrived_at)
        _note(call, reading, request)
        return reading

    def _check_sizes(self, request: _Sized, *, answer_tokens: int = 1) -> None:
        """Raise for more of something than there can be beside so many tokens of an answer."""
        found = excess(request, most_ids=self._intake.facts.max_context_tokens - answer_tokens)
        if found is not None:
            self._intake.check_model(request.model)
            raise found


async def deliver(
    reading: Reading, send: Callable[[Event], Awaitable[None]], *, progress_interval_s: float | None
) -> None:
    """Send every event of a log; in silences, a Progress each interval."""
    while not reading.is_exhausted:
        if progress_interval_s is None:
            events = await reading.next()
        else:
            try:
                async with asyncio.timeout(progress_interval_s):
                    events = await reading.next()
            except TimeoutError:
                events = [reading.progress()]
        for event in events:
            await send(event)
            reading.sent()


def _note(call: Call, reading: Reading, request: generation_pb2.GenerateRequest) -> None:
    call.session, call.request = reading.session, request
    generation = reading.session.generation
    call.facts["request_id"] = generation.request_id
    call.facts["model"] = generation.model
    call.facts["prompt_tokens"] = len(generation.prompt_token_ids)
    if reading.continuation:
        call.facts["continuation"] = reading.continuation.name.lower()
