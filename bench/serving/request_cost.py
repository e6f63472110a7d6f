"""What a request and a token cost in the layers above the engine, each alone in one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferwire.v1 import generation_pb2
from inferwire_server.domain.generation import Priority
from inferwire_server.engines.scripted import ScriptedEngine, scripted_model_facts
from inferwire_server.engines.scripted.model import tokenizer_json
from inferwire_server.rpc import translate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.validation import check_draft
from inferwire_server.text.output import OutputText
from inferwire_server.text.stop_matcher import StopStrings
from inferwire_server.text.tokenizer import Tokenizer

from bench.figures import Figure, figure_of

_TURNS = 7


async def measure() -> list[Figure]:
    """A few seconds."""
    tokenizer = Tokenizer(tokenizer_json().encode())
    stops = StopStrings(["</end>"])
    return [
        _figure("detokenise, no stop string", _detokenise(tokenizer, None), "us a token", at_most=2.0),
        _figure(
            "detokenise and match a stop string",
            _detokenise(tokenizer, stops),
            "us a token",
            at_most=2.0,
        ),
        _figure("translate and validate a plain request", _validate, "us a request", at_most=50.0),
        _figure("fair queue: a request in, started, released", _queue_request, "us a request", at_most=10.0),
        _figure("fair queue: a token charged", _queue_token, "us a token", at_most=0.5),
    ]


def _figure(name: str, work: Callable[[], float], unit: str, *, at_most: float) -> Figure:
    work()
    return figure_of(name, [1e6 * work() for _ in range(_TURNS)], unit=unit, at_most=at_most)


def _detokenise(tokenizer: Tokenizer, stops: StopStrings | None) -> Callable[[], float]:
    ids = tokenizer.encode("The sea is wide, déjà vu, and the coast is near. " * 80, add_special_tokens=False)

    def work() -> float:
        text = OutputText(tokenizer.decoder(), stops)
        began = time.perf_counter()
        for token_id in ids:
            text.push((token_id,))
        return (time.perf_counter() - began) / len(ids)

    return work


_FACTS = scripted_model_facts(8192)
_CAPABILITIES = ScriptedEngine().capabilities
_REQUEST = generation_pb2.GenerateRequest(model="scripted", prompt="Tell me of the sea.", max_output_tokens=64)


def _validate() -> float:
    count = 2000
    began = time.perf_counter()
    for _ in range(count):
        check_draft(translate.draft(_REQUEST, is_streaming=True, deadline=None), _FACTS, _CAPABILITIES)
    return (time.perf_counter() - began) / count


def _queue_request() -> float:
    queue: FairQueue[int] = FairQueue()
    count = 2000
    tickets = []
    began = time.perf_counter()
    for number in range(count):
        tenant = f"tenant-{number % 20}"
        queue.push(number, tenant=tenant, priority=Priority.STANDARD, prompt_tokens=100, now=number * 0.001)
    for _ in range(count):
        ticket = queue.head(count * 0.001, 8, 8)
        assert ticket is not None  # noqa: S101 as many as were pushed
        queue.pop(ticket)
        tickets.append(ticket)
        queue.release(ticket)
    return (time.perf_counter() - began) / count


def _queue_token() -> float:
    queue: FairQueue[int] = FairQueue()
    ticket = queue.push(1, tenant="a", priority=Priority.STANDARD, prompt_tokens=1, now=0.0)
    queue.pop(ticket)
    count = 20_000
    began = time.perf_counter()
    for _ in range(count):
        queue.charge(ticket, 1)
    return (time.perf_counter() - began) / count
