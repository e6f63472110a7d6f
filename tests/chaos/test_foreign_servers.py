"""Rows 13, 16, 18 and 21: servers that nobody tuned, one process behind two addresses, and what it all costs."""

from __future__ import annotations

from typing import Any

import pytest
from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.settings import HedgePolicy, KeepalivePolicy, StallPolicy
from inferwire.testing import Script, Silence
from inferwire_server.engines.scripted import Plan

from bench.client import overhead
from tests.chaos.calls import Tally, assert_whole, side_by_side, size, story, streamed
from tests.chaos.tcp_proxy import tcp_proxy
from tests.client.regions_of_fakes import channel_to, fakes
from tests.serving import serving


@pytest.mark.slow
async def test_a_server_that_dislikes_pings_loses_its_streams_to_another(record_property: Any) -> None:
    quiet = Script(mishap=Silence(8.0), after_tokens=2)
    keepalive = KeepalivePolicy(time_s=1.0, timeout_s=1.0, ping_timeout_s=1.0)
    patient = StallPolicy(between_tokens_s=None, decode_s=None, progress_interval_s=None)
    requests = [story(each, model="fake") for each in range(size(10, 100))]
    async with fakes(quiet, Script()) as (a, b), channel_to(a, b, keepalive=keepalive, stall=patient) as channel:
        tally = Tally(await side_by_side(channel, requests))
    record_property("figures", tally.figures("13", form="a server with gRPC's own limits, pinged each second"))
    assert_whole(tally)
    assert tally.attempts == 2.0


async def test_a_hedge_to_the_same_process_by_another_address_runs_nothing_twice(record_property: Any) -> None:
    def plan(prompt: str) -> Plan:
        return Plan(first_token_delay_s=0.6) if "slow" in prompt else Plan()

    async with serving(plans=plan) as server, tcp_proxy(server.address) as way:
        regions = (
            Region(name="one", endpoints=(server.address,)),
            Region(name="same", endpoints=(way.address,), priority=1),
        )
        hedge = HedgePolicy(enabled=True, min_delay_s=0.05)
        async with ResilientChannel(ClientConfig(regions=regions, hedge=hedge)) as channel:
            for number in range(20):
                await streamed(channel, story(number, tokens=2))
            before = server.outcomes()
            request = story(7, tokens=8, prompt="slow")
            request.request_id = "twice"
            call = await streamed(channel, request)
            alone = await streamed(channel, story(7, tokens=8, prompt="slow"))
            after = server.outcomes()
    ran = sum(after.values()) - sum(before.values())
    tally = Tally([call], [alone])
    record_property("figures", tally.figures("16", form="hedged onto the same process", generations=ran - 1))
    assert_whole(tally)
    assert call.attempts == 2
    # The one that both attempts share, and the one it is compared with.
    assert ran <= 3
    assert after.get("ok", 0) - before.get("ok", 0) == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_client_costs_a_fraction_of_the_bare_stub_more(record_property: Any) -> None:
    figures = await overhead.measure()
    ratios = {figure.name.removesuffix(" over the bare stub"): round(figure.value, 3) for figure in figures}
    record_property("figures", {"row": "21", "n": overhead.CALLS, "over_the_bare_stub": ratios})
    assert all(ratio < 3.0 for ratio in ratios.values())
