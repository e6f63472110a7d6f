"""The endpoints of a client as live connections: one channel each, its health, its address, what is known of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from inferwire.health_watch import watch_connection, watch_health
from inferwire.methods import Method
from inferwire.observation import Announcer, BreakerChanged, Observer
from inferwire.policy.breaker import BreakerState
from inferwire.policy.budget import RetryBudget
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.hedge import Hedging
from inferwire.policy.picker import Picked, Picker, Refused
from inferwire.policy.visits import Visits
from inferwire.regions import Endpoint, Regions
from inferwire.settings import ClientConfig
from inferwire.sign_of_life import SignOfLife

_RECEIVE_LIMIT_BYTES = 16 * 1024 * 1024
_SHORTEST_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 2000
_SHORTEST_RESOLVE_S = 1.0


def channel_options(config: ClientConfig) -> list[tuple[str, Any]]:
    """gRPC options of a channel to one endpoint."""
    keepalive = config.keepalive
    return [
        ("grpc.keepalive_time_ms", round(keepalive.time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Without it a frozen server goes unnoticed for a minute: its kernel still acknowledges.
        ("grpc.http2.ping_timeout_ms", round(keepalive.ping_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Also the longest time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", round(config.connect_timeout_s * 1000)),
        ("grpc.initial_reconnect_backoff_ms", _SHORTEST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
        ("grpc.max_receive_message_length", _RECEIVE_LIMIT_BYTES),
        # Retries are decided here, on more than a status code.
        ("grpc.enable_retries", 0),
        # A stalled reader is noticed by the server after kilobytes, not megabytes.
        ("grpc.http2.bdp_probe", 0),
        # Each endpoint has a connection of its own, also where a process has several clients.
        ("grpc.use_local_subchannel_pool", 1),
    ]


class Link:
    """One endpoint: its channel and what is known of it."""

    def __init__(
        self, endpoint: Endpoint, config: ClientConfig, rng: Random, changed: Callable[[], None], announcer: Announcer
    ) -> None:
        """`changed` is called when its health service says something new, and when work on it ends."""
        self.endpoint = endpoint
        self.changed = changed
        self.state = EndpointState(
            endpoint.key,
            region=endpoint.region,
            priority=endpoint.priority,
            breaker=config.breaker,
            throttle=config.throttle,
            rng=rng,
            stands_for_many=endpoint.stands_for_many,
            breaker_changed=self._breaker_changed,
        )
        self._announcer = announcer
        self.is_retiring = False
        """Whether its address is gone, so that it should close after its last call."""
        self._callables: dict[Method, Any] = {}
        self.channel = grpc.aio.insecure_channel(endpoint.target, options=channel_options(config))
        self.sign_of_life = SignOfLife(self.channel)
        # What one of many servers says of itself is no reason to leave them all.
        is_name = endpoint.stands_for_many
        watch = watch_connection(self.channel, self._said) if is_name else watch_health(self.channel, self._said, rng)
        self._watching = asyncio.create_task(watch, name=f"health {endpoint.key}")

    def __repr__(self) -> str:
        return repr(self.state)

    def callable_for(self, method: Method) -> Any:
        """The channel's multi-callable for an RPC."""
        known = self._callables.get(method)
        if known is None:
            make = self.channel.unary_stream if method.is_stream else self.channel.unary_unary
            known = self._callables[method] = make(method.path, method.serialize, method.deserialize)
        return known

    def _breaker_changed(self, state: BreakerState) -> None:
        change = BreakerChanged(region=self.endpoint.region, endpoint=self.endpoint.target, state=state)
        self._announcer.breaker_changed(change)
        self.changed()

    def work_ended(self) -> None:
        """An attempt is over; whoever waits for the last one hears of it."""
        self.state.end()
        if self.is_retiring and not self.state.outstanding:
            self.changed()

    def _said(self, is_serving: bool | None) -> None:
        self.state.is_serving = is_serving
        self.changed()

    async def close(self) -> None:
        """End its health watch, then its channel with every call on it."""
        self._watching.cancel()
        with suppress(asyncio.CancelledError):
            await self._watching
        await self.sign_of_life.close()
        await self.channel.close()


