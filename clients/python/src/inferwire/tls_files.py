"""A client's PEM files: read again while it runs, so that new connections use the newest that fit together."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from inferwire.settings import TlsPolicy
from inferwire.settings_reader import Problem, SettingsError

_log = logging.getLogger("inferwire.client")

_Contents = tuple[bytes | None, bytes | None, bytes | None]


class TlsFiles:
    """Raises SettingsError for files that cannot be used."""

    def __init__(self, policy: TlsPolicy) -> None:
        self._policy = policy
        self._current = self._seen = self._read_or_raise()
        problem = self._problem()
        if problem:
            raise SettingsError([Problem("tls", problem)])

    @property
    def can_change(self) -> bool:
        """Whether there are files at all."""
        return any(self._current)

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is opened now."""
        ca, certificate, key = self._current
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def refresh(self) -> bool:
        """Whether there is something new that can be used. Blocks."""
        try:
            contents = self._read()
            if contents == self._seen:
                return False
            problem = self._problem()
            if self._read() != contents:
                return False
        except OSError:
            # In the middle of being replaced, perhaps: the next look tells.
            return False
        self._seen = contents
        if problem:
            _log.warning("the changed TLS files cannot be used, the old ones stay: %s", problem)
            return False
        self._current = contents
        return True

    def _read(self) -> _Contents:
        policy = self._policy
        ca, certificate, key = (
            Path(name).read_bytes() if name else None
            for name in (policy.ca_file, policy.certificate_file, policy.key_file)
        )
        return ca, certificate, key

    def _read_or_raise(self) -> _Contents:
        try:
            return self._read()
        except OSError as error:
            raise SettingsError([Problem("tls", f"{error.filename} cannot be read: {error.strerror}")]) from None

    def _problem(self) -> str:
        """What is wrong with the files as they are; empty when nothing is."""
        policy = self._policy
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if policy.ca_file:
                context.load_verify_locations(cafile=policy.ca_file)
        except (ssl.SSLError, OSError):
            return f"{policy.ca_file} is no PEM of certificates"
        try:
            if policy.certificate_file and policy.key_file:
                context.load_cert_chain(policy.certificate_file, policy.key_file, password=b"")
        except (ssl.SSLError, OSError):
            return f"{policy.certificate_file} and {policy.key_file} are no PEM of a certificate and its key"
        return ""
