"""Seeds: repeatable alone and in company, different for each output, and drawn anew for whoever names none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serving import Serving, request, serving

pytestmark = pytest.mark.case("H14")


async def outputs(server: Serving, prompt: str = "tell a story", count: int = 1, **sampling: Any) -> list[str]:
    """The texts of one request at temperature 1."""
    options = {"temperature": 1.0} | sampling
    message = request(prompt, sampling=options, output={"count": count}, max_output_tokens=48)
    return [output.text for output in (await server.inference.Generate(message)).outputs]


async def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    async with serving() as server:
        first, again, other = [await outputs(server, seed=seed) for seed in (42, 42, 43)]
    assert first == again != other


async def test_a_seeded_text_is_the_same_in_company() -> None:
    async with serving() as server, serving() as elsewhere:
        alone = await outputs(server, seed=42)
        among = await asyncio.gather(
            outputs(server, prompt="other one", seed=42), outputs(server, seed=42), outputs(server, prompt="third")
        )
        assert among[1] == alone == await outputs(elsewhere, seed=42)


async def test_several_outputs_of_a_seed_differ_and_come_again() -> None:
    async with serving() as server, serving() as elsewhere:
        four = await outputs(server, count=4, seed=42)
        assert len(set(four)) == 4
        assert four == await outputs(elsewhere, count=4, seed=42)
        assert four[:1] == await outputs(server, seed=42)
        assert four[1:2] != await outputs(server, seed=43)


async def test_outputs_without_a_seed_differ_from_each_other_and_from_run_to_run() -> None:
    async with serving() as server:
        once, twice = await outputs(server, count=4), await outputs(server, count=4)
    assert len({*once, *twice}) == 8


async def test_servers_draw_different_seeds() -> None:
    async with serving() as server, serving() as elsewhere:
        texts = [await outputs(each) for each in (server, elsewhere) for _ in range(3)]
    assert len({text for (text,) in texts}) == 6


async def test_a_drawn_seed_is_echoed_and_gives_the_text_again() -> None:
    async with serving() as server:
        first = await server.inference.Generate(request(max_output_tokens=48))
        (again,) = await outputs(server, seed=first.started.seed)
    assert first.started.HasField("seed")
    assert again == first.outputs[0].text


async def test_a_greedy_request_without_a_seed_echoes_none() -> None:
    async with serving() as server:
        greedy = await server.inference.Generate(request(sampling={"temperature": 0.0}))
        seeded = await server.inference.Generate(request(sampling={"temperature": 0.0, "seed": 0}))
    assert not greedy.started.HasField("seed")
    assert seeded.started.HasField("seed")


async def test_one_caller_s_seed_does_not_touch_another_s_unseeded_text() -> None:
    async with serving() as server:
        runs = []
        for _ in range(2):
            seeded, unseeded = await asyncio.gather(outputs(server, seed=42), outputs(server))
            runs.append((seeded, unseeded))
    assert runs[0][0] == runs[1][0]
    assert runs[0][1] != runs[1][1]
