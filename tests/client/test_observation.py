"""What a client tells whoever watches it, and that it never tells content."""

from __future__ import annotations

import logging

import pytest
from inferwire import AttemptEnded, BreakerChanged, CallEnded, CallWaits, ClientConfig, Observer, ResilientChannel
from inferwire.errors import Reason
from inferwire.metrics import PrometheusObserver
from inferwire.settings import BreakerPolicy
from inferwire.testing import RESET, FakeServer, Refusal, Script
from prometheus_client import CollectorRegistry

from tests.client.regions_of_fakes import Waits, config_of, fakes, request, stub_of, text_of

STREAM = "/inferwire.v1.InferenceService/StreamGenerate"


class Notebook(Observer):
    """Keeps everything."""

    def __init__(self) -> None:
        self.attempts: list[AttemptEnded] = []
        self.calls: list[CallEnded] = []
        self.changes: list[BreakerChanged] = []
        self.waits: list[CallWaits] = []

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        self.attempts.append(attempt)

    def call_ended(self, call: CallEnded) -> None:
        self.calls.append(call)

    def call_waits(self, wait: CallWaits) -> None:
        self.waits.append(wait)

    def breaker_changed(self, change: BreakerChanged) -> None:
        self.changes.append(change)


class Clumsy(Observer):
    """Raises."""

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        raise ZeroDivisionError

    def call_ended(self, call: CallEnded) -> None:
        raise ZeroDivisionError


def touchy(*servers: FakeServer) -> ClientConfig:
    return config_of(*servers, breaker=BreakerPolicy(consecutive_failures=1))


async def resumed_stream(observer: Observer) -> list[FakeServer]:
    async with fakes(Script(mishap=RESET, after_tokens=2), Script()) as servers:
        async with ResilientChannel(touchy(*servers), observer=observer) as channel:
            assert await text_of(stub_of(channel).StreamGenerate(request(prompt="a secret"))) == "Hello, world!"
        return servers


async def test_an_observer_hears_of_each_attempt_call_and_breaker() -> None:
    notebook = Notebook()
    a, _ = await resumed_stream(notebook)

    first, second = notebook.attempts
    assert (first.region, first.endpoint, first.code, first.reason) == (
        "r0",
        a.address,
        "UNAVAILABLE",
        "CONNECTION_LOST",
    )
    assert (first.number, second.number, second.is_resume, second.code) == (0, 1, True, "OK")
    assert first.first_token_s is not None
    [call] = notebook.calls
    assert (call.method, call.code, call.attempts, call.resumed_at) == (STREAM, "OK", 2, (2,))
    assert 0 < call.longest_resume_s <= call.duration_s
    assert notebook.changes == [BreakerChanged(region="r0", endpoint=a.address, state="open")]


async def test_a_call_that_its_caller_left_is_cancelled_and_no_fault() -> None:
    notebook = Notebook()
    async with fakes(Script(tokens=("word",) * 1000, token_delay_s=0.01)) as servers:
        channel = ResilientChannel(touchy(*servers), observer=notebook)
        async for event in stub_of(channel).StreamGenerate(request()):
            if event.HasField("delta"):
                break
        await channel.close()

    assert [(call.code, call.attempts) for call in notebook.calls] == [("CANCELLED", 1)]
    assert [attempt.code for attempt in notebook.attempts] == ["CANCELLED"]
    assert notebook.changes == []


async def test_a_wait_is_told_as_it_begins_with_what_the_server_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="inferwire.client")
    notebook, clock = Notebook(), Waits()
    refused = Script(mishap=Refusal(Reason.QUOTA, hint_s=5.0, message="at most 3 requests"))
    async with fakes((refused, Script())) as servers:
        channel = ResilientChannel(config_of(*servers), observer=notebook, open_fleet=clock.fleet())
        async with channel:
            assert await text_of(stub_of(channel).StreamGenerate(request())) == "Hello, world!"

    [wait] = notebook.waits
    assert (wait.method, wait.code, wait.reason) == (STREAM, "RESOURCE_EXHAUSTED", "QUOTA")
    assert wait.message == "at most 3 requests"
    assert [wait.delay_s] == clock.slept
    assert wait.delay_s >= 5.0
    assert "at most 3" not in caplog.text


async def test_an_observer_that_raises_harms_no_call(caplog: pytest.LogCaptureFixture) -> None:
    await resumed_stream(Clumsy())

    assert "an observer raised" in caplog.text


async def test_log_lines_have_fields_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="inferwire.client")
    await resumed_stream(Observer())

    lines = [record for record in caplog.records if record.name == "inferwire.client"]
    assert [record.__dict__["event"] for record in lines] == ["breaker_changed", "attempt_failed", "stream_resumed"]
    assert lines[1].__dict__["inferwire"]["reason"] == "CONNECTION_LOST"
    assert not any(word in repr(record.__dict__) for record in lines for word in ("secret", "Hello", "world"))


async def test_metrics_count_attempts_calls_resumes_and_breakers() -> None:
    registry = CollectorRegistry()
    a, b = await resumed_stream(PrometheusObserver(registry))

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"inferwire_client_{name}", labels)

    ok = {"method": "StreamGenerate", "region": "r1", "endpoint": b.address, "code": "OK", "reason": ""}
    assert sample("attempts_total", **ok) == 1
    assert sample("calls_total", method="StreamGenerate", code="OK", reason="") == 1
    assert sample("resumes_total") == 1
    assert sample("resume_gap_seconds_count") == 1
    assert sample("breaker_state", region="r0", endpoint=a.address, state="open") == 1
    assert sample("first_token_seconds_count", region="r1") == 1


async def test_reprs_show_the_live_state() -> None:
    async with fakes(Script()) as (server,), ResilientChannel(server.address) as channel:
        call = stub_of(channel).StreamGenerate(request())
        await call.read()
        shown = repr(channel)

        assert all(part in shown for part in (server.address, "breaker closed", "1 outstanding", "in reserve"))
        call.cancel()
    assert "closed" in repr(channel)
