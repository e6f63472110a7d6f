"""Streams cut anywhere and continued by anybody: the caller gets each token once and in order, or an error."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from inferwire.policy.delivery import Delivery, StartedFacts, Trim, Verdict, Violation, ViolationKind
from inferwire.policy.resume import ExactlyOnce
from inferwire.settings import ResumeMode

FACTS = StartedFacts(model_fingerprint="f1", prompt_digest=b"p", seed=7)
STOP = 1
PIECES = ("", "a", "aa", "é", "👩‍👩‍👧", " the", "\n")
"""Text of token id 0, 1, ...; some tokens have none and some repeat each other's."""
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def text_of(ids: list[int]) -> str:
    return "".join(PIECES[one] for one in ids)


class ResumeMachine(RuleBasedStateMachine):
    """A truth of one or two outputs; attempts that send it in pieces; a caller that keeps what is delivered."""

    @initialize(truth=st.lists(TOKENS, min_size=1, max_size=2))
    def begin(self, truth: list[list[int]]) -> None:
        self.truth = truth
        self.begin_stream()

    def begin_stream(self) -> None:
        truth = self.truth
        self.stream = ExactlyOnce(mode=ResumeMode.SAME_MODEL, outputs=len(truth), wants_token_ids=True)
        self.ids: list[list[int]] = [[] for _ in truth]
        self.text = ["" for _ in truth]
        self.finished = [0 for _ in truth]
        self.completed = 0
        self.starts = 0
        self.broken = False
        self.attempts = 0
        self.start_attempt()

    def start_attempt(self) -> None:
        self.attempts += 1
        self.stream.begin_attempt()
        verdict = self.stream.started(FACTS)
        self.starts += verdict is Delivery.DELIVER
        assert verdict is (Delivery.DELIVER if self.attempts == 1 else Delivery.DROP)
        held = self.stream.continuation().outputs
        self.at = [0 for _ in self.truth]
        for one in held:
            self.at[one.output_index] = len(one.token_ids)
        self.ended = [False for _ in self.truth]

    def go_on(self) -> None:
        """A stream that is over gives way to the next one."""
        if self.broken or self.completed:
            self.begin_stream()

    def unsent(self, output: int, count: int) -> list[int]:
        """What this attempt has not sent of an output."""
        return [] if self.ended[output] else self.truth[output][self.at[output] : self.at[output] + count]

    def keep(self, output: int, ids: list[int], text: str, verdict: Verdict) -> None:
        if verdict is Delivery.DELIVER:
            self.ids[output] += ids
            self.text[output] += text
        elif isinstance(verdict, Trim):
            self.ids[output] += ids[verdict.skip_tokens :]
            self.text[output] += verdict.text
        self.broken = isinstance(verdict, Violation)

    def send(self, output: int, offset: int, ids: list[int], text: str | None = None) -> Verdict:
        text = text_of(ids) if text is None else text
        verdict = self.stream.delta(output, offset, len(ids), ids, text)
        self.keep(output, ids, text, verdict)
        return verdict

    @rule(rewinds=st.sampled_from([(), (0,), (1,), (0, 1)]), count=st.integers(0, 4))
    def lose_the_server(self, rewinds: tuple[int, ...], count: int) -> None:
        """The next attempt repeats some outputs from their beginning and goes on exactly with the others."""
        self.go_on()
        self.start_attempt()
        for output in rewinds:
            self.at[output % len(self.at)] = 0
        for output in range(len(self.truth)):
            self.send_truth(output, count)

    @rule(output=st.integers(0, 1), count=st.integers(1, 4))
    def send_more(self, output: int, count: int) -> None:
        self.go_on()
        self.send_truth(output % len(self.truth), count)

    def send_truth(self, output: int, count: int) -> None:
        if ids := self.unsent(output, count):
            verdict = self.send(output, self.at[output], ids)

            assert not isinstance(verdict, Violation)
            self.at[output] += len(ids)

    @rule(output=st.integers(0, 1))
    def finish(self, output: int) -> None:
        """Once everything was sent."""
        self.go_on()
        output %= len(self.truth)
        if self.at[output] == len(self.truth[output]) and not self.ended[output]:
            verdict = self.stream.finished(output, STOP, len(self.truth[output]))

            assert not isinstance(verdict, Violation)
            self.finished[output] += verdict is Delivery.DELIVER
            self.ended[output] = True

    @rule()
    def complete(self) -> None:
        self.go_on()

        verdict = self.stream.completed()

        if all(self.finished):
            assert verdict is Delivery.DELIVER
            self.completed += 1
        else:
            assert isinstance(verdict, Violation)
            assert verdict.kind is ViolationKind.TRUNCATED
            self.broken = True

    @rule(output=st.integers(0, 1), skipped=st.integers(1, 3))
    def skip_tokens(self, output: int, skipped: int) -> None:
        self.go_on()
        output %= len(self.truth)

        verdict = self.send(output, max(self.at[output], len(self.ids[output])) + skipped, [1])

        assert isinstance(verdict, Violation)
        assert verdict.kind is ViolationKind.GAP

    @rule(output=st.integers(0, 1))
    def send_twice(self, output: int) -> None:
        """What this attempt has sent already."""
        self.go_on()
        output %= len(self.truth)
        if ids := self.unsent(output, 1):
            self.send(output, self.at[output], ids)

            verdict = self.send(output, self.at[output], ids)

            assert isinstance(verdict, Violation)
            assert verdict.kind is ViolationKind.REPEAT

    @rule(output=st.integers(0, 1))
    def diverge(self, output: int) -> None:
        """Another token where one is held."""
        self.go_on()
        output %= len(self.truth)
        offset = self.at[output]
        if offset < len(self.ids[output]) and not self.ended[output]:
            verdict = self.send(output, offset, [(self.ids[output][offset] + 1) % len(PIECES)])

            assert isinstance(verdict, Violation)
            assert verdict.kind is ViolationKind.DIVERGED

    @invariant()
    def the_caller_has_a_beginning_of_the_truth(self) -> None:
        for truth, ids, text in zip(self.truth, self.ids, self.text, strict=True):
            assert ids == truth[: len(ids)]
            assert text == text_of(ids)
        delivered = [(one.text, list(one.token_ids)) for one in self.stream.partial_outputs() if one.token_ids]
        assert delivered == [(text, ids) for text, ids in zip(self.text, self.ids, strict=True) if ids]

    @invariant()
    def everything_comes_once(self) -> None:
        assert self.starts == 1
        assert max(self.finished) <= 1
        if self.completed:
            assert self.ids == self.truth
            assert self.finished == [1 for _ in self.truth]
            assert self.stream.ended() is None
        else:
            assert self.stream.ended() is not None


TestResumeMachine = ResumeMachine.TestCase
TestResumeMachine.settings = settings(max_examples=900, stateful_step_count=12, deadline=None)
TestResumeMachine.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]
