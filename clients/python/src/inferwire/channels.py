"""The endpoints of a client as live connections: one channel each, its health, its address, what is known of it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from inferwire.connections import Connection
from inferwire.credentials import AUTHORIZATION_KEY, Credential
from inferwire.errors import DeadlineExceeded
from inferwire.methods import Method
from inferwire.observation import Announcer, BreakerChanged, Observer
from inferwire.policy.breaker import BreakerState
from inferwire.policy.budget import RetryBudget
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.hedge import Hedging
from inferwire.policy.picker import Picked, Picker, Refused
from inferwire.policy.visits import Visits
from inferwire.regions import Endpoint, Regions, host_and_port
from inferwire.settings import ClientConfig
from inferwire.sign_of_life import SignOfLife
from inferwire.tls_files import TlsFiles

_RECEIVE_LIMIT_BYTES = 16 * 1024 * 1024
_SHORTEST_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 2000
_SHORTEST_RESOLVE_S = 1.0
_TLS_FILES_INTERVAL_S = 2.0


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
        self,
        endpoint: Endpoint,
        config: ClientConfig,
        rng: Random,
        changed: Callable[[], None],
        announcer: Announcer,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        """`changed` is called when its health service says something new, and when work on it ends. Without
        `credentials` it speaks no TLS."""
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
        self._rng = rng
        self._options = channel_options(config)
        if credentials is not None:
            self._options += _server_name(endpoint, config)
        self._connection = self._connect(credentials)
        self._left: dict[Connection, asyncio.Task[None]] = {}
        """Connections with older certificates, on which calls are under way."""

    def __repr__(self) -> str:
        return repr(self.state)

    @property
    def sign_of_life(self) -> SignOfLife:
        """For asking whether it still answers."""
        return self._connection.sign_of_life

    def start(self, method: Method, request: Any, **options: Any) -> Any:
        """Start a gRPC call."""
        return self._connection.start(method, request, **options)

    def renew(self, credentials: grpc.ChannelCredentials) -> None:
        """Connect anew for all later calls; those under way end where they are."""
        left, self._connection = self._connection, self._connect(credentials)
        leaving = self._left[left] = asyncio.create_task(left.leave(), name=f"leave {self.endpoint.key}")
        leaving.add_done_callback(lambda _: self._left.pop(left, None))

    def _connect(self, credentials: grpc.ChannelCredentials | None) -> Connection:
        return Connection(
            self.endpoint.target,
            self._options,
            credentials,
            said=self._said,
            rng=self._rng,
            stands_for_many=self.endpoint.stands_for_many,
            name=self.endpoint.key,
        )

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
        self.state.is_cut_off = is_serving is None and (self.state.is_cut_off or self.state.is_serving is not None)
        self.state.is_serving = is_serving
        self.changed()

    async def close(self) -> None:
        """Give up its connections with every call on them."""
        left = dict(self._left)
        for leaving in left.values():
            leaving.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        for connection in (self._connection, *left):
            await connection.close()


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
        credential: Credential | None = None,
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
        self._ids = secrets.token_hex(8)
        self._counter = itertools.count()
        self._picker = Picker(config.failover, self.rng, affinity=config.affinity)
        self._credential = credential
        self._tls = TlsFiles(config.tls) if config.tls.enabled else None
        self._renewing: asyncio.Task[None] | None = None
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
        """Whether every endpoint is known, or was looked for, and the credential is at hand."""
        return self._resolved.is_set() and (self._credential is None or self._credential.at_hand() is not None)

    async def open(self, within_s: float | None = None) -> None:
        """Know the endpoints: fixed addresses at once, names when they are resolved or the connect timeout is over.

        Then have the credential at hand. Raises an InferwireError when there is none in time.
        """
        if not self._is_open:
            self._is_open = True
            if self._tls is not None and self._tls.can_change:
                self._renewing = asyncio.create_task(self._renew_for_ever(self._tls), name="TLS files")
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
        await self.have_credential(within_s)

    async def have_credential(self, within_s: float | None) -> None:
        """Wait until it can be sent. Raises an InferwireError."""
        if self._credential is not None and self._credential.at_hand() is None:
            try:
                async with asyncio.timeout(within_s):
                    await self._credential.get()
            except TimeoutError:
                raise DeadlineExceeded("the deadline passed while a credential was fetched") from None

    def authorization(self, metadata: Sequence[tuple[str, str | bytes]]) -> Sequence[tuple[str, str | bytes]]:
        """Metadata of a call, with the credential unless the caller has put in one."""
        credential = None if self._credential is None else self._credential.at_hand()
        if credential is None or any(name == AUTHORIZATION_KEY for name, _ in metadata):
            return metadata
        return [*metadata, (AUTHORIZATION_KEY, f"Bearer {credential}")]

    def new_request_id(self) -> str:
        """An id that nobody else has: chance drawn once for this client, and a count."""
        return f"{self._ids}{next(self._counter):08x}"

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
        begun = (self._resolving, self._renewing, *self._leaving.values())
        tasks = [task for task in begun if task is not None]
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
        credentials = None if self._tls is None else self._tls.credentials()
        self._links = {
            key: self._links.get(key) or Link(endpoint, self.config, self.rng, self._wake, self.announcer, credentials)
            for key, endpoint in wanted.items()
        }

    async def _renew_for_ever(self, tls: TlsFiles) -> None:
        while True:
            await asyncio.sleep(_TLS_FILES_INTERVAL_S)
            if await asyncio.to_thread(tls.refresh):
                for link in self._links.values():
                    link.renew(tls.credentials())

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


def _server_name(endpoint: Endpoint, config: ClientConfig) -> list[tuple[str, Any]]:
    """Resolved names are connected to by address; certificates are still for the name."""
    name = config.tls.server_name
    if name is None and endpoint.target != endpoint.source:
        resolved = host_and_port(endpoint.source)
        name = None if resolved is None else resolved[0]
    return [] if name is None else [("grpc.ssl_target_name_override", name)]
