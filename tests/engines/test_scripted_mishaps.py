"""The scripted engine breaks, freezes, dies and recovers when it is told to."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Cancelled, EngineEvent, EngineState, Failed
from inferwire_server.domain.errors import EngineDown, Starting
from inferwire_server.engines.scripted import (
    Die,
    Fail,
    Freeze,
    ManualClock,
    Plan,
    PlanBook,
    Refuse,
    ScriptedEngine,
    ScriptedOptions,
)
from inferwire_server.engines.scripted.vocabulary import (
    byte_tokens,
)

from tests.engines.event_recorder import EventRecorder
from tests.engines.scripted_driving import TimedRecorder, drive


class TestMishaps:
    async def test_a_refused_request_is_never_taken(self) -> None:
        driver = await drive(plans=Plan(mishap=Refuse(lambda: EngineDown("not today"))))
        with pytest.raises(EngineDown, match="not today"):
            driver.submit()
        assert driver.engine.load().running == 0

    @pytest.mark.parametrize("after", [0, 3, 7])
    async def test_one_stream_fails_after_its_tokens_and_others_run_on(self, after: int) -> None:
        plan = Plan(mishap=Fail(lambda: ValueError("secret /srv/path"), after=after))
        driver = await drive(plans=PlanBook((("break", plan),)))
        _, broken = driver.submit("break")
        _, other = driver.submit("other")
        driver.clock.settle()
        assert len(broken.token_ids) == after
        assert isinstance(broken.failure, ValueError)
        assert len(other.token_ids) == 8

    async def test_a_continuation_does_not_meet_what_interrupted_the_output(self) -> None:
        driver = await drive(plans=Plan(reply="abcdefgh", mishap=Fail(lambda: EngineDown("lost"), after=3)))
        assert driver.run().text == "abc"
        assert driver.run(resumed_token_ids=byte_tokens("abc"), max_output_tokens=5).text == "defgh"

    async def test_the_engine_dies_in_the_middle_of_a_stream_and_recovers_by_itself(self) -> None:
        options = ScriptedOptions(step_base_s=0.01, start_delay_s=0.0, recover_after_s=2.0)
        driver = await drive(options, PlanBook((("die", Plan(mishap=Die("worker lost", after=2))),)))
        recorders = [driver.submit("die")[1], driver.submit("other")[1]]
        driver.clock.advance(0.1)
        assert [str(recorder.failure) for recorder in recorders] == ["worker lost"] * 2
        assert driver.engine.health().state is EngineState.DEAD
        driver.clock.advance(2.0)
        assert driver.engine.health().state is EngineState.READY

    async def test_a_planned_freeze_thaws_by_itself(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.1), Plan(mishap=Freeze(seconds=5.0, after=2)))
        recorder = driver.run(max_output_tokens=4)
        assert recorder.times == [0.1, 0.2, 5.4, 5.5, 5.5]


class TestSwitches:
    async def test_a_frozen_engine_says_nothing_and_grows_old(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.1))
        _, recorder = driver.submit(max_output_tokens=4)
        driver.clock.advance(0.2)
        driver.engine.freeze()
        driver.clock.advance(10.0)
        health = driver.engine.health()
        assert health.state is EngineState.READY
        assert health.last_progress == pytest.approx(driver.clock.now() - 10.0)
        assert len(recorder.token_ids) == 2

    async def test_an_idle_engine_that_freezes_shows_it_too(self) -> None:
        driver = await drive()
        driver.clock.advance(5.0)
        driver.engine.freeze()
        driver.clock.advance(5.0)
        assert driver.engine.health().last_progress == pytest.approx(driver.clock.now() - 5.0)

    async def test_a_thawed_engine_goes_on_with_the_same_tokens(self) -> None:
        driver = await drive()
        expected = driver.run().token_ids
        _, recorder = driver.submit()
        driver.clock.advance(0.03)
        driver.engine.freeze()
        driver.clock.advance(1.0)
        driver.engine.thaw()
        driver.clock.settle()
        assert recorder.token_ids == expected

    async def test_a_frozen_engine_still_answers_a_cancel(self) -> None:
        driver = await drive()
        driver.engine.freeze()
        stream, recorder = driver.submit()
        stream.cancel()
        driver.clock.settle()
        assert recorder.events == [Cancelled(cached_tokens=0)]
        assert driver.engine.load().running == 0

    async def test_a_death_fails_every_stream_and_refuses_new_ones_with_a_hint(self) -> None:
        driver = await drive()
        recorders = [driver.submit(str(index))[1] for index in range(3)]
        driver.clock.advance(0.02)
        driver.engine.die("worker lost")
        with pytest.raises(EngineDown, match="worker lost") as refused:
            driver.submit()
        driver.clock.settle()
        assert refused.value.retry_after_s
        assert all(isinstance(recorder.failure, EngineDown) for recorder in recorders)
        assert driver.engine.load().kv_blocks_reserved == 0

    async def test_a_death_inside_a_sink_still_gives_each_stream_one_terminal(self) -> None:
        driver = await drive(plans=Plan(reply=""))
        recorders = [TimedRecorder(driver.clock) for _ in range(2)]

        def deadly(event: EngineEvent) -> None:
            recorders[0](event)
            driver.engine.die()

        driver.engine.submit(driver.request(prompt_top_logprobs=0), deadly)
        driver.engine.submit(driver.request(), recorders[1])
        driver.clock.settle()
        assert [type(recorder.terminal) for recorder in recorders] == [Failed, Failed]

    async def test_a_recovered_engine_is_starting_then_ready_and_has_forgotten_its_cache(self) -> None:
        driver = await drive(ScriptedOptions(start_delay_s=0.0))
        driver.run("x" * 64)
        driver.engine.die()
        driver.engine.recover()
        states = [driver.engine.health().state]
        driver.clock.settle()
        states.append(driver.engine.health().state)
        assert states == [EngineState.STARTING, EngineState.READY]
        assert driver.engine.health().restarts == 1
        assert driver.run("x" * 64).finished.cached_tokens == 0

    async def test_every_change_of_health_is_told_once(self) -> None:
        driver = await drive()
        states: list[EngineState] = []
        driver.engine.subscribe(lambda: states.append(driver.engine.health().state))
        driver.engine.die()
        driver.engine.die()
        driver.engine.recover()
        driver.clock.settle()
        assert states == [EngineState.DEAD, EngineState.STARTING, EngineState.READY]

    async def test_refuses_with_a_hint_while_it_starts(self) -> None:
        engine = ScriptedEngine(clock=ManualClock())
        with pytest.raises(Starting) as refused:
            engine.submit((await drive()).request(), EventRecorder())
        assert refused.value.retry_after_s
