"""Regions and their endpoints: which may serve, in which order, and how each region fares."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from inferwire.settings import ClientConfig, FailoverPolicy

_ROUNDING = 1e-9
_priority = attrgetter("priority")


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


def is_local(target: str) -> bool:
    """Whether a target is on this machine whatever a resolver says."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    plain = target.removeprefix("dns:").removeprefix("///").removeprefix("ipv4:").removeprefix("ipv6:")
    host = plain.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host == "localhost" or (_is_numeric(host) and ipaddress.ip_address(host).is_loopback)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def fill(levels: Sequence[float]) -> list[float]:
    """For each priority level, nearest first, the chance with which a call that has come so far stays there.

    `levels` holds the part of the traffic, 0 to 1, that each can take. As Envoy does it: the nearest is filled first
    and the rest spills over; where all together cannot take everything, each gets its part of it.
    """
    total = sum(levels)
    scale = 1.0 / total if 0.0 < total < 1.0 else 1.0
    stays, left = [], 1.0
    for ability in levels:
        load = min(left, ability * scale)
        stays.append(1.0 if load >= left - _ROUNDING else load / left)
        left -= load
    return stays


class RegionHealth:
    """Whether a region can serve, derived from its endpoints, and how far it is trusted after it was down."""

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

    def trust(self, now: float) -> float:
        """The part of what it can take that it should get, 0 to 1: nothing at first after a return, then more and more.

        `now` in monotonic seconds.
        """
        if self._returned_at is None:
            return 1.0
        since = now - self._returned_at - self._policy.return_after_s
        if since < 0.0:
            return 0.0
        if since >= self._policy.slow_start_s:
            self._returned_at = None
            return 1.0
        first = self._policy.slow_start_share
        return first + (1.0 - first) * since / self._policy.slow_start_s

    @property
    def available(self) -> int:
        """Endpoints that may serve."""
        return self._available

    @property
    def total(self) -> int:
        """Endpoints that are known."""
        return self._total

    @property
    def is_returning(self) -> bool:
        """Whether its trust changes with time alone."""
        return self._returned_at is not None

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
        self._overprovision = config.failover.overprovision
        self._shares: dict[str, float] | None = None
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
        self._shares = None

    def shares(self, now: float) -> Mapping[str, float]:
        """Per region the chance, 0 to 1, with which a call that has come to its priority level may stay in it."""
        if self._shares is None or any(health.is_returning for health in self._health.values()):
            self._shares = self._spill(now)
        return self._shares

    def _spill(self, now: float) -> dict[str, float]:
        levels = [[self._health[each.name] for each in level] for _, level in groupby(self._regions, _priority)]
        trusts = {health.name: health.trust(now) for health in self._health.values()}
        abilities = [self._ability(level) for level in levels]
        trusted = [ability * _mean_trust(level, trusts) for ability, level in zip(abilities, levels, strict=True)]
        if not sum(abilities):
            return dict.fromkeys(trusts, 1.0)
        # Where the others cannot take everything, nobody waits to be trusted.
        is_enough = sum(trusted) >= 1.0 - _ROUNDING
        stays = fill(trusted if is_enough else abilities)
        shares = {}
        for stay, level in zip(stays, levels, strict=True):
            most = max(trusts[each.name] for each in level)
            for each in level:
                shares[each.name] = stay * (trusts[each.name] / most if most and is_enough else 1.0)
        return shares

    def _ability(self, level: Sequence[RegionHealth]) -> float:
        total = sum(each.total for each in level)
        healthy = sum(each.available for each in level) / total if total else 0.0
        return min(1.0, self._overprovision * healthy)

    def __repr__(self) -> str:
        return f"<Regions {', '.join(repr(health) for health in self._health.values())}>"


def _mean_trust(level: Sequence[RegionHealth], trusts: Mapping[str, float]) -> float:
    """Weighed by the endpoints that may serve."""
    available = sum(each.available for each in level)
    return sum(each.available * trusts[each.name] for each in level) / available if available else 0.0
