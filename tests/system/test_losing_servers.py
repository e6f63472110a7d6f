"""Servers die or freeze under running streams: nothing is lost, nothing comes twice, and the tokens are the same."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from inferwire import ResilientChannel
from inferwire.settings import StallPolicy
from inferwire_server.models.version import ModelVersion

from tests.real_model import NAME
from tests.server_process import ServerProcess
from tests.system.regions import Result, config_of, real_regions, streams, two_regions

SOON = StallPolicy(first_token_s=3.0, between_tokens_s=1.5, decode_s=2.0, progress_interval_s=0.2)
SIZES = [pytest.param(40, id="40 streams"), pytest.param(200, id="200 streams", marks=pytest.mark.slow)]


def assert_the_same(disturbed: list[Result], undisturbed: list[Result]) -> None:
    """Whole, and token for token as without a disturbance."""
    assert [result.error for result in disturbed if result.error is not None] == []
    assert all(result.is_whole for result in disturbed)
    assert [result.ids for result in disturbed] == [result.ids for result in undisturbed]
    assert [result.text for result in disturbed] == [result.text for result in undisturbed]


def send(number: signal.Signals, servers: list[ServerProcess]) -> None:
    for server in servers:
        server.signal(number)


@pytest.mark.parametrize("number", SIZES)
@pytest.mark.timeout(240)
async def test_killing_a_region_and_then_an_endpoint_in_mid_stream_loses_and_doubles_nothing(number: int) -> None:
    async with two_regions() as (near, far), ResilientChannel(config_of([near, far])) as channel:
        undisturbed = await streams(channel, number)
        without_region = await streams(channel, number, mid_stream=lambda: send(signal.SIGKILL, near))
        without_endpoint = await streams(channel, number, mid_stream=lambda: send(signal.SIGKILL, far[:1]))

    assert_the_same(without_region, undisturbed)
    assert_the_same(without_endpoint, undisturbed)
    # Of many streams on a busy machine, the first have ended before the last have begun.
    assert sum(bool(result.resumed_at) for result in without_region) > 0
    assert 0 < sum(bool(result.resumed_at) for result in without_endpoint) < number


@pytest.mark.timeout(120)
async def test_a_frozen_region_is_left_after_the_stall_time() -> None:
    async with two_regions(servers_each=1) as regions, ResilientChannel(config_of(regions, stall=SOON)) as channel:
        undisturbed = await streams(channel, 20)
        disturbed = await streams(channel, 20, mid_stream=lambda: send(signal.SIGSTOP, regions[0]))

    assert_the_same(disturbed, undisturbed)


@pytest.mark.timeout(120)
async def test_a_hung_engine_whose_server_still_answers_pings_is_left_too(tmp_path: Path) -> None:
    plans = tmp_path / "plans.toml"
    plans.write_text('[default]\nmishap = { kind = "freeze", after = 4 }\n')
    frozen = {"plans": str(plans)}
    async with two_regions(servers_each=1, near_options=frozen) as regions:
        async with ResilientChannel(config_of(regions, stall=SOON)) as channel:
            disturbed = await streams(channel, 10)
        async with ResilientChannel(config_of(regions, allowed_regions=("far",))) as channel:
            undisturbed = await streams(channel, 10)

    assert_the_same(disturbed, undisturbed)
    assert all(result.resumed_at for result in disturbed)


@pytest.mark.timeout(120)
async def test_a_draining_server_hands_its_calls_on_without_an_error() -> None:
    async with two_regions(servers_each=1) as regions, ResilientChannel(config_of(regions)) as channel:
        undisturbed = await streams(channel, 10)
        running = asyncio.create_task(streams(channel, 10, mid_stream=lambda: send(signal.SIGTERM, regions[0])))
        await regions[0][0].until_logged("draining")
        late = await streams(channel, 10)

        assert_the_same(await running, undisturbed)
        assert_the_same(late, undisturbed)


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(600)
async def test_a_region_of_a_real_model_is_lost_and_no_text_changes(smollm2_f16: ModelVersion) -> None:
    async with real_regions() as regions, ResilientChannel(config_of(regions)) as channel:
        undisturbed = await streams(channel, 50, model=NAME, tokens=24)
        disturbed = await streams(
            channel, 50, model=NAME, tokens=24, mid_stream=lambda: send(signal.SIGKILL, regions[0])
        )

    assert_the_same(disturbed, undisturbed)
    assert sum(bool(result.resumed_at) for result in disturbed) > 0
