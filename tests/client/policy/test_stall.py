"""How long a stream may be silent."""

from __future__ import annotations

from inferwire.policy.stall import StallTimer
from inferwire.settings import StallPolicy

NOW = 1_000.0
POLICY = StallPolicy(progress_interval_s=0.5, first_token_s=5.0, between_tokens_s=2.0)


def test_silence_before_the_first_token_is_a_stall_after_its_time() -> None:
    timer = StallTimer(POLICY, 100.0)

    assert timer.expires_at == 105.0
    assert not timer.is_stalled(104.9)
    assert timer.is_stalled(105.0)


def test_progress_starts_a_new_silence() -> None:
    timer = StallTimer(POLICY, 100.0)
    timer.heard(104.0)

    assert timer.expires_at == 109.0


def test_after_the_first_token_the_shorter_time_holds_for_good() -> None:
    timer = StallTimer(POLICY, 100.0)
    timer.heard(101.0, token=True)
    timer.heard(102.0)

    assert timer.expires_at == 104.0


def test_a_timer_that_is_off_never_expires() -> None:
    timer = StallTimer(StallPolicy(first_token_s=None), 100.0)

    assert timer.expires_at is None
    assert not timer.is_stalled(1e9)


def test_its_repr_shows_what_it_waits_for() -> None:
    timer = StallTimer(POLICY, 100.0)
    assert repr(timer) == "<StallTimer for the first token, heard at 100.000>"

    timer.heard(101.0, token=True)
    assert repr(timer) == "<StallTimer between tokens, heard at 101.000>"


def test_progress_between_tokens_helps_only_for_a_time() -> None:
    timer = StallTimer(StallPolicy(between_tokens_s=2.0, decode_s=5.0), NOW)
    timer.heard(NOW, token=True)
    for second in range(1, 5):
        timer.heard(NOW + second)
        assert not timer.is_stalled(NOW + second)

    assert timer.is_stalled(NOW + 5.0)


def test_a_token_starts_both_silences_anew() -> None:
    timer = StallTimer(StallPolicy(between_tokens_s=2.0, decode_s=5.0), NOW)
    timer.heard(NOW, token=True)
    timer.heard(NOW + 4.0, token=True)

    assert timer.expires_at == NOW + 6.0


class TestOnceAnEngineHasBegun:
    POLICY = StallPolicy(first_token_s=2.0, prefill_s=5.0)

    def test_progress_helps_only_for_a_time(self) -> None:
        timer = StallTimer(self.POLICY, NOW)
        timer.started(NOW)
        for second in range(1, 5):
            timer.heard(NOW + second)
            assert not timer.is_stalled(NOW + second)

        assert timer.is_stalled(NOW + 5.0)

    def test_getting_on_with_the_prompt_starts_it_anew(self) -> None:
        timer = StallTimer(self.POLICY, NOW)
        timer.started(NOW)
        timer.heard(NOW + 4.0)
        timer.started(NOW + 4.0)

        assert timer.expires_at == NOW + 6.0
        timer.heard(NOW + 8.0)
        assert timer.expires_at == NOW + 9.0

    def test_a_queue_may_take_longer(self) -> None:
        timer = StallTimer(self.POLICY, NOW)
        timer.heard(NOW + 100.0)

        assert not timer.is_stalled(NOW + 101.0)
