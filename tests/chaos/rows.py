"""The fault matrix: each row, what is asked of it, and the tests that show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault."""

    number: str
    fault: str
    goal: str
    """Beside nothing lost, nothing doubled, equal ids."""
    tests: tuple[str, ...]
    """Files under tests/, each alone or with a test of it."""


ROWS = (
    Row(
        "1",
        "endpoint or region killed in mid-stream",
        "at most 3 attempts a call; gap p99 60 ms, 200 ms",
        (
            "chaos/test_killed.py::test_killing_an_endpoint_or_a_region_loses_and_doubles_nothing",
            "system/test_losing_servers.py::test_killing_a_region_and_then_an_endpoint_in_mid_stream_loses_and_doubles_nothing",
            "system/test_losing_servers.py::test_a_region_of_a_real_model_is_lost_and_no_text_changes",
        ),
    ),
    Row(
        "2",
        "killed before the first token",
        "at most 3 attempts a call",
        (
            "chaos/test_killed.py::test_a_region_killed_before_any_first_token_loses_nothing",
            "client/test_failover.py::test_a_region_lost_before_the_first_message_is_replaced",
        ),
    ),
    Row(
        "3",
        "process frozen, and thawed",
        "gap within the stall time and 50 ms",
        (
            "chaos/test_frozen.py::test_a_process_that_is_frozen_and_thawed_doubles_nothing",
            "system/test_losing_servers.py::test_a_frozen_region_is_left_after_the_stall_time",
        ),
    ),
    Row(
        "4",
        "black hole, cut and broken ways",
        "gap within the stall time and 100 ms",
        (
            "chaos/test_frozen.py::test_a_black_hole_on_the_way_to_a_region_is_left_and_found_healed",
            "chaos/test_frozen.py::test_a_link_that_goes_down_is_a_black_hole_and_is_left",
            "chaos/test_frozen.py::test_ways_that_break_are_replaced",
            "chaos/test_frozen.py::test_a_slow_way_is_no_fault",
        ),
    ),
    Row(
        "5",
        "slow first tokens",
        "p99 within the delay and 1.2 times p50, at most 5 % more attempts",
        (
            "chaos/test_refusals.py::test_a_hedge_cuts_the_tail_of_first_tokens_for_one_in_twenty_attempts_more",
            "client/test_hedging.py",
            "client/policy/test_hedge.py",
        ),
    ),
    Row(
        "6",
        "UNAVAILABLE before and after the first token",
        "at most 1.05 attempts a call",
        ("chaos/test_refusals.py::test_a_region_that_answers_unavailable_costs_few_attempts",),
    ),
    Row(
        "7",
        "no room in one region, in all",
        "at most 1.2 attempts a call; 1.1 where all refuse; hints kept",
        (
            "chaos/test_refusals.py::test_a_region_without_room_loses_nothing_and_is_soon_left_alone",
            "chaos/test_refusals.py::test_a_negative_pushback_is_final_and_a_hint_is_kept",
            "client/policy/test_policies_together.py::test_calls_that_all_regions_refuse_stay_within_a_tenth_more",
            "client/test_every_answer.py::test_a_reason_decides_what_follows",
        ),
    ),
    Row(
        "8",
        "everything gone",
        "at most 1.1 attempts a call; answered here within 5 ms; deadlines kept",
        (
            "chaos/test_refusals.py::test_a_total_outage_is_answered_here",
            "chaos/test_refusals.py::test_a_deadline_is_kept_whatever_is_tried",
            "client/test_failover.py::test_a_total_outage_names_what_every_region_met",
        ),
    ),
    Row(
        "9",
        "a server that flaps",
        "never two probes of an endpoint; fewer with time",
        (
            "chaos/test_coming_back.py::test_a_minute_of_flapping_costs_few_attempts_and_fewer_each_time",
            "chaos/test_coming_back.py::test_a_server_that_flaps_has_one_probe_at_a_time",
            "client/test_failover.py::test_a_half_open_breaker_lets_one_call_through",
        ),
    ),
    Row(
        "10",
        "a region returns under load",
        "at most 20 % of the first second",
        (
            "chaos/test_coming_back.py::test_a_region_that_returns_is_not_stormed",
            "client/policy/test_policies_together.py::test_a_region_that_returns_is_found_and_filled_slowly",
        ),
    ),
    Row(
        "11",
        "rolling restart, drain",
        "no error",
        (
            "chaos/test_coming_back.py::test_a_rolling_restart_under_load_shows_no_caller_an_error",
            "system/test_losing_servers.py::test_a_draining_server_hands_its_calls_on_without_an_error",
            "client/test_failover.py::test_a_draining_server_gets_no_new_calls",
        ),
    ),
    Row(
        "12",
        "the caller cancels, leaves, runs out of time",
        "freed on the server; no breaker hears of it",
        (
            "server/test_cancelling.py",
            "client/test_channel_life.py::test_breaking_out_of_a_stream_cancels_it_on_the_server",
            "client/test_observation.py::test_a_call_that_its_caller_left_is_cancelled_and_no_fault",
            "client/test_failover.py::test_a_deadline_is_kept_over_all_attempts",
        ),
    ),
    Row(
        "13",
        "a server that dislikes pings",
        "ours never does; from another the stream goes on elsewhere",
        (
            "server/test_keepalive.py",
            "chaos/test_foreign_servers.py::test_a_server_that_dislikes_pings_loses_its_streams_to_another",
        ),
    ),
    Row(
        "13b",
        "a loop or an engine that hangs while pings are answered",
        "left after its stall time",
        (
            "client/test_hung_servers.py",
            "system/test_losing_servers.py::test_a_hung_engine_whose_server_still_answers_pings_is_left_too",
        ),
    ),
    Row(
        "14",
        "a prompt of a mebibyte, and a kill",
        "2 attempts",
        ("chaos/test_killed.py::test_a_prompt_of_a_mebibyte_is_taken_elsewhere_too",),
    ),
    Row(
        "15",
        "cut at every token: text, stop strings, grammars",
        "the same output",
        ("server/test_resuming.py", "engines/openvino/test_every_cut.py", "engines/openvino/test_resuming.py"),
    ),
    Row(
        "16",
        "one request id twice at the same time",
        "one generation, the same tokens",
        (
            "server/test_idempotency.py",
            "chaos/test_foreign_servers.py::test_a_hedge_to_the_same_process_by_another_address_runs_nothing_twice",
        ),
    ),
    Row(
        "17",
        "only this client is cut off from a region",
        "back within 15 s, at most 20 % of the first second",
        ("chaos/test_frozen.py::test_a_client_cut_off_from_a_region_leaves_it_and_comes_back_bit_by_bit",),
    ),
    Row(
        "18",
        "the wall clock steps by an hour",
        "nothing changes",
        ("client/policy/test_breaker.py::test_a_step_of_the_wall_clock_changes_nothing",),
    ),
    Row(
        "19",
        "random interleavings of a breaker's permits",
        "never two probes, no leaked permit, no stale result",
        ("properties/test_breaker_machine.py", "properties/test_picker_machine.py"),
    ),
    Row(
        "20",
        "10,000 requests at every rate of errors",
        "attempts within the budget",
        (
            "client/policy/test_budget.py::test_attempts_stay_within_a_tenth_and_the_reserve_at_every_error_rate",
            "properties/test_budget_machine.py",
        ),
    ),
    Row(
        "21",
        "none",
        "CPU over the bare stub: 1.10 a token, 1.25 a unary call",
        ("chaos/test_foreign_servers.py::test_the_client_costs_a_fraction_of_the_bare_stub_more",),
    ),
    Row(
        "22",
        "everything at once, for long",
        "no growth of memory, tasks, descriptors",
        ("chaos/test_soak.py",),
    ),
)
