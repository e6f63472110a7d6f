"""Statistics and cache events: what is known is a gauge, what is strange is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.engine import StepTotals
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.statistics import StatisticsReader

from tests.engines.event_recorder import EventRecorder
from tests.engines.tensorrt_llm.running_engine import BOUND_S, request, running_engine, until
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint, unkind_checkpoint

ITERATION = {
    "iter": 12,
    "iterLatencyMS": 8.5,
    "numActiveRequests": 3,
    "gpuMemUsage": 1024,
    "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 25, "freeNumBlocks": 75, "cacheHitRate": 0.5},
    "inflightBatchingStats": {"numScheduledRequests": 3, "numCtxTokens": 17},
    "specDecodingStats": None,
    "somethingNew": {"deep": [1]},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["iterLatencyMS", "kvCacheStats", "maxNumBlocks", "data", "type", "event_id"]), inner
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("raw", [ITERATION, json.dumps(ITERATION), [ITERATION]], ids=["object", "text", "list"])
def test_an_iteration_becomes_gauges_in_base_units(raw: object) -> None:
    reader = StatisticsReader()
    reader.read_iteration(raw)
    assert reader.gauges() == {
        "iteration_seconds": 0.0085,
        "active_requests": 3.0,
        "gpu_memory_bytes": 1024.0,
        "kv_blocks": 100.0,
        "kv_blocks_used": 25.0,
        "kv_blocks_free": 75.0,
        "kv_cache_hit_ratio": 0.5,
        "scheduled_requests": 3.0,
        "context_tokens": 17.0,
    }


def test_iterations_add_up() -> None:
    reader = StatisticsReader()
    assert reader.totals is None
    reader.read_iteration([ITERATION, ITERATION, {"numActiveRequests": 1}])
    assert reader.totals == StepTotals(steps=2, seconds=0.017, sequences=6)


def test_what_is_absent_keeps_its_latest_value() -> None:
    reader = StatisticsReader()
    reader.read_iteration(ITERATION)
    reader.read_iteration({"iterLatencyMS": 1})
    assert (reader.value("iteration_seconds"), reader.value("kv_blocks_used")) == (0.001, 25.0)
    assert reader.value("paused_requests") is None


@given(JSON)
def test_nothing_strange_raises(raw: object) -> None:
    reader = StatisticsReader()
    reader.read_iteration(raw)
    reader.read_events(raw)
    assert all(isinstance(value, float) for value in reader.gauges().values())


def test_cache_events_are_counted_by_kind_and_gaps_are_losses() -> None:
    reader = StatisticsReader()
    reader.read_events([{"event_id": 1, "data": {"type": "created"}}, {"event_id": 2, "data": {"type": "stored"}}])
    reader.read_events({"event_id": 6, "data": {"type": "stored"}})
    reader.read_events({"event_id": 7, "data": {"type": "invented"}})
    assert reader.gauges() == {"kv_events_created": 1.0, "kv_events_stored": 2.0, "kv_events_lost": 3.0}


@pytest.mark.usefixtures("standin")
async def test_a_running_engine_feeds_them_all(tmp_path: Path) -> None:
    options = Options(kv_cache_event_buffer=64)
    async with running_engine(unkind_checkpoint(tmp_path, step_s=0.005), options) as engine:
        recorder = EventRecorder()
        engine.submit(request(tuple(range(200, 300)), max_output_tokens=200), recorder)
        await until(lambda: bool(engine.load().kv_blocks_used))
        load = engine.load()
        assert load.kv_blocks_reserved == 10
        assert load.kv_utilization is not None
        assert load.kv_utilization > 0
        assert load.batch_size == 1
        assert load.step_time_s == pytest.approx(0.005)
        await recorder.until_ended(BOUND_S)
        await until(lambda: engine.load().extra.get("kv_events_stored") == 1.0)
        assert (engine.load().kv_blocks_used, engine.load().kv_blocks_reserved) == (0, 0)


@pytest.mark.usefixtures("standin")
async def test_without_statistics_they_are_unknown() -> None:
    async with running_engine(toy_checkpoint(), Options(statistics=False)) as engine:
        recorder = EventRecorder()
        engine.submit(request(), recorder)
        await recorder.until_ended(BOUND_S)
        assert engine.load().kv_blocks_used is None
        assert engine.load().batch_size is None