class Fleet:
    """Every endpoint of the allowed regions, for one event loop."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        observer: Observer | None = None,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lookup: Callable[[str, int], Awaitable[list[str]]] | None = None,
    ) -> None:
        """`lookup` gives the addresses of a host and port, each as `1.2.3.4:50051` or `[::1]:50051`, or raises OSError;
        the system's unless given."""
        self.config = config
        self.rng = rng or Random()  # noqa: S311 spreading load and delays needs no secrets
        self.clock = clock
        self.sleep = sleep
        self._lookup = lookup or _system_lookup
        self.announcer = Announcer(observer)
        self.budget = RetryBudget(config.budget)
        self._regions = Regions(config)
        self.hedging = Hedging(config.hedge)
        self._picker = Picker(config.failover, self.rng, affinity=config.affinity)
        self._links: dict[str, Link] = {}
        self._is_open = self._is_closed = False
        self._resolving: asyncio.Task[None] | None = None
        self._resolved = asyncio.Event()
        self._leaving: dict[Link, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._is_doubtful = asyncio.Event()
        self._is_news = True
        """Whether an endpoint's health or breaker has changed since the regions were last looked at."""

    def __repr__(self) -> str:
        return f"<Fleet {self._regions!r}, {self.budget!r}, {list(self._links.values())!r}>"

    @property
    def links(self) -> tuple[Link, ...]:
        """Nearest region first."""
        return tuple(self._links.values())

    @property
    def is_ready(self) -> bool:
        """Whether every endpoint is known, or was looked for."""
        return self._resolved.is_set()

    async def open(self, within_s: float | None = None) -> None:
        """Know the endpoints: fixed addresses at once, names when they are resolved or the connect timeout is over."""
        if not self._is_open:
            self._is_open = True
            self._refresh_links()
            if self._regions.unresolved():
                self._resolving = asyncio.create_task(self._resolve_for_ever(), name="resolve")
            else:
                self._resolved.set()
        if not self._resolved.is_set():
            patience_s = self.config.connect_timeout_s
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s if within_s is None else min(patience_s, within_s)):
                    await self._resolved.wait()

    def pick(
        self,
        visits: Visits,
        *,
        may_return: bool = False,
        fits_within_s: float | None = None,
        key: bytes | None = None,
    ) -> tuple[Link, Picked] | Refused:
        """Where an attempt goes."""
        states, shares, now = self._outlook()
        picked = self._picker.pick(
            states, shares, visits, now, may_return=may_return, fits_within_s=fits_within_s, key=key
        )
        return picked if isinstance(picked, Refused) else (self._links[picked.endpoint.key], picked)

    def pick_beside(self, link: Link) -> tuple[Link, Picked] | None:
        """Where a second attempt goes beside one at `link` that is slow; None where nobody has room to spare."""
        states, shares, now = self._outlook()
        picked = self._picker.pick_beside(link.state, states, shares, now)
        return None if picked is None else (self._links[picked.endpoint.key], picked)

    def _outlook(self) -> tuple[list[EndpointState], Mapping[str, float], float]:
        now = self.clock()
        states = [link.state for link in self._links.values()]
        if self._is_news:
            self._is_news = False
            self._regions.observe(Counter(state.region for state in states if state.is_healthy), now)
        return states, self._regions.shares(now), now

    def pick_again(self, link: Link) -> tuple[Link, Picked] | Refused:
        """That endpoint, if it takes calls."""
        picked = self._picker.pick_only(link.state, self.clock())
        return picked if isinstance(picked, Refused) else (link, picked)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when something about the endpoints is so."""
        while not condition():
            if self._is_closed:
                raise RuntimeError("this channel is closed")
            await self._changed.wait()

    async def close(self) -> None:
        """Give up every connection, those of addresses that are gone too."""
        self._is_closed = True
        self._wake()
        tasks = [task for task in (self._resolving, *self._leaving.values()) if task is not None]
        for task in tasks:
            task.cancel()
        links = [*self._links.values(), *self._leaving]
        self._links, self._leaving = {}, {}
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    def lost(self) -> None:
        """A connection was lost: names may stand for other addresses now."""
        self._is_doubtful.set()

    def _wake(self) -> None:
        self._is_news = True
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _resolve_for_ever(self) -> None:
        patience_s = min(_SHORTEST_RESOLVE_S, self.config.resolve_interval_s)
        while True:
            self._is_doubtful.clear()
            await asyncio.gather(*(self._resolve(source, *name) for source, name in self._regions.unresolved().items()))
            self._refresh_links()
            self._resolved.set()
            # Not more often, however many connections are lost.
            await asyncio.sleep(patience_s)
            if self._links:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.config.resolve_interval_s - patience_s):
                        await self._is_doubtful.wait()

    async def _resolve(self, source: str, host: str, port: int) -> None:
        # A name that cannot be resolved now keeps the addresses it had.
        with suppress(OSError):
            self._regions.resolve(source, await self._lookup(host, port))

    def _refresh_links(self) -> None:
        wanted = {endpoint.key: endpoint for endpoint in self._regions.endpoints}
        for key in self._links.keys() - wanted.keys():
            link = self._links.pop(key)
            self._leaving[link] = asyncio.create_task(self._retire(link), name=f"retire {key}")
        self._is_news = True
        self._links = {
            key: self._links.get(key) or Link(endpoint, self.config, self.rng, self._wake, self.announcer)
            for key, endpoint in wanted.items()
        }

    async def _retire(self, link: Link) -> None:
        """Close a channel whose address is gone once its calls have ended."""
        link.is_retiring = True
        await self.until(lambda: not link.state.outstanding)
        await link.close()
        self._leaving.pop(link, None)


async def _system_lookup(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, proto=6)
    return [_numeric(str(at[0]), port) for *_, at in found]


def _numeric(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
