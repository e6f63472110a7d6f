"""Figures of a run, ready for JSON. Rates and shares are over the calls that were intended after the warm-up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from bench.load.caller import Record
from bench.quantiles import quantile


def report(
    records: Sequence[Record], *, duration_s: float, warm_up_s: float, first_token_target_s: float | None
) -> dict[str, Any]:
    """Tokens are prompt and output tokens as the callers saw them; times are seconds."""
    counted = [record for record in records if record.shot.at_s >= warm_up_s]
    window_s = duration_s - warm_up_s
    target_s = math.inf if first_token_target_s is None else first_token_target_s
    served = [record for record in counted if record.is_served]
    good = [record for record in served if _answered_s(record) <= target_s]
    begun = [record for record in counted if record.is_served or record.first_token_at is not None]
    good_tokens, begun_tokens = _tokens(good), _tokens(begun)
    refused = [record for record in counted if not record.is_served and record.first_token_at is None]
    return {
        "calls": len(counted),
        "calls_per_s": round(len(counted) / window_s, 3),
        "outcomes": dict(sorted(Counter(record.outcome for record in counted).items())),
        "good_calls": len(good),
        "goodput_tokens_per_s": round(good_tokens / window_s, 1),
        "output_tokens_per_s": round(sum(record.output_tokens for record in counted) / window_s, 1),
        "wasted_tokens_share": round(1.0 - good_tokens / begun_tokens, 5) if begun_tokens else 0.0,
        "first_token_s": _spread(record.first_token_s for record in begun if record.first_token_s is not None),
        "inter_token_s": _spread(gap for record in counted for gap in record.gaps_s),
        "refusal_s": _spread(record.ended_at - record.sent_at for record in refused),
        "retry_hint_s": _spread(record.retry_hint_s for record in counted if record.retry_hint_s is not None),
        "caller_lateness_s": _spread(record.sent_at - record.shot.at_s for record in counted),
    }


def _answered_s(record: Record) -> float:
    """An output may end without a token; then its end is the answer."""
    return record.ended_at - record.shot.at_s if record.first_token_s is None else record.first_token_s


def _tokens(records: Iterable[Record]) -> int:
    return sum(record.shot.prompt_tokens + record.output_tokens for record in records)


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    measured = list(values)
    if not measured:
        return None
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(quantile(measured, share), 6) for name, share in shares.items()}
