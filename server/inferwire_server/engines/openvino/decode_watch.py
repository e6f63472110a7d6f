"""Whether following grammars makes decode steps so slow that one of them has to go. Pure."""

from __future__ import annotations

_TIMES_USUAL = 10.0
"""A batch of many takes several times as long as the trial with one."""
_LEAST_S = 0.25
_IN_A_ROW = 2
_CHUNKS = 2.0
"""A chunk behind a long prompt takes longer than the trial's."""
_LATEST_SHARE = 0.1
"""What the latest step counts in the running mean."""


class DecodeWatch:
    """Compares steps with those that had no grammar to follow.

    Times are processor seconds of all threads, which do not depend on what else the machine does.
    """

    def __init__(self, usual_s: float, chunk_s: float) -> None:
        """What a token of one sequence and a full chunk of a prompt took when the model was tried out."""
        self._usual_s = usual_s
        self._chunk_s = chunk_s
        self._slow = 0

    def is_held_up(self, seconds: float, *, follows_grammars: bool, reads_prompts: bool = False) -> bool:
        """Take note of a step; whether it was the second in a row that grammars made far too long."""
        if not follows_grammars:
            if not reads_prompts:
                self._usual_s += _LATEST_SHARE * (seconds - self._usual_s)
            self._slow = 0
            return False
        reading_s = _CHUNKS * self._chunk_s if reads_prompts else 0.0
        is_slow = seconds > max(_LEAST_S, _TIMES_USUAL * self._usual_s) + reading_s
        self._slow = self._slow + 1 if is_slow else 0
        return self._slow >= _IN_A_ROW
