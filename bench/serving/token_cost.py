"""Server CPU per streamed token and per unary call, over a bare grpc.aio server with the same contract.

Server and control are processes on one core, one after the other in turns; the caller is on the other core. What the
scripted engine itself costs is no part of serving: where the control has tokens for nothing, the engine alone is
measured in the same turn and subtracted; where the control needs a source in time, it has the same engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

from inferwire_server.domain.engine import EngineEvent, EngineRequest, Finished
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.scripted import ScriptedEngine, ScriptedOptions

from bench.figures import Figure, figure_of
from bench.serving import calls
from bench.serving.processes import ServerProcess, away_from, inferwire_server, module_server, serving_core
from bench.serving.turns import turns

STREAMS = 64
STREAM_TOKENS = 256
UNARY_TOKENS = 16
OVERLOAD = 4.0
PACED_STEP_S = 0.02
BRISK_STEP_S = 0.008
PACED_WARM_UP_S, PACED_WINDOW_S = 0.5, 2.0
"""Of streams that go on all the while: what opening and ending one costs is not in it."""
UNARY_STEP_S = 0.001
TURNS = 5
TIME_S = 25.0
"""For the turns of one case."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn cost the server, in CPU seconds a token (or call)."""

    cost_s: float
    tokens_per_message: float = 1.0


async def measure() -> list[Figure]:
    """About two minutes."""
    core = serving_core()
    with away_from(core):
        return [
            *await flooded(core),
            *await paced(core, PACED_STEP_S, at_most=0.95),
            *await paced(core, BRISK_STEP_S, at_most=None),
            *await unary(core),
        ]


async def flooded(core: int | None) -> list[Figure]:
    """As fast as it goes, and four times as fast as the control can."""
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(module_server("bench.serving.bare_server", "flood", core=core))
        bare_turn = await _streaming(stack, bare, rounds=2)
        capacity = 1 / (await bare_turn()).cost_s
        step_s = STREAMS / (OVERLOAD * capacity)
        flood = await _ours(stack, core, step_s=0.0)
        overload = await _ours(stack, core, step_s=step_s)
        flood_turn, overload_turn = (
            await _streaming(stack, flood, rounds=2),
            await _streaming(stack, overload, rounds=2),
        )
        taken = await _turns(bare_turn, flood_turn, overload_turn, lambda: engine_alone(0.0, STREAM_TOKENS))
    bares, floods, overloads, engines = zip(*taken, strict=True)
    return [
        _over("CPU a token, 64 streams flooded", floods, bares, engines, at_most=1.05),
        _over(f"CPU a token, 64 streams at {OVERLOAD:g}x overload", overloads, bares, engines, at_most=0.40),
    ]


async def paced(core: int | None, step_s: float, *, at_most: float | None) -> list[Figure]:
    """One token a stream every step; both servers have the same engine."""
    async with AsyncExitStack() as stack:
        control = module_server("bench.serving.bare_server", "queue", str(step_s), core=core)
        queue = await stack.enter_async_context(control)
        ours = await _ours(stack, core, step_s=step_s)
        taken = await _turns(await _midstream(stack, queue, step_s), await _midstream(stack, ours, step_s))
    queues, served = zip(*taken, strict=True)
    name = f"CPU a token, 64 streams, a token every {1000 * step_s:g} ms, over a queue for each stream"
    return [_over(name, served, queues, None, at_most=at_most)]


async def unary(core: int | None) -> list[Figure]:
    """Sixteen tokens in one reply, 64 calls at once."""
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(module_server("bench.serving.bare_server", "flood", core=core))
        ours = await _ours(stack, core, step_s=UNARY_STEP_S)
        taken = await _turns(
            await _calling(stack, bare, rounds=20),
            await _calling(stack, ours, rounds=20),
            lambda: engine_alone(UNARY_STEP_S, UNARY_TOKENS, rounds=20, per_call=True),
        )
    bares, served, engines = zip(*taken, strict=True)
    return [_over("CPU a unary call of 16 tokens, 64 at once", served, bares, engines, at_most=1.15, unit="call")]


