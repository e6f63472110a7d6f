"""Every knob of the client: frozen values with units in their names, checked when they are made."""

from __future__ import annotations

import dataclasses
import enum
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from inferwire.settings_reader import Bounds, Problem, SettingsError, check, overrides, read

ENVIRONMENT_PREFIX = "INFERWIRE_CLIENT_"

Count = Annotated[int, Bounds(at_least=1)]
CountOrZero = Annotated[int, Bounds(at_least=0)]
Seconds = Annotated[float, Bounds(above=0)]
SecondsOrZero = Annotated[float, Bounds(at_least=0)]
Share = Annotated[float, Bounds(at_least=0, at_most=1)]


class _Checked:
    """Raises SettingsError from the constructor when a field cannot be used."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)
        problems = [Problem(*conflict) for conflict in self._conflicts()]
        if problems:
            raise SettingsError(problems)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy(_Checked):
    """How often and how soon a call is sent again."""

    max_attempts: Count = 4
    """Attempts in all, the first one included. Free hops and resumes are counted apart."""
    base_delay_s: SecondsOrZero = 0.05
    """Upper bound of the first full-jitter delay; it doubles with each retry."""
    max_delay_s: SecondsOrZero = 2.0
    """Upper bound of any full-jitter delay."""
    max_free_hops: CountOrZero = 3
    """Moves away from lost connections and draining servers that cost no budget; further ones do."""

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        if self.base_delay_s > self.max_delay_s:
            yield "base_delay_s", f"{self.base_delay_s:g} is above max_delay_s = {self.max_delay_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy(_Checked):
    """How many retries all calls of a client together may make."""

    ratio: Share = 0.1
    """Retries earned by each request."""
    reserve: CountOrZero = 100
    """Retries that need not be earned; the reserve refills over `window_s`."""
    window_s: Seconds = 10.0
    """Time in which an empty reserve is full again."""
    cap: CountOrZero = 100
    """Most earned retries that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy(_Checked):
    """When an endpoint is left alone, and for how long."""

    consecutive_failures: Count = 5
    """Failures in a row that open the breaker."""
    error_rate: Share = 0.5
    """Share of failures within `window_s` that opens it too."""
    min_calls: Count = 10
    """Outcomes within `window_s` below which the rate says nothing."""
    window_s: Seconds = 10.0
    """Time over which the rate is taken. A breaker that stays closed this long starts again at `open_base_s`."""
    open_base_s: Seconds = 1.0
    """Time open at first; it doubles with each opening in a row."""
    open_max_s: Seconds = 30.0
    """Longest time open."""
    open_jitter: Share = 0.5
    """Largest part by which a time open is shortened at random."""
    probe_successes: Count = 1
    """Successful probes, one at a time, that close it."""

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        if self.open_base_s > self.open_max_s:
            yield "open_base_s", f"{self.open_base_s:g} is above open_max_s = {self.open_max_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy(_Checked):
    """How an endpoint that refuses for lack of room gets less traffic."""

    accept_multiplier: Annotated[float, Bounds(at_least=1)] = 2.0
    """Requests sent for each one accepted; nothing is held back while more than 1 in this many are accepted."""
    half_life_s: Seconds = 5.0
    """Time after which an answer counts half."""
    min_requests: Count = 10
    """Recent answers below which nothing is held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPolicy(_Checked):
    """How traffic leaves a region and comes back."""

    overprovision: Annotated[float, Bounds(at_least=1)] = 1.4
    """A region keeps all of its traffic while this many times the share of its healthy endpoints is at least 1."""
    return_after_s: SecondsOrZero = 10.0
    """Time for which a region that was down must be well before traffic comes back, while others can take it."""
    slow_start_s: SecondsOrZero = 10.0
    """Time in which a region that returns gets back to its full share; its caches are cold at first."""
    slow_start_share: Share = 0.1
    """Share that it starts with."""
    panic_below: Share = 0.5
    """Part of the traffic below which what all regions together can take is a panic."""
    panic_share: Share = 0.1
    """Share of calls that may probe an open breaker early in a panic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityPolicy(_Checked):
    """How calls find the server that has the beginning of their prompt in its cache."""

    prefix_bytes: CountOrZero = 1024
    """Prompts that are equal in so many first bytes go to the same server of a region; 0 leaves only sessions."""
    bounded_load: Annotated[float, Bounds(at_least=1)] = 1.25
    """Times the mean work of the region's servers above which it is the next one's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy(_Checked):
    """Second attempts beside first ones whose first token is late."""

    enabled: bool = False
    """Whether streams are hedged at all; some prompts are then computed twice."""
    quantile: Share = 0.95
    """Of the times to first token of prompts of like length: a first token later than that is late."""
    min_delay_s: Seconds = 0.1
    """Shortest wait before a hedge."""
    budget_ratio: Share = 0.05
    """Hedges earned by each stream; there is no reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallPolicy(_Checked):
    """After how much silence a stream is taken elsewhere. Any event ends a silence, Progress too."""

    progress_interval_s: Annotated[float, Bounds(at_least=0.1, at_most=60)] | None = 0.5
    """Asked of the server, so that waiting in a queue is no silence; None asks for nothing."""
    first_token_s: Seconds | None = 5.0
    """Longest silence before the first token; None waits for the deadline."""
    prefill_s: Seconds | None = 60.0
    """Longest time from Started to the first token without getting on with the prompt; None trusts Progress."""
    between_tokens_s: Seconds | None = 2.0
    """Longest silence after it; None waits for the deadline."""
    decode_s: Seconds | None = 10.0
    """Longest time between two tokens whatever Progress says, so that a hung engine is left; None trusts Progress."""
    unary_s: Seconds | None = 2.0
    """Wait for a unary reply after which its server must give a sign of life, within as long; None never asks."""

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        for name in ("first_token_s", "between_tokens_s"):
            silence = getattr(self, name)
            if silence and self.progress_interval_s and silence < 2 * self.progress_interval_s:
                yield name, f"{silence:g} is below twice progress_interval_s = {self.progress_interval_s:g}"
        for name, shorter in (("prefill_s", "first_token_s"), ("decode_s", "between_tokens_s")):
            longest, silence = getattr(self, name), getattr(self, shorter)
            if longest and silence and longest < silence:
                yield name, f"{longest:g} is below {shorter} = {silence:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepalivePolicy(_Checked):
    """How a dead connection is noticed."""

    time_s: Seconds = 10.0
    """Silence after which a ping is sent, with or without calls."""
    timeout_s: Seconds = 2.0
    """Time without an acknowledgement by the network after which the connection is lost."""
    ping_timeout_s: Seconds = 2.0
    """Time without an answer to a ping after which it is lost; notices a frozen process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPolicy(_Checked):
    """How connections are kept from others. Files are PEM, and read again when they change."""

    enabled: bool = False
    """Speak TLS; without it, a credential is sent to servers on the same machine only."""
    ca_file: str | None = None
    """CAs whose servers are trusted; None: those that gRPC brings."""
    certificate_file: str | None = None
    """The client's own certificate, for servers that ask for one."""
    key_file: str | None = None
    """Its key."""
    server_name: str | None = None
    """Name in the servers' certificates, where it is not the one in `endpoints`."""

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        for name in ("ca_file", "certificate_file", "key_file", "server_name"):
            if getattr(self, name) is not None and not self.enabled:
                yield name, "has no effect unless `enabled` is true"
        if (self.certificate_file is None) is not (self.key_file is None):
            yield "key_file" if self.key_file is None else "certificate_file", "needed beside the other"


