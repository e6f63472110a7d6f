"""A simulated engine with in-flight batching and chunked prefill. A step costs what the workload's definition says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds and tokens."""

    step_s: float = 0.010
    running_s: float = 0.00025
    """More for each running request."""
    prefill_tokens_per_s: float = 16_000.0
    chunk_tokens: int = 512
    """Prompt tokens computed in one step at most."""


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One output in the batch."""

    item: T
    prefill_tokens: int
    output_tokens: int
    is_cancelled: bool = False
    prefilled: int = 0
    produced: int = 0

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.produced >= self.output_tokens


@dataclass(slots=True)
class Step(Generic[T]):
    """What one step did."""

    produced: list[Job[T]] = field(default_factory=list)
    """Jobs that got a token."""
    ended: list[Job[T]] = field(default_factory=list)
    """Jobs that are complete or were cancelled."""


class SimulatedEngine(Generic[T]):
    """Step by step: `begin` fixes the batch and says how long it takes, `finish` says what came of it."""

    def __init__(self, *, slots: int, costs: StepCosts) -> None:
        self.slots = slots
        self._costs = costs
        self._decoding: list[Job[T]] = []
        self._prefilling: deque[Job[T]] = deque()
        self._batch: list[Job[T]] = []
        self._chunks: list[tuple[Job[T], int]] = []

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self._prefilling)

    def submit(self, job: Job[T]) -> None:
        """It joins the next step."""
        self._prefilling.append(job)

    def begin(self) -> float:
        """Seconds that the next step takes."""
        costs = self._costs
        left = costs.chunk_tokens
        self._chunks = []
        for job in self._prefilling:
            if left == 0:
                break
            tokens = min(left, job.prefill_tokens - job.prefilled)
            self._chunks.append((job, tokens))
            left -= tokens
        self._batch = list(self._decoding)
        prefill_s = (costs.chunk_tokens - left) / costs.prefill_tokens_per_s
        return costs.step_s + self.running * costs.running_s + prefill_s

    def finish(self) -> Step[T]:
        """Apply the step begun last."""
        step: Step[T] = Step()
        for job in self._batch:
            if not job.is_cancelled:
                job.produced += 1
                step.produced.append(job)
        for job, tokens in self._chunks:
            job.prefilled += tokens
            if job.prefilled == job.prefill_tokens and not job.is_cancelled:
                job.produced += 1
                step.produced.append(job)
                self._decoding.append(job)
                self._prefilling.remove(job)
        step.ended = [job for job in self._decoding if job.is_over] + [job for job in self._prefilling if job.is_over]
        if step.ended:
            self._decoding = [job for job in self._decoding if not job.is_over]
            self._prefilling = deque(job for job in self._prefilling if not job.is_over)
        return step
