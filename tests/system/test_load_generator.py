"""`python -m bench.load` as people run it, against a real server on a real socket."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedOptions

from bench.load.open_loop import TargetError, require_loopback
from tests.serving import serving

ROOT = Path(__file__).parents[2]
NOBODY = "127.0.0.1:9"
"""The discard port, where no server listens."""


async def load(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.load", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def figures(target: str, *arguments: str) -> dict[str, Any]:
    code, out, err = await load("--target", target, *arguments)
    assert code == 0, err
    measured: dict[str, Any] = json.loads(out)
    assert sum(measured["outcomes"].values()) == measured["calls"]
    return measured


async def test_every_call_is_accounted_for_and_timed() -> None:
    async with serving(plans=PlanBook(otherwise=Plan(mean_output_tokens=5.0))) as server:
        measured = await figures(server.address, "--rate", "40", "--duration", "1.5")

    assert measured["outcomes"] == {"COMPLETED": measured["calls"]}
    assert measured["good_calls"] == measured["calls"] > 20
    assert measured["first_token_s"]["p99"] >= measured["first_token_s"]["p50"] > 0.0
    assert measured["inter_token_s"]["p50"] > 0.0
    assert measured["goodput_tokens_per_s"] > 1000.0


async def test_readers_hang_up_when_they_have_enough() -> None:
    async with serving() as server:
        measured = await figures(
            server.address, "--rate", "20", "--duration", "1", "--mean-output-tokens", "8", "--max-output-tokens", "512"
        )

    assert measured["outcomes"] == {"HUNG_UP": measured["calls"]}
    assert measured["output_tokens_per_s"] < 20 * 30


async def test_refusals_are_counted_by_reason_and_do_not_end_the_run() -> None:
    options = ScriptedOptions(step_base_s=0.05, max_running=1)
    async with serving(options, max_waiting=1) as server:
        measured = await figures(
            server.address,
            *("--burst-size", "10", "--rate", "10", "--duration", "1", "--prompt-tokens", "10", "20"),
            *("--max-output-tokens", "20", "--first-token-target", "0"),
        )

    assert set(measured["outcomes"]) == {"COMPLETED", "RESOURCE_EXHAUSTED/OVERLOADED"}
    assert measured["outcomes"]["COMPLETED"] >= 2
    assert measured["retry_hint_s"]["p50"] > 0.0
    assert measured["refusal_s"]["p99"] < 10.0


async def test_a_server_that_is_not_there_is_an_outcome() -> None:
    measured = await figures(NOBODY, "--model", "any", "--rate", "20", "--duration", "0.5")

    assert measured["outcomes"] == {"UNAVAILABLE": measured["calls"]}
    assert measured["first_token_s"] is None


async def test_only_this_machine_is_loaded() -> None:
    code, out, err = await load("--target", "192.0.2.1:50051", "--duration", "1")

    assert (code, out) == (2, "")
    assert "192.0.2.1 is not this machine" in err


@pytest.mark.parametrize("target", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/run/server"])
def test_all_names_of_this_machine_are_known(target: str) -> None:
    require_loopback(target)


@pytest.mark.parametrize("target", ["10.0.0.1:1", "[2001:db8::1]:1", "localhost.example:1", "0.0.0.0:1", "localhost"])
def test_no_other_target_is_taken(target: str) -> None:
    with pytest.raises(TargetError):
        require_loopback(target)