class ResumeMode(enum.Enum):
    """Where an interrupted stream may go on."""

    NEVER = "never"
    SAME_MODEL = "same_model"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy(_Checked):
    """What happens to a stream whose server is lost after Started."""

    mode: ResumeMode = ResumeMode.SAME_MODEL
    """`same_model` goes on where the model's fingerprint is equal; `any` wherever ids mean the same; `never` fails."""
    max_resumes: CountOrZero = 3
    """Resumes of one call."""
    patience_s: SecondsOrZero = 10.0
    """How long one resume looks for a server that takes it, deadline permitting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(_Checked):
    """A place with servers."""

    name: str
    """As in `allowed_regions`, errors and metrics."""
    endpoints: tuple[str, ...]
    """gRPC targets as in `10.0.0.1:50051` or `dns:///infer.eu.svc:50051`; names are resolved and refreshed."""
    priority: CountOrZero = 0
    """Smaller is nearer; regions of equal priority share the traffic."""
    mesh: bool = False
    """A mesh or a proxy balances behind each name: it stays one endpoint that may be tried again. Implied by `xds:`."""

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        if not self.name:
            yield "name", "empty"
        if not self.endpoints:
            yield "endpoints", "empty; list at least one address"
        if not all(self.endpoints):
            yield "endpoints", "contains an empty address"
        for endpoint in self.endpoints:
            if endpoint.startswith(("http://", "https://")):
                yield "endpoints", f"{endpoint!r} is a URL; write the address alone, as in 127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(_Checked):
    """Everything that a client needs to know."""

    regions: tuple[Region, ...]
    """Where servers are."""
    allowed_regions: tuple[str, ...] | None = None
    """The only regions that may see a request; None allows every one in `regions`."""
    deadline_s: Seconds | None = 120.0
    """Deadline of a call that sets none; None leaves it without."""
    connect_timeout_s: Seconds = 1.0
    """Longest wait for a connection."""
    resolve_interval_s: Seconds = 30.0
    """How often host names are resolved again."""
    credential_file: str | None = None
    """File with an API key or token to send with each call; read again when it changes."""
    tls: TlsPolicy = field(default_factory=TlsPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    throttle: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    failover: FailoverPolicy = field(default_factory=FailoverPolicy)
    affinity: AffinityPolicy = field(default_factory=AffinityPolicy)
    hedge: HedgePolicy = field(default_factory=HedgePolicy)
    stall: StallPolicy = field(default_factory=StallPolicy)
    keepalive: KeepalivePolicy = field(default_factory=KeepalivePolicy)
    resume: ResumePolicy = field(default_factory=ResumePolicy)

    @classmethod
    def for_address(cls, address: str, **changes: Any) -> ClientConfig:
        """One server: a region named `default` with one endpoint."""
        return cls(regions=(Region(name="default", endpoints=(address,)),), **changes)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> ClientConfig:
        """Settings as TOML, JSON or YAML would hold them. Raises SettingsError that names every bad field."""
        return read(cls, raw)

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str]) -> ClientConfig:
        """Settings from a file, or from TOML text: a string with `=` or a line break is text, any other a path.

        Raises SettingsError that names every bad field, or OSError.
        """
        return read(cls, _toml(source))

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> ClientConfig:
        """Settings from INFERWIRE_CLIENT_… variables, over the TOML file that INFERWIRE_CLIENT_CONFIG names.

        `INFERWIRE_CLIENT_REGIONS` lists regions from nearest to farthest: `eu=10.0.0.1:50051,10.0.0.2:50051;us=…`.
        Any other field is its path in capitals, as in `INFERWIRE_CLIENT_RETRY_MAX_ATTEMPTS`.
        Raises SettingsError that names every bad variable, or OSError.
        """
        variables = os.environ if environment is None else environment
        file, regions = f"{ENVIRONMENT_PREFIX}CONFIG", f"{ENVIRONMENT_PREFIX}REGIONS"
        raw = _toml(Path(variables[file])) if file in variables else {}
        found, origins = overrides(cls, variables, ENVIRONMENT_PREFIX, apart=(file, regions))
        if regions in variables:
            found["regions"] = _region_list(regions, variables[regions])
            origins["regions"] = regions
        try:
            return read(cls, _merged(raw, found))
        except SettingsError as error:
            raise SettingsError([_renamed(problem, origins) for problem in error.problems]) from None

    def with_changes(self, **changes: Any) -> ClientConfig:
        """A copy that differs in the given fields."""
        return dataclasses.replace(self, **changes)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        if not self.regions:
            yield "regions", "empty; list at least one region"
        for name, times in Counter(region.name for region in self.regions).items():
            if times > 1:
                yield "regions", f"{name!r} is listed {times} times"
        for target, times in Counter(target for region in self.regions for target in region.endpoints).items():
            if times > 1:
                yield "regions", f"endpoint {target!r} is listed {times} times"
        yield from self._residency_conflicts()

    def _residency_conflicts(self) -> Iterator[tuple[str, str]]:
        if self.allowed_regions is None:
            return
        known = [region.name for region in self.regions]
        if not self.allowed_regions:
            yield "allowed_regions", "empty; leave it out to allow every region"
        for name in self.allowed_regions:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                yield "allowed_regions", f"{name!r} is no region" + (f"; did you mean {near[0]!r}?" if near else "")


def _toml(source: str | os.PathLike[str]) -> dict[str, object]:
    is_text = isinstance(source, str) and ("=" in source or "\n" in source)
    text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        name = "TOML" if is_text else str(source)
        raise SettingsError([Problem(name, str(error))]) from None


def _region_list(variable: str, text: str) -> list[object]:
    regions: list[object] = []
    for priority, part in enumerate(one for one in text.split(";") if one.strip()):
        name, equals, endpoints = part.partition("=")
        if not equals:
            raise SettingsError([Problem(variable, f"{part.strip()!r}: expected region=address,address")])
        regions.append({"name": name.strip(), "priority": priority, "endpoints": endpoints})
    return regions


def _merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _renamed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    top = problem.field.partition("[")[0]
    if problem.field in origins:
        return Problem(origins[problem.field], problem.message)
    if top in origins:
        return Problem(origins[top] + problem.field[len(top) :], problem.message)
    return problem
