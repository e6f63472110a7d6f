"""Where one call has been, and where it should not go again."""

from __future__ import annotations

_FAULTS_THAT_END_A_REGION = 2


class Visits:
    """The endpoints and regions in which one call has failed."""

    def __init__(self) -> None:
        self._returns: dict[str, float | None] = {}
        self._faults: dict[str, int] = {}
        self._left: set[str] = set()
        self.last: str | None = None
        """The endpoint that failed last."""

    def failed(
        self, endpoint: str, region: str, *, is_fault: bool, leaves_region: bool, returns_at: float | None
    ) -> None:
        """Note a failure.

        A second fault in a region, or one that `leaves_region`, makes the call prefer other regions.
        `returns_at`: monotonic seconds from which the endpoint may be tried again; None is never.
        """
        self._returns[endpoint] = returns_at
        self._faults[region] = self._faults.get(region, 0) + is_fault
        if leaves_region or self._faults[region] >= _FAULTS_THAT_END_A_REGION:
            self._left.add(region)
        self.last = endpoint

    @property
    def is_empty(self) -> bool:
        """Whether this is the call's first attempt."""
        return not self._returns

    def has_tried(self, endpoint: str) -> bool:
        """Whether the call has failed there."""
        return endpoint in self._returns

    def has_left(self, region: str) -> bool:
        """Whether the call prefers other regions."""
        return region in self._left

    def may_return(self, endpoint: str, now: float) -> bool:
        """Whether an endpoint that failed may be tried again."""
        returns_at = self._returns.get(endpoint)
        return returns_at is not None and now >= returns_at

    def next_return(self, now: float) -> float | None:
        """Monotonic seconds at which the next endpoint may be tried again; None when there is none to wait for."""
        return min((at for at in self._returns.values() if at is not None and at > now), default=None)

    def __repr__(self) -> str:
        left = f", left {', '.join(sorted(self._left))}" if self._left else ""
        return f"<Visits {', '.join(self._returns) or 'none'}{left}>"
