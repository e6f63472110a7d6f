"""The scripted engine does what its options and plans say, at the times they say."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import EngineEvent, PrefillProgress, Tokens
from inferwire_server.domain.errors import Overloaded
from inferwire_server.domain.generation import FinishReason, Sampling
from inferwire_server.engines.scripted import (
    Echo,
    Plan,
    PlanBook,
    ScriptedOptions,
)
from inferwire_server.engines.scripted.vocabulary import (
    END_ID,
    END_TOKEN_IDS,
    MESSAGE_END_ID,
    MESSAGE_START_ID,
)

from tests.engines.event_recorder import EventRecorder
from tests.engines.scripted_driving import TimedRecorder, drive

SMALL = ScriptedOptions(step_base_s=0.02, max_running=2, kv_blocks=64, block_tokens=16, max_context_tokens=512)


class TestTime:
    async def test_one_token_a_step(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.02))
        recorder = driver.run(max_output_tokens=3)
        assert recorder.times == [0.02, 0.04, 0.06, 0.06]

    async def test_a_step_takes_longer_for_each_running_request(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, step_per_running_s=0.001))
        recorders = [driver.submit(str(i), max_output_tokens=2)[1] for i in range(4)]
        driver.clock.settle()
        assert [recorder.times for recorder in recorders] == [[0.014, 0.028, 0.028]] * 4

    async def test_prefill_costs_time_by_its_tokens(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, prefill_tokens_per_s=1000.0))
        assert driver.run("x" * 100, max_output_tokens=1).times[0] == 0.11

    async def test_a_long_prompt_is_prefilled_in_chunks_and_reported(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, prefill_chunk_tokens=64))
        recorder = driver.run("x" * 150, max_output_tokens=1)
        assert recorder.events[:2] == [PrefillProgress(64), PrefillProgress(128)]
        assert recorder.times == [0.01, 0.02, 0.03, 0.03]

    async def test_running_requests_go_on_beside_a_prefill(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, prefill_chunk_tokens=16))
        _, running = driver.submit("short", max_output_tokens=8)
        driver.submit("x" * 64, max_output_tokens=1)
        driver.clock.settle()
        assert running.times == [round(0.01 * step, 9) for step in (1, 2, 3, 4, 5, 6, 7, 8, 8)]

    async def test_chunks_are_given_in_order_of_arrival(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, prefill_chunk_tokens=64))
        recorders = [driver.submit(letter * 64, max_output_tokens=1)[1] for letter in "abc"]
        driver.clock.settle()
        assert [recorder.times[0] for recorder in recorders] == [0.01, 0.02, 0.03]

    async def test_a_cached_prefix_makes_the_first_token_come_sooner(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.0, prefill_tokens_per_s=1000.0))
        cold, cached = (driver.run("x" * 161, max_output_tokens=1) for _ in range(2))
        assert (cold.times[0], cached.times[0]) == (0.161, 0.001)
        assert (cold.finished.cached_tokens, cached.finished.cached_tokens) == (0, 160)

    async def test_a_late_loop_makes_up_for_one_step_at_most(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01))
        recorder = TimedRecorder(driver.clock)

        def busy_at_first(event: EngineEvent) -> None:
            recorder(event)
            if len(recorder.events) == 1:
                driver.clock.advance(0.03)

        driver.engine.submit(driver.request(max_output_tokens=4), busy_at_first)
        driver.clock.settle()
        assert recorder.times == [0.01, 0.04, 0.05, 0.06, 0.06]

    async def test_one_timer_serves_all_streams_of_a_step(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.01, max_running=32))
        for index in range(32):
            driver.submit(str(index), max_output_tokens=10)
        driver.clock.settle()
        assert driver.steps == 10


class TestPlans:
    async def test_says_its_text_and_ends(self) -> None:
        driver = await drive(plans=Plan(reply="Hé!"))
        recorder = driver.run()
        assert recorder.text == "Hé!"
        assert recorder.finished.reason is FinishReason.STOP
        assert recorder.finished.end_token_id == END_ID

    async def test_says_its_token_ids(self) -> None:
        driver = await drive(plans=Plan(reply=(0xF0, 0x9F, 0x98)))
        assert driver.run().token_ids == [0xF0, 0x9F, 0x98]

    @pytest.mark.parametrize(
        ("echo", "expected"), [(Echo(), "hiRepeat: ab c"), (Echo(after="Repeat: "), "ab c"), (Echo(after="none"), "")]
    )
    async def test_echoes_the_prompt_up_to_the_next_control_token(self, echo: Echo, expected: str) -> None:
        driver = await drive(plans=Plan(reply=echo))
        prompt = [MESSAGE_START_ID, *b"hi", MESSAGE_END_ID, *b"Repeat: ab c", MESSAGE_END_ID]
        assert driver.run(prompt, max_output_tokens=64).text == expected

    async def test_an_ignored_end_is_not_said_at_all(self) -> None:
        driver = await drive(plans=Plan(reply="ab"))
        recorder = driver.run(ignore_end_of_sequence=True)
        assert len(recorder.token_ids) == 8
        assert not END_TOKEN_IDS.intersection(recorder.token_ids)

    async def test_a_reply_is_cut_at_the_length(self) -> None:
        driver = await drive(plans=Plan(reply="a long reply"))
        recorder = driver.run(max_output_tokens=4)
        assert (recorder.text, recorder.finished.reason) == ("a lo", FinishReason.LENGTH)

    async def test_the_first_rule_that_fits_decides(self) -> None:
        book = PlanBook((("ping", Plan(reply="pong")), ("in", Plan(reply="out"))), Plan(reply="?"))
        driver = await drive(plans=book)
        assert [driver.run(prompt).text for prompt in ("a ping", "pin", "x")] == ["pong", "out", "?"]

    async def test_unplanned_text_is_printable_words(self) -> None:
        driver = await drive()
        text = driver.run(max_output_tokens=500).text
        assert text.replace("\n", " ").isprintable()
        assert len(text.split()) > 60

    async def test_words_end_after_the_planned_mean_length(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.0), Plan(mean_output_tokens=50.0))
        lengths = [len(driver.run(str(i), max_output_tokens=1000).token_ids) for i in range(400)]
        assert 42 < sum(lengths) / len(lengths) < 58
        assert len(set(lengths)) > 80

    async def test_sampled_outputs_of_one_prompt_end_at_different_lengths(self) -> None:
        driver = await drive(plans=Plan(mean_output_tokens=20.0))
        seeds = [Sampling(seed=seed) for seed in range(6)]
        assert len({len(driver.run(sampling=seed, max_output_tokens=400).token_ids) for seed in seeds}) > 3

    async def test_delays_keep_a_stream_silent_and_others_not(self) -> None:
        plan = Plan(reply="ab", first_token_delay_s=1.0, token_delay_s=0.5)
        driver = await drive(ScriptedOptions(step_base_s=0.25), PlanBook((("slow", plan),)))
        _, slow = driver.submit("slow")
        _, other = driver.submit("other", max_output_tokens=3)
        driver.clock.settle()
        assert slow.times == [1.25, 1.75, 2.25]
        assert other.times == [0.25, 0.5, 0.75, 0.75]

    async def test_a_silent_stream_of_a_free_running_engine_does_not_spin(self) -> None:
        driver = await drive(ScriptedOptions(step_base_s=0.0), Plan(reply="a", first_token_delay_s=1.0))
        assert driver.run().text == "a"
        assert driver.steps < 1100


class TestCapacity:
    async def test_two_running_requests_fill_the_small_engine(self) -> None:
        driver = await drive(SMALL)
        for _ in range(2):
            driver.submit("x" * 112, max_output_tokens=400, bypass_cache=True)
        assert driver.engine.load().kv_blocks_reserved == 64
        with pytest.raises(Overloaded):
            driver.submit("y", max_output_tokens=1)

    async def test_blocks_bind_where_slots_do_not(self) -> None:
        driver = await drive(ScriptedOptions(max_running=8, kv_blocks=10, block_tokens=16))
        driver.submit("x" * 16, max_output_tokens=112)
        assert driver.engine.room_for([driver.request("y" * 16, max_output_tokens=16)])
        assert not driver.engine.room_for([driver.request("y" * 16, max_output_tokens=17)])
        with pytest.raises(Overloaded):
            driver.submit("y" * 16, max_output_tokens=17)

    async def test_used_blocks_grow_with_the_tokens_and_reserved_ones_do_not(self) -> None:
        driver = await drive(SMALL)
        driver.submit("x" * 20, max_output_tokens=100)
        used = []
        for _ in range(3):
            driver.clock.advance(0.4)
            used.append((driver.engine.load().kv_blocks_used, driver.engine.load().kv_blocks_reserved))
        assert used == [(3, 8), (4, 8), (5, 8)]

    async def test_room_made_in_a_sink_can_be_used_in_it(self) -> None:
        driver = await drive(ScriptedOptions(max_running=1))
        followers: list[EventRecorder] = []

        def submit_next(event: object) -> None:
            if not isinstance(event, Tokens):
                followers.append(driver.submit(max_output_tokens=2)[1])

        driver.engine.submit(driver.request(max_output_tokens=1), submit_next)
        driver.clock.settle()
        assert len(followers[0].token_ids) == 2

    async def test_its_repr_shows_its_state(self) -> None:
        driver = await drive(SMALL)
        driver.submit("x" * 16, max_output_tokens=16)
        driver.engine.freeze()
        assert repr(driver.engine) == "<ScriptedEngine READY frozen, 1/2 running, <KvCache 2/64 held, 0 idle>>"
