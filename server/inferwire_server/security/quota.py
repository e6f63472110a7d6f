"""The limits of one tenant, and what one request asks of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from inferwire_server.domain.generation import Priority


class Limit(enum.StrEnum):
    """Named as in the file of tenants, in the metrics and in `google.rpc.QuotaFailure`."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    MONTHLY_TOKENS = "monthly_tokens"
    MAX_PROMPT_TOKENS = "max_prompt_tokens"
    MAX_OUTPUT_TOKENS = "max_output_tokens"
    PRIORITIES = "priorities"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Inclusive; None is no limit. Tokens are those of prompt and output together, unless the name says which."""

    concurrent_requests: int | None = None
    """Waiting and running."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    monthly_tokens: int | None = None
    monthly_warning: float = 0.8
    """Share of `monthly_tokens` from which on the operator is warned."""
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    """Of each output."""
    priorities: frozenset[Priority] = frozenset(Priority)


UNLIMITED = Quota()

Work = tuple[str, bytes]
"""Request id and digest of the prompt: what a resumed stream and the one it goes on from have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request may use at most."""

    priority: Priority
    prompt_tokens: int
    max_output_tokens: int
    """Of each output."""
    output_tokens: int
    """Still to be made, of all outputs together."""
    resumes: Work | None = None
    """What it goes on from."""
