"""The real model on the CPU engine: what serving costs over the engine alone, what a cached prefix saves, the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import psutil
from inferwire.v1 import generation_pb2, inference_pb2_grpc
from inferwire_server.domain.engine import Cancelled, Engine, EngineEvent, EngineRequest, Failed, Finished, Tokens
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.options import OpenVinoOptions
from inferwire_server.models.errors import ModelError
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import EngineIdentity, ModelVersion

from bench.figures import Figure, absent, figure_of
from bench.serving.processes import ServerProcess, inferwire_server

MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
LONG_PROMPT_TOKENS = 1000
SHARED_PROMPT_TOKENS = 640
STREAMS = {1: 2, 8: 2, 32: 2}
"""Streams at once, and turns of each."""
_GREEDY = Sampling(temperature=0.0)


async def measure() -> list[Figure]:
    """A few minutes on two cores."""
    try:
        stored = ModelRepository().resolve(MODEL)
    except ModelError as error:
        return [absent("real model", f"{error.problem}; {error.advice}")]
    figures: list[Figure] = []
    engine = OpenVinoEngine(_options(stored))
    await engine.start()
    alone = {
        streams: [await _engine_rate(engine, streams, turn) for turn in range(turns)]
        for streams, turns in STREAMS.items()
    }
    await engine.shutdown(1.0)
    async with inferwire_server(MODEL) as server, server.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        began = time.monotonic()
        await stub.Generate(_request(_ids(8, 9_999), 1))
        first_s = server.ready_s + time.monotonic() - began
        for streams, turns in STREAMS.items():
            served = [await _served_rate(stub, server, streams, turn) for turn in range(turns)]
            pairs = list(zip(alone[streams], served, strict=True))
            ratios = [rate / other for other, (rate, _) in pairs]
            best, share = max(rate for rate, _ in served), served[-1][1]
            detail = f"{best:.0f} of {max(alone[streams]):.0f} tokens/s, client {share:.0%} of the CPU"
            name = f"tokens/s of the service over the engine alone, {streams} streams"
            figures.append(figure_of(name, ratios, at_least=0.95 if streams == 32 else None, detail=detail))
        figures += [await _cached_prefix(stub), await _four_at_once(stub)]
    figures.append(Figure(name="start of `inferwire serve` to the first token", value=first_s, unit="s", at_most=6.0))
    return figures


def _options(stored: ModelVersion) -> OpenVinoOptions:
    facts = stored.facts(engine=EngineIdentity("openvino-genai", "bench", "fast"))
    return OpenVinoOptions(
        model_path=stored.weights_path,
        vocabulary_size=facts.vocabulary_size,
        max_context_tokens=facts.max_context_tokens,
        end_token_ids=facts.end_token_ids,
    )


def _ids(count: int, seed: int) -> list[int]:
    """Different prompts share no prefix."""
    return [1, *((seed * 7919 + at * 104729) % 40_000 + 100 for at in range(count - 1))]


async def _engine_rate(engine: Engine, streams: int, turn: int) -> float:
    done: list[asyncio.Future[None]] = []
    tokens = 0

    def submit(number: int) -> None:
        ended = asyncio.get_running_loop().create_future()
        done.append(ended)

        def sink(event: EngineEvent) -> None:
            nonlocal tokens
            if isinstance(event, Tokens):
                tokens += len(event.token_ids)
            elif isinstance(event, (Finished, Failed, Cancelled)):
                ended.set_result(None)

        request = EngineRequest(
            id=f"bench/{streams}/{turn}/{number}",
            prompt_token_ids=_ids(PROMPT_TOKENS, 1000 * streams + 100 * turn + number),
            max_output_tokens=OUTPUT_TOKENS,
            sampling=_GREEDY,
            ignore_end_of_sequence=True,
        )
        engine.submit(request, sink)

    began = time.monotonic()
    for number in range(streams):
        submit(number)
    await asyncio.gather(*done)
    return tokens / (time.monotonic() - began)


async def _served_rate(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub, server: ServerProcess, streams: int, turn: int
) -> tuple[float, float]:
    """Tokens a second, and the client's share of the CPU time used."""
    client = psutil.Process()
    before, server_before = sum(client.cpu_times()[:2]), server.cpu_s()
    began = time.monotonic()
    prompts = [_ids(PROMPT_TOKENS, 1000 * streams + 100 * turn + 50 + number) for number in range(streams)]
    counts = await asyncio.gather(*(_stream(stub, _request(prompt, OUTPUT_TOKENS)) for prompt in prompts))
    elapsed = time.monotonic() - began
    used, server_used = sum(client.cpu_times()[:2]) - before, server.cpu_s() - server_before
    return sum(counts) / elapsed, used / (used + server_used)


async def _stream(stub: inference_pb2_grpc.InferenceServiceAsyncStub, request: generation_pb2.GenerateRequest) -> int:
    tokens = 0
    async for event in stub.StreamGenerate(request):
        tokens += event.delta.token_count
    return tokens


def _request(prompt: Sequence[int], output_tokens: int) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(model=MODEL, max_output_tokens=output_tokens)
    request.token_ids.ids.extend(prompt)
    request.sampling.temperature = 0.0
    request.stop.ignore_end_of_sequence = True
    return request


async def _first_token_s(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub, request: generation_pb2.GenerateRequest
) -> float:
    began = time.monotonic()
    async for event in stub.StreamGenerate(request):
        if event.HasField("delta"):
            return time.monotonic() - began
    raise RuntimeError("no token came")


async def _cached_prefix(stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> Figure:
    pairs = []
    for turn in range(3):
        request = _request(_ids(LONG_PROMPT_TOKENS, 777 + turn), 1)
        pairs.append((await _first_token_s(stub, request), await _first_token_s(stub, request)))
    cold, cached = pairs[-1]
    return figure_of(
        f"time to first token of {LONG_PROMPT_TOKENS} tokens, cached over cold",
        [cached / cold for cold, cached in pairs],
        at_most=0.06,
        detail=f"{1000 * cached:.0f} of {1000 * cold:.0f} ms",
    )


async def _four_at_once(stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> Figure:
    ratios = []
    for turn in range(3):
        alone = await _first_token_s(stub, _request(_ids(SHARED_PROMPT_TOKENS, 555 + turn), 1))
        same = _request(_ids(SHARED_PROMPT_TOKENS, 333 + turn), 1)
        began = time.monotonic()
        await asyncio.gather(*(_first_token_s(stub, same) for _ in range(4)))
        ratios.append((time.monotonic() - began) / alone)
    return figure_of(f"four equal prompts of {SHARED_PROMPT_TOKENS} tokens at once over one", ratios, at_most=1.6)
