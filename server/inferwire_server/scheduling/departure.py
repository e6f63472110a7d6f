"""Why a caller went away: gRPC says only that it did."""

from __future__ import annotations

from inferwire_server.domain.errors import CancelledByCaller, Expired, ServiceError

_SLACK_SHARE = 0.05
_LEAST_SLACK_S = 0.05


def departure(*, now: float, arrived_at: float, deadline: float | None) -> ServiceError:
    """Expired when the caller left about at its deadline, else CancelledByCaller. Monotonic seconds.

    The caller's clock runs ahead of the server's by the request's way here, so a deadline ends a call a little before
    the server would; a caller that gives up in that last moment was as good as late.
    """
    if deadline is not None:
        slack_s = max(_LEAST_SLACK_S, _SLACK_SHARE * (deadline - arrived_at))
        if now >= deadline - slack_s:
            return Expired("the deadline passed")
    return CancelledByCaller("the caller went away")
