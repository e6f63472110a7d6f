"""What tests of quotas share: demands, dates, an observer that takes notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from inferwire_server.domain.generation import Priority
from inferwire_server.security.quota import Demand, Work


@dataclass
class Notes:
    """What the ledger said."""

    refusals: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, int, int]] = field(default_factory=list)

    def quota_refused(self, tenant: str, limit: str) -> None:
        self.refusals.append((tenant, limit))

    def budget_nearly_spent(self, tenant: str, spent: int, budget: int) -> None:
        self.warnings.append((tenant, spent, budget))


def demand(
    prompt_tokens: int = 10,
    output_tokens: int = 10,
    *,
    priority: Priority = Priority.STANDARD,
    resumes: Work | None = None,
) -> Demand:
    """A request for one output."""
    return Demand(
        priority=priority,
        prompt_tokens=prompt_tokens,
        max_output_tokens=output_tokens,
        output_tokens=output_tokens,
        resumes=resumes,
    )


def at(year: int, month: int, day: int, hour: int = 0) -> float:
    """Seconds since the epoch, UTC."""
    return datetime(year, month, day, hour, tzinfo=UTC).timestamp()