async def engine_alone(step_s: float, tokens: int, *, rounds: int = 2, per_call: bool = False) -> Turn:
    """The scripted engine's own CPU, for callers that do nothing with the tokens."""
    engine = ScriptedEngine(ScriptedOptions(step_base_s=step_s, max_running=STREAMS))
    await engine.start()

    async def caller(number: int) -> None:
        for turn in range(rounds):
            ended = asyncio.get_running_loop().create_future()

            def sink(event: EngineEvent, ended: asyncio.Future[None] = ended) -> None:
                if isinstance(event, Finished):
                    ended.set_result(None)

            request = EngineRequest(
                id=f"{number}/{turn}",
                prompt_token_ids=tuple(f"{number:04d}{turn:04d}: tell me about the sea.".encode()),
                max_output_tokens=tokens,
                sampling=Sampling(temperature=1.0, seed=number),
                ignore_end_of_sequence=True,
            )
            engine.submit(request, sink)
            await ended

    began = time.process_time()
    await asyncio.gather(*[caller(number) for number in range(STREAMS)])
    used = time.process_time() - began
    await engine.shutdown(0.0)
    return Turn(used / (STREAMS * rounds * (1 if per_call else tokens)))


async def _ours(stack: AsyncExitStack, core: int | None, *, step_s: float) -> ServerProcess:
    options = {"step_base_s": step_s, "max_running": STREAMS}
    return await stack.enter_async_context(
        inferwire_server("--engine", "scripted", settings={"engine_options": options}, core=core)
    )


async def _streaming(stack: AsyncExitStack, server: ServerProcess, *, rounds: int) -> Callable[[], Awaitable[Turn]]:
    channel = await stack.enter_async_context(server.channel())
    tokens = STREAM_TOKENS
    requests = calls.different_requests(STREAMS * rounds, tokens)

    async def turn() -> Turn:
        began = server.cpu_s()
        received = await calls.streams(channel, requests, at_once=STREAMS)
        used = server.cpu_s() - began
        received.check_streams(tokens)
        total = received.calls * tokens
        return Turn(used / total, total / received.deltas)

    return turn


async def _midstream(stack: AsyncExitStack, server: ServerProcess, step_s: float) -> Callable[[], Awaitable[Turn]]:
    channel = await stack.enter_async_context(server.channel())
    tokens = round((PACED_WARM_UP_S + PACED_WINDOW_S + 0.5) / step_s)
    requests = calls.different_requests(STREAMS, tokens)

    async def turn() -> Turn:
        received = calls.Received()
        reading = asyncio.create_task(calls.streams(channel, requests, at_once=STREAMS, into=received))
        await asyncio.sleep(PACED_WARM_UP_S)
        first, began = len(received.messages), server.cpu_s()
        await asyncio.sleep(PACED_WINDOW_S)
        last, used = len(received.messages), server.cpu_s() - began
        await reading
        received.check_streams(tokens)
        in_window = received.tokens(first, last)
        return Turn(used / in_window, in_window / (last - first))

    return turn


async def _calling(stack: AsyncExitStack, server: ServerProcess, *, rounds: int) -> Callable[[], Awaitable[Turn]]:
    channel = await stack.enter_async_context(server.channel())
    requests = calls.different_requests(STREAMS * rounds, UNARY_TOKENS)

    async def turn() -> Turn:
        began = server.cpu_s()
        received = await calls.replies(channel, requests, at_once=STREAMS)
        used = server.cpu_s() - began
        received.check_replies(UNARY_TOKENS)
        return Turn(used / received.calls)

    return turn


async def _turns(*measured: Callable[[], Awaitable[Turn]]) -> list[tuple[Turn, ...]]:
    for one in measured:
        await one()
    return [tuple([await one() for one in measured]) for _ in turns(TURNS, within_s=TIME_S)]


def _over(
    name: str,
    served: tuple[Turn, ...],
    control: tuple[Turn, ...],
    engines: tuple[Turn, ...] | None,
    *,
    at_most: float | None,
    unit: str = "token",
) -> Figure:
    own = engines or tuple(Turn(0.0) for _ in served)
    values = [
        (ours.cost_s - engine.cost_s) / bare.cost_s for ours, bare, engine in zip(served, control, own, strict=True)
    ]
    detail = f"{_us(served)} us a {unit} against {_us(control)}"
    if engines is not None:
        detail += f", less {_us(engines)} of the engine"
    if unit == "token":
        detail += f"; {median(turn.tokens_per_message for turn in served):.2f} tokens a message"
    return figure_of(name, values, at_most=at_most, detail=detail)


def _us(each: tuple[Turn, ...]) -> str:
    return f"{1e6 * median(turn.cost_s for turn in each):.1f}"
