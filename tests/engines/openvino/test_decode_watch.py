"""Grammars that make every step long are noticed; long steps of other causes blame no grammar."""

from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.openvino.decode_watch import DecodeWatch

USUAL_S, CHUNK_S = 0.03, 1.0
seconds = st.floats(0.0, 60.0)


def test_the_second_far_too_long_step_in_a_row_is_one_too_many() -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)

    assert not watch.is_held_up(1.0, follows_grammars=True)
    assert watch.is_held_up(1.0, follows_grammars=True)


def test_prompts_that_are_read_all_the_while_hide_nothing() -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)

    assert not any(watch.is_held_up(1.5, follows_grammars=True, reads_prompts=True) for _ in range(5))
    assert [watch.is_held_up(5.0, follows_grammars=True, reads_prompts=True) for _ in range(2)] == [False, True]


def test_a_single_long_step_is_forgotten() -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)

    assert not any(watch.is_held_up(s, follows_grammars=True) for s in (1.0, USUAL_S, 1.0, USUAL_S))


def test_a_slow_machine_is_no_fault_of_a_grammar() -> None:
    watch = DecodeWatch(1.0, CHUNK_S)

    assert not any(watch.is_held_up(5.0, follows_grammars=True) for _ in range(5))


def test_what_is_usual_follows_a_growing_batch() -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)
    for _ in range(50):
        watch.is_held_up(1.0, follows_grammars=False)

    assert not any(watch.is_held_up(5.0, follows_grammars=True) for _ in range(5))


@given(st.lists(seconds))
def test_without_grammars_nothing_is_held_up(steps: list[float]) -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)

    assert not any(watch.is_held_up(step, follows_grammars=False) for step in steps)


@given(st.lists(st.tuples(seconds, st.booleans())))
def test_short_steps_are_never_blamed(steps: list[tuple[float, bool]]) -> None:
    watch = DecodeWatch(USUAL_S, CHUNK_S)
    for step, follows_grammars in steps:
        watch.is_held_up(step, follows_grammars=follows_grammars)

    assert not watch.is_held_up(0.2, follows_grammars=True)
