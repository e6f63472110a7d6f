"""Where a call goes when a region fails before, at and after its first message."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from inferwire import AttemptEnded, Observer, ResilientChannel, ResilientRpcError
from inferwire.errors import (
    AllRegionsDown,
    Code,
    Exhausted,
    LocalReason,
    Reason,
    StreamDiverged,
    StreamGap,
    StreamLost,
    StreamRepeat,
    StreamStalled,
    StreamTruncated,
)
from inferwire.settings import (
    BreakerPolicy,
    BudgetPolicy,
    FailoverPolicy,
    ResumeMode,
    ResumePolicy,
    RetryPolicy,
    StallPolicy,
)
from inferwire.testing import PROXY_RESET, RESET, BareStatus, Refusal, Script, Silence, Truncation

from tests.client.regions_of_fakes import Waits, channel_to, config_of, failure, fakes, request, stub_of, text_of

TEXT = "Hello, world!"
NEVER = ResumePolicy(mode=ResumeMode.NEVER)
SOON = StallPolicy(first_token_s=1.0, between_tokens_s=1.0, progress_interval_s=0.2)
PATIENT = StallPolicy(first_token_s=2.0, between_tokens_s=2.0, progress_interval_s=0.1)


@pytest.mark.case("H20")
@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
@pytest.mark.parametrize("loss", [RESET, PROXY_RESET, Refusal(Reason.DRAINING, hint_s=0.5)], ids=str)
async def test_a_region_lost_before_the_first_message_is_replaced(method: str, loss: BareStatus | Refusal) -> None:
    async with fakes(Script(mishap=loss), Script()) as (a, b), channel_to(a, b) as channel:
        text = await text_of(getattr(stub_of(channel), method)(request()))

    assert (text, len(a.calls), len(b.calls)) == (TEXT, 1, 1)
    assert a.calls[0].request.request_id == b.calls[0].request.request_id != ""
    assert [call.attempt for call in (a.calls[0], b.calls[0])] == [0, 1]
    assert [call.request.attempt for call in (a.calls[0], b.calls[0])] == [0, 1]


@pytest.mark.case("H20")
async def test_without_resume_a_stream_lost_after_its_first_message_ends_with_the_text_so_far() -> None:
    async with (
        fakes(Script(mishap=RESET, after_tokens=3), Script()) as (a, b),
        channel_to(a, b, resume=NEVER) as channel,
    ):
        error = await failure(stub_of(channel).StreamGenerate(request()))

    lost = error.error
    assert isinstance(lost, StreamLost)
    assert (lost.text_so_far, lost.events_so_far, lost.started) == ("Hello, world", 4, True)
    assert (error.code(), len(b.calls)) == (grpc.StatusCode.UNAVAILABLE, 0)


class Order(Observer):
    """Regions of the attempts in the order in which they ended, with the reason."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        self.ended.append((attempt.region, attempt.reason))


@pytest.mark.case("H20")
async def test_a_silent_region_is_cancelled_before_the_next_is_tried() -> None:
    order = Order()
    async with fakes(Script(mishap=Silence()), Script()) as (a, b):
        channel = ResilientChannel(config_of(a, b, stall=SOON), observer=order)
        text = await text_of(stub_of(channel).StreamGenerate(request()))
        await a.until(lambda: a.calls[0].ending == "cancelled")
        await channel.close()

    assert (text, len(a.calls), len(b.calls)) == (TEXT, 1, 1)
    assert order.ended == [("r0", LocalReason.STALLED), ("r1", "")]


