"""What the security settings amount to: identities, certificates, and their renewal while the server runs.

Parsers of certificates and tokens take time to import: they are imported where they are configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import structlog

from inferwire_server.observability.faults import record_fault
from inferwire_server.observability.security_metrics import SecurityMetrics
from inferwire_server.rpc.doorkeeper import Doorkeeper
from inferwire_server.security.api_keys import ApiKeys, load_key_ring
from inferwire_server.security.authorisation import Authorisation
from inferwire_server.security.client_certificates import ClientCertificates
from inferwire_server.security.exposure import authenticates, check_exposure, is_insecure, is_local
from inferwire_server.security.identity import Identity
from inferwire_server.security.watched_files import WatchedFiles
from inferwire_server.settings import JwtSettings, Settings, SettingsError

if TYPE_CHECKING:
    from inferwire_server.security.certificates import Certificates
    from inferwire_server.security.tokens import Tokens

T = TypeVar("T")
_log = structlog.get_logger("inferwire.security")


class Renewed(Protocol):
    """Something that is read again from time to time; `refresh` blocks, and says whether there was something new."""

    @property
    def interval_s(self) -> float: ...

    def refresh(self) -> bool: ...


class Security:
    """Raises SettingsError for settings that contradict each other or name files that cannot be used."""

    def __init__(self, settings: Settings, metrics: SecurityMetrics, model_names: tuple[str, ...]) -> None:
        check_exposure(settings)
        self.is_insecure = is_insecure(settings)
        """Whether other machines are served without TLS or without asking who they are."""
        self._host = settings.host
        self._metrics = metrics
        self._renewed: list[Renewed] = []
        self._certificates: WatchedFiles[Certificates] | None = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._certificates = self._watched_certificates(
                settings.tls_certificate, settings.tls_key, settings.tls_client_ca
            )
        authorisation = Authorisation(settings.roles, model_names)
        identity = self._identity(settings) if authenticates(settings) else None
        self.doorkeeper = Doorkeeper(authorisation, identity, is_local=is_local(settings.host))

    def credentials(self) -> grpc.ServerCredentials | None:
        """Of the port; None for one without TLS."""
        certificates = self._certificates
        if certificates is None:
            return None
        from inferwire_server.rpc.credentials import server_credentials

        return server_credentials(lambda: certificates.current)

    def begin(self) -> list[asyncio.Task[None]]:
        """Say what is open, and read everything again from time to time."""
        if self.is_insecure:
            _log.warning("insecure", host=self._host, reason="other machines are served without TLS or authentication")
        return [asyncio.create_task(self._renew(each), name="renew") for each in self._renewed]

    async def _renew(self, each: Renewed) -> None:
        while True:
            try:
                if await asyncio.to_thread(each.refresh) and each is self._certificates:
                    self._show_expiries(self._certificates.current)
            except Exception as fault:  # noqa: BLE001 whoever stops looking lets a revoked key in for ever
                record_fault(fault)
            await asyncio.sleep(each.interval_s)

    def _identity(self, settings: Settings) -> Identity:
        certificates = ClientCertificates(settings.certificates, settings.trusted_proxies)
        return Identity(
            api_keys=self._api_keys(settings.api_keys, settings.api_keys_secret),
            tokens=None if settings.jwt is None else self._tokens(settings.jwt),
            certificates=certificates if settings.certificates else None,
        )

    def _api_keys(self, keys: Path | None, secret: Path | None) -> ApiKeys | None:
        if keys is None or secret is None:
            return None
        files = [keys, secret]
        failed = self._metrics.reload_failed
        watched = _usable("api_keys", lambda: WatchedFiles("api_keys", files, load_key_ring, failed))
        self._renewed.append(watched)
        return ApiKeys(lambda: watched.current)

    def _tokens(self, settings: JwtSettings) -> Tokens:
        from inferwire_server.security.key_sets import KeySet
        from inferwire_server.security.tokens import Tokens

        keys = KeySet(
            settings.jwks, settings.algorithms, refresh_s=settings.refresh, failed=self._metrics.reload_failed
        )
        # A file has to be there; an address may answer later.
        if "://" not in settings.jwks and not keys.refresh():
            raise SettingsError(f"jwt.jwks: {settings.jwks} cannot be read or has no usable key")
        self._renewed.append(keys)
        return Tokens(settings, keys)

    def _watched_certificates(self, certificate: Path, key: Path, client_ca: Path | None) -> WatchedFiles[Certificates]:
        from inferwire_server.security.certificates import watch_certificates

        failed = self._metrics.reload_failed
        watched = _usable("tls_certificate", lambda: watch_certificates(certificate, key, client_ca, failed))
        self._renewed.append(watched)
        self._show_expiries(watched.current)
        return watched

    def _show_expiries(self, certificates: Certificates) -> None:
        self._metrics.certificate_expires("server", certificates.expires_at)
        if certificates.client_ca_expires_at is not None:
            self._metrics.certificate_expires("client_ca", certificates.client_ca_expires_at)


def _usable(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except OSError as error:
        raise SettingsError(f"{name}: {error.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
