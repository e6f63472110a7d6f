"""What callers send, drawn from a seed: arrivals, prompts, and output lengths that the server is not told."""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass

from inferwire_server.domain.generation import Priority

MAX_OUTPUT_TOKENS = 512
SHORTEST_PROMPT = 50
LONGEST_PROMPT = 2000
MEAN_OUTPUT_TOKENS = 100.0
FIRST_TOKEN_TARGET_S = 3.0
RPC_DEADLINE_S = 60.0


class Outcome(enum.Enum):
    """How a request ended."""

    COMPLETED = "completed"
    OVERLOADED = "overloaded"
    WOULD_EXCEED = "would exceed"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One caller's request and, after the run, what became of it. Times are virtual seconds."""

    arrived_at: float
    prompt_tokens: int
    true_output_tokens: int
    """Where the output ends by itself; only the simulated engine reads it."""
    tenant: str = "tenant"
    priority: Priority = Priority.STANDARD
    max_output_tokens: int = MAX_OUTPUT_TOKENS
    first_token_target_s: float | None = FIRST_TOKEN_TARGET_S
    deadline_s: float = RPC_DEADLINE_S
    """After its arrival."""

    outcome: Outcome | None = None
    refused_at: float | None = None
    forecast_s: float | None = None
    """Expected time to the first token, at arrival."""
    started_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    prefilled_tokens: int = 0
    produced_tokens: int = 0
    preemptions: int = 0

    @property
    def deadline(self) -> float:
        return self.arrived_at + self.deadline_s

    @property
    def first_token_s(self) -> float | None:
        """Seconds from arrival to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.arrived_at

    @property
    def spent_tokens(self) -> int:
        """Prompt and output tokens that the engine computed for it."""
        return self.prefilled_tokens + self.produced_tokens

    @property
    def is_good(self) -> bool:
        """Whether it is complete and its first token came in time."""
        in_time = self.first_token_target_s is None or (
            self.first_token_s is not None and self.first_token_s <= self.first_token_target_s
        )
        return self.outcome is Outcome.COMPLETED and in_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """One stream of like requests."""

    tenant: str = "tenant"
    priority: Priority = Priority.STANDARD
    mean_output_tokens: float = MEAN_OUTPUT_TOKENS
    fixed_output_tokens: int | None = None
    """Every output as long as this, in place of a geometric length."""
    prompt_tokens: tuple[int, int] = (SHORTEST_PROMPT, LONGEST_PROMPT)
    """Inclusive range, uniform."""
    first_token_target_s: float | None = FIRST_TOKEN_TARGET_S
    deadline_s: tuple[float, float] = (RPC_DEADLINE_S, RPC_DEADLINE_S)
    """Range, uniform."""

    def draw(self, rng: random.Random, arrived_at: float) -> Request:
        return Request(
            arrived_at=arrived_at,
            prompt_tokens=rng.randint(*self.prompt_tokens),
            true_output_tokens=self.fixed_output_tokens or geometric(rng, self.mean_output_tokens),
            tenant=self.tenant,
            priority=self.priority,
            first_token_target_s=self.first_token_target_s,
            deadline_s=rng.uniform(*self.deadline_s),
        )


def poisson(callers: Callers, *, rate: float, until_s: float, seed: int) -> list[Request]:
    """Requests at `rate` a second, independent of how they fare (open loop)."""
    rng = seeded(seed)
    requests = []
    now = rng.expovariate(rate)
    while now < until_s:
        requests.append(callers.draw(rng, now))
        now += rng.expovariate(rate)
    return requests


def seeded(seed: int) -> random.Random:
    """Repeatable draws."""
    return random.Random(seed)


def geometric(rng: random.Random, mean: float) -> int:
    """Tokens up to an end that comes with probability 1 / mean after each, cut at MAX_OUTPUT_TOKENS; `mean` above 1."""
    length = 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))
    return min(length, MAX_OUTPUT_TOKENS)
