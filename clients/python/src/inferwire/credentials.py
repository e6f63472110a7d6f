"""What a client says it is, with each call: a fixed text, a file that is read again, or a function that fetches it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inferwire.errors import InferwireError, LocalReason, Unauthenticated
from inferwire.regions import is_local
from inferwire.settings import ClientConfig
from inferwire.settings_reader import Problem, SettingsError

AUTHORIZATION_KEY = "authorization"
_FILE_INTERVAL_S = 1.0
_EARLY_SHARE = 0.1
_MOST_EARLY_S = 60.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Token:
    """A credential that ends."""

    text: str = field(repr=False)
    expires_at: float | None = None
    """Seconds since the epoch; None: never."""


FetchToken = Callable[[], Token | Awaitable[Token]]
CredentialSource = str | Path | FetchToken
"""An API key or token; a file that holds one; or a function that gives a new one, blocking or not."""


class Credential(Protocol):
    """The credential of one client."""

    def at_hand(self) -> str | None:
        """What can be sent now; None when it has to be waited for."""

    async def get(self) -> str:
        """What can be sent. Raises an InferwireError."""


def credential_source(config: ClientConfig, given: CredentialSource | None) -> CredentialSource | None:
    """Where the credential comes from: what is given, else the settings' file. Raises SettingsError when it would go
    to another machine in plaintext."""
    source = given if given is not None or config.credential_file is None else Path(config.credential_file)
    if source is not None and not config.tls.enabled:
        allowed = [r for r in config.regions if config.allowed_regions is None or r.name in config.allowed_regions]
        exposed = [target for region in allowed for target in region.endpoints if not is_local(target)]
        if exposed:
            raise SettingsError([Problem("tls.enabled", f"needed to send a credential to {exposed[0]}")])
    return source


def credential_from(source: CredentialSource) -> Credential:
    """A credential for one event loop."""
    if isinstance(source, str):
        return _Fixed(source)
    return _OfFile(source) if isinstance(source, Path) else FetchedCredential(source)


class _Fixed:
    def __init__(self, text: str) -> None:
        self._text = text

    def at_hand(self) -> str | None:
        return self._text

    async def get(self) -> str:
        return self._text


class _OfFile:
    """Looked at again a second after it was last read; while it cannot be read, the old text stays."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._text: str | None = None
        self._read_at = float("-inf")

    def at_hand(self) -> str | None:
        now = self._clock()
        if now - self._read_at >= _FILE_INTERVAL_S:
            self._read_at = now
            with suppress(OSError, ValueError):
                self._text = self._path.read_text(encoding="ascii").strip() or self._text
        return self._text

    async def get(self) -> str:
        text = self.at_hand()
        if text is None:
            raise _missing(f"{self._path} holds none or cannot be read")
        return text


class FetchedCredential:
    """Fetched once for all who need it, and again shortly before it ends, while the old one is still sent."""

    def __init__(self, fetch: FetchToken, clock: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token: Token | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._renew_at = float("-inf")

    def at_hand(self) -> str | None:
        now = self._clock()
        token = self._token
        if token is None or (token.expires_at is not None and now >= token.expires_at):
            return None
        if now >= self._renew_at:
            # Whatever becomes of it, the next attempt is not made at once.
            self._renew_at = now + _RETRY_S
            self._begin()
        return token.text

    async def get(self) -> str:
        text = self.at_hand()
        if text is None:
            await asyncio.shield(self._begin())
            text = self._token.text if self._token is not None else ""
        return text

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._renew(), name="fetch a credential")
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    async def _renew(self) -> None:
        try:
            if inspect.iscoroutinefunction(self._fetch):
                token = await self._fetch()
            else:
                token = await asyncio.to_thread(self._fetch)
                token = await token if inspect.isawaitable(token) else token
        except Exception as error:
            # Its words may hold what it sent.
            raise _missing(f"fetching one failed with {type(error).__name__}") from error
        now = self._clock()
        self._token, self._renew_at = token, float("inf")
        if token.expires_at is not None:
            left_s = max(0.0, token.expires_at - now)
            self._renew_at = token.expires_at - min(_MOST_EARLY_S, left_s * _EARLY_SHARE)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled():
            task.exception()


def _missing(why: str) -> InferwireError:
    return Unauthenticated(f"there is no credential to send: {why}", reason=LocalReason.NO_CREDENTIAL)