@pytest.mark.case("H21")
@pytest.mark.parametrize("is_well", [True, False])
async def test_a_half_open_breaker_lets_one_call_through(is_well: bool) -> None:
    waits, fault = Waits(), Refusal(Reason.ENGINE_DOWN, hint_s=0.0)
    policy = BreakerPolicy(consecutive_failures=5, open_base_s=1.0, open_jitter=0.0)
    changes = {"breaker": policy, "retry": RetryPolicy(max_attempts=1), "failover": FailoverPolicy(panic_share=0.0)}
    async with fakes(Script(mishap=fault)) as (a,), channel_to(a, waits=waits, **changes) as channel:
        stub = stub_of(channel)
        for _ in range(5):
            await asyncio.gather(text_of(stub.Generate(request())), return_exceptions=True)
        a.scripts = (Script(mishap=Silence(0.05)) if is_well else Script(mishap=fault),)
        waits.now += 1.05
        calls = [asyncio.ensure_future(text_of(stub.Generate(request()))) for _ in range(50)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        breaker = channel.fleet().links[0].state.breaker

        assert len(a.calls) == 6
        assert (
            sum(isinstance(one, ResilientRpcError) and isinstance(one.error, AllRegionsDown) for one in outcomes) == 49
        )
        assert outcomes.count(TEXT) == is_well
        assert breaker.state == ("closed" if is_well else "open")
        assert breaker.probes_at == (None if is_well else waits.now + 2.0)


@pytest.mark.case("H22")
async def test_one_call_makes_no_more_attempts_than_it_may() -> None:
    waits, down = Waits(), Script(mishap=Refusal(Reason.ENGINE_DOWN, hint_s=0.05))
    async with fakes(down, down) as (a, b), channel_to(a, b, waits=waits, retry=RetryPolicy(max_attempts=3)) as channel:
        error = await failure(stub_of(channel).Generate(request(), timeout=20))

    assert len(a.calls) + len(b.calls) == 3
    assert error.error.reason == Reason.ENGINE_DOWN
    assert len(error.error.attempts) == 3


@pytest.mark.case("H22")
async def test_two_hundred_callers_at_once_share_one_budget() -> None:
    waits, down = Waits(), Script(mishap=Refusal(Reason.ENGINE_DOWN, hint_s=0.05))
    changes = {"retry": RetryPolicy(max_attempts=3), "budget": BudgetPolicy(reserve=10, window_s=1e6)}
    async with fakes(down, down) as (a, b), channel_to(a, b, waits=waits, **changes) as channel:
        calls = [text_of(stub_of(channel).Generate(request(), timeout=20)) for _ in range(200)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(one, ResilientRpcError) for one in outcomes)
    assert len(a.calls) + len(b.calls) <= 200 * 1.2
    delays = [delay for delay in waits.slept if delay > 0]
    assert len(set(delays)) > len(delays) // 2
    assert max(delays) <= 2.0


@pytest.mark.case("H05")
@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_message_over_the_size_limit_is_sent_once_and_blames_no_endpoint(method: str) -> None:
    async with fakes(Script(), Script()) as (a, b), channel_to(a, b) as channel:
        call = getattr(stub_of(channel), method)(request(prompt="word " * 900_000))
        error = await failure(call)
        trailers = dict(await call.trailing_metadata())
        breaker = channel.fleet().links[0].state.breaker

        assert isinstance(error.error, Exhausted)
        assert (trailers["x-inferwire-attempts"], breaker.state) == ("1", "closed")
        assert "0 failures" in repr(breaker)


async def test_a_stream_goes_on_elsewhere_and_its_trailers_say_so() -> None:
    async with fakes(Script(mishap=RESET, after_tokens=2), Script()) as (a, b), channel_to(a, b) as channel:
        call = stub_of(channel).StreamGenerate(request())
        events = [event async for event in call]
        trailers = list(await call.trailing_metadata())

    assert "".join(event.delta.text for event in events) == TEXT
    assert [event.delta.token_offset for event in events if event.HasField("delta")] == [0, 1, 2, 3]
    assert [event.WhichOneof("event") for event in events].count("started") == 1
    assert not any(event.delta.token_ids for event in events)
    assert ("x-inferwire-attempts", "2") in trailers
    assert ("x-inferwire-served-by", f"r1/{b.address}") in trailers
    assert ("x-inferwire-resumed-at", "2") in trailers


async def test_a_resume_sends_what_was_delivered_with_the_echoed_seed() -> None:
    async with fakes(Script(mishap=RESET, after_tokens=2), Script()) as (a, b), channel_to(a, b) as channel:
        await text_of(stub_of(channel).StreamGenerate(request()))

    resumed = b.calls[0].request
    assert (resumed.sampling.seed, resumed.attempt, resumed.resume.prompt_digest) == (7, 1, b"fake-digest")
    assert len(resumed.resume.outputs[0].token_ids) == 2
    assert resumed.expected_model.fingerprint == "fake-fingerprint"


@pytest.mark.parametrize(
    ("second", "kind", "held"),
    [
        (Script(tokens=("Hello", ",", " moon", "!"), first_offset=-2), None, None),
        (Script(tokens=("Bye", ",", " world", "!"), first_offset=-2), StreamDiverged, "Hello,"),
        (Script(first_offset=1), StreamGap, "Hello,"),
        (Script(fingerprint="another"), StreamDiverged, "Hello,"),
        (Script(mishap=Truncation(), after_tokens=3), StreamTruncated, "Hello, world"),
    ],
    ids=["overlap that agrees", "other ids", "gap", "another model", "no Completed"],
)
async def test_a_continuation_is_believed_only_if_it_fits(
    second: Script, kind: type[Exception] | None, held: str | None
) -> None:
    async with fakes(Script(mishap=RESET, after_tokens=2), second) as (a, b), channel_to(a, b) as channel:
        [outcome] = await asyncio.gather(text_of(stub_of(channel).StreamGenerate(request())), return_exceptions=True)

    if kind is None:
        assert outcome == "Hello, moon!"
    else:
        assert isinstance(outcome, ResilientRpcError)
        assert isinstance(outcome.error, kind)
        assert outcome.error.text_so_far == held


async def test_a_repeat_within_one_attempt_is_an_error() -> None:
    async with fakes(Script(first_offset=-1), Script()) as (a, b), channel_to(a, b, resume=NEVER) as channel:
        a.scripts = (Script(first_offset=1),)
        error = await failure(stub_of(channel).StreamGenerate(request()))

    assert isinstance(error.error, StreamGap | StreamRepeat)
    assert error.error.reason == LocalReason.PROTOCOL


async def test_a_stream_that_stalls_everywhere_ends_with_its_text() -> None:
    silent = Script(mishap=Silence(), after_tokens=2)
    async with (
        fakes(silent, silent) as (a, b),
        channel_to(a, b, stall=SOON, resume=ResumePolicy(max_resumes=1)) as channel,
    ):
        error = await failure(stub_of(channel).StreamGenerate(request()))

    assert isinstance(error.error, StreamStalled)
    assert error.error.text_so_far == "Hello,"


async def test_a_slow_reader_is_no_stall() -> None:
    async with fakes(Script(), Script()) as (a, b), channel_to(a, b, stall=PATIENT) as channel:
        text = ""
        async for event in stub_of(channel).StreamGenerate(request()):
            text += event.delta.text
            if text == "Hello,":
                # Time itself is what this is about.
                await asyncio.sleep(2.5)

    assert (text, len(a.calls), len(b.calls)) == (TEXT, 1, 0)


async def test_waiting_in_a_queue_with_progress_is_no_stall() -> None:
    async with fakes(Script(first_token_delay_s=3.0), Script()) as (a, b), channel_to(a, b, stall=PATIENT) as channel:
        events = [event async for event in stub_of(channel).StreamGenerate(request())]

    assert "".join(event.delta.text for event in events) == TEXT
    assert not any(event.HasField("progress") for event in events)
    assert (len(a.calls), len(b.calls)) == (1, 0)


async def test_losing_only_the_status_after_completed_is_success() -> None:
    lost_at_the_end = Script(mishap=RESET, after_tokens=None)
    async with fakes(Script(), lost_at_the_end) as (a, b), channel_to(a, b) as channel:
        call = stub_of(channel).StreamGenerate(request())
        async for event in call:
            if event.HasField("completed"):
                await a.kill()

        assert await call.code() is grpc.StatusCode.OK
        assert b.calls == []


async def test_a_total_outage_names_what_every_region_met() -> None:
    async with fakes(Script(), Script()) as (a, b), channel_to(a, b) as channel:
        await a.kill()
        await b.kill()
        error = await failure(stub_of(channel).Generate(request(), timeout=20))

    assert isinstance(error.error, AllRegionsDown)
    assert set(error.error.regions) == {"r0", "r1"}
    assert error.error.regions["r0"] == LocalReason.CONNECTION_LOST


async def test_a_stream_that_nobody_can_continue_is_lost_with_its_text_and_the_reasons() -> None:
    impatient = ResumePolicy(patience_s=0.2)
    async with fakes(Script(mishap=Silence(), after_tokens=2)) as (a,), channel_to(a, resume=impatient) as channel:
        text = ""
        call = stub_of(channel).StreamGenerate(request())
        while text != "Hello,":
            text += (await call.read()).delta.text
        await a.kill()
        error = await failure(call)

    assert isinstance(error.error, StreamLost)
    assert error.error.text_so_far == "Hello,"


async def test_a_move_that_the_budget_cannot_pay_leaves_the_error_as_it_was() -> None:
    refusal = Refusal(Reason.OVERLOADED, hint_s=0.1, message="no room")
    broke = BudgetPolicy(ratio=0.0, reserve=0)
    async with (
        fakes(Script(mishap=refusal), Script()) as (a, b),
        channel_to(a, b, budget=broke) as channel,
    ):
        error = await failure(stub_of(channel).Generate(request()))

    assert (error.error.reason, error.error.retry_after_s) == (Reason.OVERLOADED, 0.1)
    assert (error.details(), len(b.calls)) == ("no room", 0)


async def test_a_deadline_is_kept_over_all_attempts() -> None:
    async with fakes(Script(mishap=Silence()), Script()) as (a, b), channel_to(a, b) as channel:
        error = await failure(stub_of(channel).StreamGenerate(request(), timeout=0.3))
        await a.until(lambda: a.calls[0].ending == "cancelled")

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (a.calls[0].time_remaining_s or 9) <= 0.4


async def test_a_draining_server_gets_no_new_calls() -> None:
    async with fakes(Script(), Script()) as (a, b), channel_to(a, b) as channel:
        fleet = channel.fleet()
        await fleet.open()
        await fleet.until(lambda: all(link.state.is_serving for link in fleet.links))
        a.say_serving(False)
        await fleet.until(lambda: fleet.links[0].state.is_serving is False)

        assert await text_of(stub_of(channel).Generate(request())) == TEXT
        assert (len(a.calls), len(b.calls)) == (0, 1)


async def test_an_unexplained_fault_is_tried_once_more_elsewhere() -> None:
    fault = Script(mishap=BareStatus(Code.INTERNAL, "what was that"))
    async with fakes(fault, fault, Script()) as (a, b, c), channel_to(a, b, c) as channel:
        error = await failure(stub_of(channel).Generate(request()))

    assert (error.details(), len(a.calls), len(b.calls), len(c.calls)) == ("what was that", 1, 1, 0)
