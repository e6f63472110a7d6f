"""What a request and a token cost in the layers above the engine, each alone in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from statistics import median

import structlog
from inferwire.v1 import generation_pb2
from inferwire_server.app.inference_server import InferenceServer
from inferwire_server.app.served_model import scripted_model
from inferwire_server.domain.caller import ANONYMOUS
from inferwire_server.domain.engine import EngineRequest, EngineSink, EngineStream, Finished, Tokens
from inferwire_server.domain.generation import FinishReason, Priority
from inferwire_server.domain.request import GenerationDraft
from inferwire_server.engines.scripted import ScriptedEngine, ScriptedOptions, scripted_model_facts
from inferwire_server.engines.scripted.model import tokenizer_json
from inferwire_server.models.errors import ModelError
from inferwire_server.rpc import translate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.validation import check_draft
from inferwire_server.security.quota import Demand, Quota
from inferwire_server.security.quotas import QuotaLedger
from inferwire_server.settings import Settings
from inferwire_server.text.output import OutputText
from inferwire_server.text.stop_matcher import StopStrings
from inferwire_server.text.tokenizer import Tokenizer

from bench.figures import Figure, figure_of
from bench.serving import real_model

TURNS = 15
REQUESTS = 512
BATCH = 16
"""Their prompts fit one prefill step, so that none waits for its turn."""
TOKENS = 64
_STOPS = ("</end>", "\n\nUser:", "Observation:", "###")
_FACTS = scripted_model_facts(8192)
_CAPABILITIES = ScriptedEngine().capabilities
_REQUEST = generation_pb2.GenerateRequest(model="scripted", prompt="Tell me of the sea.", max_output_tokens=TOKENS)


async def measure() -> list[Figure]:
    """About half a minute. CPU time of this process; a spread tells how busy the machine is."""
    model = real_model.find()
    tokenizer = Tokenizer(tokenizer_json().encode()) if isinstance(model, ModelError) else model.tokenizer
    return [
        _timed("detokenise", _text(tokenizer, None), "us a token", at_most=2.0),
        _timed(
            "detokenise and match four stop strings", _text(tokenizer, StopStrings(_STOPS)), "us a token", at_most=2.0
        ),
        _timed("translate and validate a plain request", _validate, "us a request", at_most=50.0),
        _timed("fair queue alone: a request in, started, released", _queue_request, "us a request", at_most=10.0),
        _timed("fair queue alone: a token charged", _queue_token, "us a token", at_most=0.5),
        _timed("quotas alone, all limits: a request checked, reserved, settled", _quota, "us a request", at_most=10.0),
        *await _scheduling(),
    ]


def _timed(name: str, work: Callable[[], float], unit: str, *, at_most: float | None = None) -> Figure:
    work()
    return figure_of(name, [1e6 * work() for _ in range(TURNS)], unit=unit, at_most=at_most)


def _text(tokenizer: Tokenizer, stops: StopStrings | None) -> Callable[[], float]:
    prose = "The sea is wide, déjà vu, and the coast is near: 12 miles. "
    ids = tokenizer.encode(prose * 80, add_special_tokens=False)

    def work() -> float:
        text = OutputText(tokenizer.decoder(), stops)
        began = time.process_time()
        for token_id in ids:
            text.push((token_id,))
        return (time.process_time() - began) / len(ids)

    return work


def _validate() -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        check_draft(translate.draft(_REQUEST, is_streaming=True, deadline=None), _FACTS, _CAPABILITIES)
    return (time.process_time() - began) / REQUESTS


def _queue_request() -> float:
    queue: FairQueue[int] = FairQueue()
    began = time.process_time()
    for number in range(REQUESTS):
        tenant = f"tenant-{number % 20}"
        queue.push(number, tenant=tenant, priority=Priority.STANDARD, prompt_tokens=100, now=number * 0.001)
    for _ in range(REQUESTS):
        ticket = queue.head(REQUESTS * 0.001, 8, 8)
        if ticket is None:
            raise RuntimeError("fewer tickets came out than went in")
        queue.pop(ticket)
        queue.release(ticket)
    return (time.process_time() - began) / REQUESTS


def _queue_token() -> float:
    queue: FairQueue[int] = FairQueue()
    ticket = queue.push(1, tenant="a", priority=Priority.STANDARD, prompt_tokens=1, now=0.0)
    queue.pop(ticket)
    began = time.process_time()
    for _ in range(20_000):
        queue.charge(ticket, 1)
    return (time.process_time() - began) / 20_000


def _quota() -> float:
    limits = Quota(
        concurrent_requests=REQUESTS,
        requests_per_minute=10**9,
        tokens_per_minute=10**12,
        monthly_tokens=10**15,
        max_prompt_tokens=10**6,
        max_output_tokens=10**6,
    )
    ledger = QuotaLedger(lambda _: limits, _NobodyIsTold())
    began = time.process_time()
    for _ in range(REQUESTS):
        now = time.monotonic()
        ledger.check_arrival("tenant", Priority.STANDARD, now)
        demand = Demand(priority=Priority.STANDARD, prompt_tokens=100, max_output_tokens=TOKENS, output_tokens=TOKENS)
        reservation = ledger.reserve("tenant", demand, now=now, wall=time.time())
        reservation.settle(output_tokens=TOKENS, has_started=True, now=now)
    return (time.process_time() - began) / REQUESTS


class _NobodyIsTold:
    def quota_refused(self, tenant: str, limit: str) -> None: ...

    def budget_nearly_spent(self, tenant: str, spent: int, budget: int) -> None: ...


class _SilentEngine(ScriptedEngine):
    """Takes every request and leaves it to the measurement to produce tokens."""

    def __init__(self) -> None:
        super().__init__(ScriptedOptions(max_running=2 * REQUESTS))
        self.is_silent = False
        self.sinks: list[EngineSink] = []

    def submit(self, request: EngineRequest, sink: EngineSink) -> EngineStream:
        if not self.is_silent:
            return super().submit(request, sink)
        self.sinks.append(sink)
        return _NoStream()

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        return True


class _NoStream:
    def cancel(self) -> None: ...


async def _scheduling() -> list[Figure]:
    """A whole server but for gRPC and engine: registry, admission, queue, session, event log, metrics."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(os.devnull, "w")))  # noqa: ASYNC230, SIM115 for good
    engine = _SilentEngine()
    server = InferenceServer(Settings(port=0, metrics_enabled=False), scripted_model(engine, 8192))
    await server.start()
    engine.is_silent = True
    plain = translate.draft(_REQUEST, is_streaming=True, deadline=None)
    # No two with the same beginning: none waits for another's prefix.
    drafts = [replace(plain, prompt=f"{number:04d}: tell me of the sea.") for number in range(REQUESTS)]
    runs = [await _run(server, engine, drafts) for _ in range(TURNS + 1)][1:]
    intake = [await _per_request(lambda: server.intake.resolve(plain, ANONYMOUS)) for _ in range(TURNS)]
    text = _text(server.model.tokenizer, None)
    texts = [text() for _ in range(TURNS)]
    engine.is_silent = False
    await server.close()
    requests = [1e6 * (request - median(intake)) for request, _ in runs]
    tokens = [1e6 * (token - median(texts)) for _, token in runs]
    return [
        figure_of(
            "sessions, admission, fair queue, event log, metrics: a request",
            requests,
            unit="us a request",
            at_most=10.0,
            detail=f"beside {1e6 * median(intake):.0f} us to check and tokenise it",
        ),
        figure_of(
            "sessions, admission, fair queue, event log, metrics: a token",
            tokens,
            unit="us a token",
            at_most=0.5,
            detail=f"beside {1e6 * median(texts):.1f} us for its text",
        ),
    ]


async def _run(
    server: InferenceServer, engine: _SilentEngine, drafts: Sequence[GenerationDraft]
) -> tuple[float, float]:
    """CPU seconds of a request from its draft to its last event, without its tokens, and of a token in between."""
    request_s = token_s = 0.0
    for first in range(0, len(drafts), BATCH):
        engine.sinks.clear()
        began = time.process_time()
        readings = [
            await server.sessions.open(draft, ANONYMOUS, arrived_at=time.monotonic())
            for draft in drafts[first : first + BATCH]
        ]
        opened = time.process_time()
        for _ in range(TOKENS):
            for sink in engine.sinks:
                sink(Tokens((97,)))
        produced = time.process_time()
        for sink in engine.sinks:
            sink(Finished(reason=FinishReason.LENGTH))
        for reading in readings:
            async with reading:
                await reading.all()
        request_s += opened - began + time.process_time() - produced
        token_s += produced - opened
    return request_s / len(drafts), token_s / (len(drafts) * TOKENS)


async def _per_request(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        await work()
    return (time.process_time() - began) / REQUESTS
