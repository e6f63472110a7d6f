"""Regions and their endpoints: which may serve, in which order, and how each region fares."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inferwire.settings import ClientConfig, FailoverPolicy


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One server that may be tried."""

    priority: int
    """Of its region; smaller is nearer."""
    region: str
    target: str
    """gRPC target with a fixed address, or a name that is not ours to resolve."""
    source: str
    """The target in the settings that this endpoint stands for."""
    stands_for_many: bool = False
    """Whether something else balances behind it, so that another attempt may reach another server."""

    @property
    def key(self) -> str:
        """Unique in a client."""
        return f"{self.region}/{self.target}"


def host_and_port(target: str) -> tuple[str, int] | None:
    """The name to resolve for a target, or None when its address is fixed or belongs to another resolver.

    `dns:///host:port` and `host:port` are ours; numeric addresses, `unix:`, `xds:` and other schemes are not.
    """
    host, colon, port = target.removeprefix("dns:").removeprefix("///").rpartition(":")
    if not colon or not port.isdigit() or not host or _is_numeric(host) or set(host) & set(":/"):
        return None
    return host, int(port)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class RegionHealth:
    """Whether a region can serve, derived from its endpoints, and the share that it may take."""

    def __init__(self, name: str, policy: FailoverPolicy) -> None:
        self.name = name
        self._policy = policy
        self._has_served = False
        self._is_down = False
        self._returned_at: float | None = None
        self._available = 0
        self._total = 0

    def observe(self, available: int, total: int, now: float) -> None:
        """Note how many of the region's endpoints may serve; `now` in monotonic seconds."""
        self._available, self._total = available, total
        if available:
            # What serves for the first time does not return: names that are still being resolved are no outage.
            if self._is_down and self._has_served:
                self._returned_at = now
            self._has_served, self._is_down = True, False
        else:
            self._is_down, self._returned_at = True, None

    def share(self, now: float) -> float:
        """The part of the traffic meant for this region that it should get, 0 to 1; it grows after a return."""
        if self._returned_at is None:
            return 1.0
        since = now - self._returned_at
        if since >= self._policy.slow_start_s:
            return 1.0
        first = self._policy.slow_start_share
        return first + (1.0 - first) * since / self._policy.slow_start_s

    @property
    def is_down(self) -> bool:
        """Whether no endpoint could serve when last observed."""
        return self._is_down

    def __repr__(self) -> str:
        state = "down" if self._is_down else "up" if self._returned_at is None else "returned"
        return f"<RegionHealth {self.name} {state}, {self._available} of {self._total} endpoints>"


class Regions:
    """The allowed regions, nearest first. A region that is not allowed does not exist here."""

    def __init__(self, config: ClientConfig) -> None:
        allowed = config.allowed_regions
        kept = [region for region in config.regions if allowed is None or region.name in allowed]
        self._regions = sorted(kept, key=lambda region: region.priority)
        self._health = {region.name: RegionHealth(region.name, config.failover) for region in self._regions}
        self._names: dict[str, tuple[str, int]] = {}
        """Configured targets that are names for us to resolve, with host and port."""
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        """Configured target to what it stands for now."""
        for region in self._regions:
            for source in region.endpoints:
                name = None if region.mesh else host_and_port(source)
                if name is not None:
                    self._names[source], self._endpoints[source] = name, ()
                else:
                    is_mesh = region.mesh or source.startswith("xds:")
                    self._endpoints[source] = (Endpoint(region.priority, region.name, source, source, is_mesh),)

    @property
    def names(self) -> tuple[str, ...]:
        """Allowed regions, nearest first."""
        return tuple(region.name for region in self._regions)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every endpoint known now, nearest region first; an address that two names share is there once."""
        known = (
            endpoint for region in self._regions for source in region.endpoints for endpoint in self._endpoints[source]
        )
        return tuple({endpoint.key: endpoint for endpoint in known}.values())

    def unresolved(self) -> Mapping[str, tuple[str, int]]:
        """Configured targets that are names, with the host and port to resolve."""
        return self._names

    def resolve(self, source: str, addresses: Iterable[str]) -> None:
        """Set the addresses, each as `1.2.3.4:50051` or `[::1]:50051`, that a configured name stands for."""
        region = next(region for region in self._regions if source in region.endpoints)
        self._endpoints[source] = tuple(
            Endpoint(region.priority, region.name, target, source) for target in dict.fromkeys(addresses)
        )

    def observe(self, available: Mapping[str, int], now: float) -> None:
        """Note per region how many endpoints may serve; a region that is left out has none."""
        for region in self._regions:
            total = sum(len(self._endpoints[source]) for source in region.endpoints)
            self._health[region.name].observe(available.get(region.name, 0), total, now)

    def shares(self, now: float) -> dict[str, float]:
        """Per region the share of the traffic meant for it that it should get, 0 to 1."""
        return {name: health.share(now) for name, health in self._health.items()}

    def __repr__(self) -> str:
        return f"<Regions {', '.join(repr(health) for health in self._health.values())}>"
