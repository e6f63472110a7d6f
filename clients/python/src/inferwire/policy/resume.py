"""Exactly-once streams: what was delivered, what a continuation may repeat, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

from inferwire.errors import PartialOutput
from inferwire.policy.delivery import (
    Continuation,
    Delivery,
    HeldOutput,
    StartedFacts,
    Trim,
    Verdict,
    Violation,
    ViolationKind,
)
from inferwire.settings import ResumeMode


class ExactlyOnce:
    """The state of one caller's stream over all its attempts.

    Each attempt is announced by `begin_attempt`; each of its events is put before this object and delivered only as the
    verdict says. An attempt that continues may repeat what the caller holds, in order and with equal ids, and no more.
    """

    def __init__(
        self,
        *,
        mode: ResumeMode,
        outputs: int = 1,
        wants_token_ids: bool = False,
        wants_progress: bool = False,
        held: Sequence[HeldOutput] = (),
    ) -> None:
        """`held`: what a caller who resumes a stream of its own already has."""
        self._mode = mode
        self._expected_outputs = outputs
        self._wants_progress = wants_progress
        self._outputs = {one.output_index: _Output(one) for one in held}
        self._facts: StartedFacts | None = None
        self._attempts = 0
        self._has_started = False
        self._prompt_logprobs = 0
        self._attempt_prompt_logprobs = 0
        self.needs_token_ids = wants_token_ids or mode is not ResumeMode.NEVER
        """Whether the request must ask for ids."""
        self.strips_token_ids = self.needs_token_ids and not wants_token_ids
        """Whether ids must be taken off deltas before the caller sees them."""
        self.events_delivered = 0
        self.is_completed = False

    def begin_attempt(self) -> None:
        """The next events come from a new attempt."""
        self._attempts += 1
        self._has_started = False
        self._attempt_prompt_logprobs = 0
        for output in self._outputs.values():
            output.begin_attempt()

    @property
    def has_started(self) -> bool:
        """Whether the caller has seen Started: from then on only a continuation will do."""
        return self._facts is not None

    def progress(self) -> Verdict:
        """Judge a Progress."""
        if self.is_completed:
            return self._out_of_order("Progress")
        return self._delivered() if self._wants_progress else Delivery.DROP

    def started(self, facts: StartedFacts) -> Verdict:
        """Judge a Started; the caller sees the first one only."""
        if self._has_started or self.is_completed:
            return Violation(ViolationKind.REPEAT, "Started came twice")
        self._has_started = True
        if self._facts is None:
            self._facts = facts
            return self._delivered()
        difference = self._difference(self._facts, facts)
        if difference:
            return Violation(ViolationKind.DIVERGED, f"the continuation has another {difference}")
        return Delivery.DROP

    def prompt_logprobs(self, token_offset: int, count: int) -> Verdict:
        """Judge PromptLogprobs; a Trim has no text."""
        if not self._has_started or self.is_completed:
            return self._out_of_order("PromptLogprobs")
        if token_offset != self._attempt_prompt_logprobs:
            return _misplaced("prompt logprobs", token_offset, self._attempt_prompt_logprobs)
        self._attempt_prompt_logprobs += count
        skip = max(0, self._prompt_logprobs - token_offset)
        if skip and skip >= count:
            return Delivery.DROP
        self._prompt_logprobs = self._attempt_prompt_logprobs
        self.events_delivered += 1
        return Trim(skip, "") if skip else Delivery.DELIVER

    def delta(
        self, output_index: int, token_offset: int, token_count: int, token_ids: Sequence[int], text: str
    ) -> Verdict:
        """Judge a Delta and, unless it is a violation, count it as delivered."""
        if not self._has_started or self.is_completed:
            return self._out_of_order("a delta")
        if self.needs_token_ids and len(token_ids) != token_count:
            return Violation(ViolationKind.GAP, f"a delta of {token_count} tokens carries {len(token_ids)} ids")
        output = self._outputs.get(output_index)
        if output is None:
            output = self._outputs[output_index] = _Output()
        expected = output.attempt_next
        if expected is None:
            expected = min(token_offset, output.next) if self._attempts > 1 else output.next
        if token_offset != expected:
            return _misplaced(f"output {output_index}", token_offset, expected)
        output.attempt_next = token_offset + token_count
        if token_offset == output.next and not output.is_finished:
            output.append(token_count, token_ids, text)
            self.events_delivered += 1
            return Delivery.DELIVER
        return self._overlap(output_index, output, token_offset, token_ids, text)

    def finished(self, output_index: int, reason: int, output_tokens: int) -> Verdict:
        """Judge a Finished."""
        if not self._has_started or self.is_completed:
            return self._out_of_order("Finished")
        output = self._outputs.setdefault(output_index, _Output())
        if output.attempt_next is not None and output.attempt_next < output.next:
            held = f"{output.attempt_next} of the {output.next} tokens held"
            return Violation(ViolationKind.DIVERGED, f"output {output_index} finished after {held}")
        if output.finish is None:
            output.finish, output.is_finished = (reason, output_tokens), True
            return self._delivered()
        if self._attempts == 1:
            return Violation(ViolationKind.REPEAT, f"output {output_index} finished twice")
        if output.finish != (reason, output_tokens):
            return Violation(ViolationKind.DIVERGED, f"output {output_index} finished twice, in different ways")
        return Delivery.DROP

    def completed(self) -> Verdict:
        """Judge a Completed."""
        if not self._has_started or self.is_completed:
            return self._out_of_order("Completed")
        for index in range(self._expected_outputs):
            if index not in self._outputs or not self._outputs[index].is_finished:
                return Violation(ViolationKind.TRUNCATED, f"Completed came while output {index} was unfinished")
        self.is_completed = True
        return self._delivered()

    def ended(self) -> Violation | None:
        """Judge an end with status OK: without Completed the stream is broken."""
        if self.is_completed:
            return None
        return Violation(ViolationKind.TRUNCATED, "the stream ended with OK but without Completed")

    def continuation(self) -> Continuation:
        """What the next attempt should ask for. Raises ValueError before `has_started`."""
        if self._facts is None:
            raise ValueError("nothing has started that could be continued")
        return Continuation(
            prompt_digest=self._facts.prompt_digest,
            seed=self._facts.seed,
            expected_fingerprint=self._facts.model_fingerprint if self._mode is ResumeMode.SAME_MODEL else "",
            outputs=tuple(
                HeldOutput(index, tuple(output.ids), output.is_finished)
                for index, output in sorted(self._outputs.items())
                if output.ids or output.is_finished
            ),
        )

    @property
    def binding_fingerprint(self) -> str:
        """Of the model that every further attempt must have; empty where any will do, or nothing has started."""
        return "" if self._facts is None or self._mode is ResumeMode.ANY else self._facts.model_fingerprint

    def partial_outputs(self) -> tuple[PartialOutput, ...]:
        """What the caller was given, by output; ids only if it wants them."""
        return tuple(
            PartialOutput(index, "".join(output.texts), () if self.strips_token_ids else tuple(output.ids))
            for index, output in sorted(self._outputs.items())
        )

    def _delivered(self) -> Delivery:
        self.events_delivered += 1
        return Delivery.DELIVER

    def _difference(self, ours: StartedFacts, theirs: StartedFacts) -> str:
        if self._mode is ResumeMode.ANY:
            return ""
        names = {"model": "model_fingerprint", "prompt": "prompt_digest", "seed": "seed"}
        return next((word for word, name in names.items() if getattr(ours, name) != getattr(theirs, name)), "")

    def _overlap(self, index: int, output: _Output, offset: int, ids: Sequence[int], text: str) -> Verdict:
        if self._attempts == 1 or not self.needs_token_ids:
            return Violation(ViolationKind.REPEAT, f"output {index} repeats token {offset} or goes on after its end")
        held = output.ids[offset : offset + len(ids)]
        for position, (ours, theirs) in enumerate(zip(held, ids, strict=False), start=offset):
            if ours != theirs:
                return Violation(ViolationKind.DIVERGED, f"output {index} differs at token {position}")
        is_repeated = len(held) == len(ids)
        rest = output.rest_of(offset, text, is_repeated=is_repeated)
        if rest is None:
            return Violation(ViolationKind.DIVERGED, f"output {index}: the text from token {offset} differs")
        if is_repeated:
            return Delivery.DROP
        if output.is_finished:
            return Violation(ViolationKind.DIVERGED, f"output {index} goes on after it had finished")
        output.append(len(ids) - len(held), ids[len(held) :], rest)
        self.events_delivered += 1
        return Trim(len(held), rest)

    def _out_of_order(self, what: str) -> Violation:
        if self.is_completed:
            return Violation(ViolationKind.REPEAT, f"{what} came after Completed")
        return Violation(ViolationKind.GAP, f"{what} came before Started")

    def __repr__(self) -> str:
        state = "completed" if self.is_completed else "started" if self.has_started else "waiting"
        counts = "".join(f", output {index}: {one.next} tokens" for index, one in sorted(self._outputs.items()))
        return f"<ExactlyOnce {state}, attempt {self._attempts}{counts}>"


class _Output:
    """One output as the caller has it. Positions are tokens since its very first one."""

    __slots__ = ("attempt_next", "finish", "ids", "is_finished", "next", "place", "places", "text_length", "texts")

    def __init__(self, held: HeldOutput | None = None) -> None:
        self.ids: list[int] = [] if held is None else list(held.token_ids)
        self.next = len(self.ids)
        """Tokens delivered."""
        self.texts: list[str] = []
        self.text_length = 0
        self.places: dict[int, int] = {}
        """The token at which each delivered delta began, and its place in the text."""
        self.attempt_next: int | None = None
        """The token that this attempt's next delta must begin with; None before its first."""
        self.place: int | None = None
        """The place of that token in the text, while this attempt repeats what is held; None when unknown."""
        self.is_finished = held is not None and held.finished
        self.finish: tuple[int, int] | None = None
        """(reason, output tokens), as delivered; None also when the caller brought the end along."""

    def begin_attempt(self) -> None:
        self.attempt_next = self.place = None

    def append(self, count: int, ids: Sequence[int], text: str) -> None:
        if count == 1 and ids:
            # By far the most deltas are of one token, and this is what each token costs.
            self.ids.append(ids[0])
        else:
            self.ids.extend(ids)
        self.places.setdefault(self.next, self.text_length)
        self.next += count
        self.texts.append(text)
        self.text_length += len(text)

    def rest_of(self, offset: int, text: str, *, is_repeated: bool) -> str | None:
        """What a delta that begins at a token held adds to the text; None when that cannot be said.

        So it is when its text contradicts the text held, and when it begins inside a delta delivered as one and ends
        beyond what is held.
        """
        begin = self.places.get(offset, self.place)
        if begin is None:
            return "" if is_repeated else None
        held = "".join(self.texts)[begin:]
        self.place = begin + len(text)
        if is_repeated:
            return "" if held.startswith(text) else None
        return text.removeprefix(held) if text.startswith(held) else None


def _misplaced(what: str, offset: int, expected: int) -> Violation:
    if offset > expected:
        return Violation(ViolationKind.GAP, f"{what}: token {offset} came where {expected} was due")
    return Violation(ViolationKind.REPEAT, f"{what}: token {offset} came again")
