"""Whom a server may be open to: on its own machine everybody, elsewhere only those it can tell apart."""

from __future__ import annotations

import ipaddress

from inferwire_server.settings import Settings, SettingsError

_UNIX = "unix:"
_TOGETHER = (("tls_certificate", "tls_key"), ("api_keys", "api_keys_secret"))
_NEEDS = (
    ("tls_client_ca", "tls_certificate"),
    ("certificates", "tls_client_ca"),
    ("trusted_proxies", "tls_client_ca"),
)


def is_unix(host: str) -> bool:
    """Whether `host` names a socket file."""
    return host.startswith(_UNIX)


def is_local(host: str) -> bool:
    """Whether only processes of this machine can reach it."""
    if is_unix(host) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def network_host(host: str) -> str:
    """Where the pages beside the service listen: a socket file's, on this machine."""
    return "127.0.0.1" if is_unix(host) else host.strip("[]")


def authenticates(settings: Settings) -> bool:
    """Whether callers have to say who they are."""
    return bool(settings.api_keys or settings.jwt or settings.certificates)


def is_insecure(settings: Settings) -> bool:
    """Whether other machines are served without TLS or without asking who they are."""
    return not is_local(settings.host) and bool(_missing(settings))


def check_exposure(settings: Settings) -> None:
    """Raise SettingsError for security settings that contradict each other, and for an open server that is not
    meant to be one."""

    def has(name: str) -> bool:
        return bool(getattr(settings, name))

    lines = []
    for pair in _TOGETHER:
        given = [name for name in pair if has(name)]
        if len(given) == 1:
            lines.append(f"{given[0]}: needs {next(name for name in pair if name not in given)} too")
    lines += [f"{name}: needs {other}" for name, other in _NEEDS if has(name) and not has(other)]
    if settings.jwt is not None and not _may_be_fetched(settings.jwt.jwks):
        lines.append("jwt.jwks: must be a file, or an https:// address (http:// on this machine only)")
    if is_insecure(settings) and not settings.insecure:
        lines.append(
            f"host: {settings.host} can be reached from other machines, which needs "
            f"{' and '.join(_missing(settings))}; see docs/security.md, or say --insecure"
        )
    if lines:
        raise SettingsError("\n".join(lines))


def _missing(settings: Settings) -> list[str]:
    missing = []
    if not settings.tls_certificate:
        missing.append("TLS (tls_certificate, tls_key)")
    if not authenticates(settings):
        missing.append("a way to authenticate (api_keys, jwt, or tls_client_ca with certificates)")
    return missing


def _may_be_fetched(source: str) -> bool:
    scheme, separator, rest = source.partition("://")
    if not separator or scheme == "https":
        return True
    host = rest.partition("/")[0].rpartition(":")[0] or rest.partition("/")[0]
    return scheme == "http" and "@" not in host and is_local(host)
