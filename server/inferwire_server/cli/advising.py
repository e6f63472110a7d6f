"""What to do about a call that failed."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferwire import InferwireError

    from inferwire_server.cli.reaching import Reach

_CONNECT_LIMIT_S = 1.0


def advice(error: InferwireError, reach: Reach) -> str:
    """The error in words, with the next step where there is one."""
    if error.code == "UNAVAILABLE" and not error.reason:
        return _unreachable(reach)
    if error.code == "UNAUTHENTICATED":
        return f"{error.message}{_credential_advice(error.reason, reach)}"
    hint = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s else ""
    where = f" [error id {error.error_id}]" if error.error_id else ""
    return f"{error.message}{hint}{where}"


def _credential_advice(reason: str, reach: Reach) -> str:
    if reason == "NO_CREDENTIAL":
        return ""
    if reach.credential_file is None:
        return "; name a file that holds an API key or token by --credential-file"
    return f"; get a new one and put it into {reach.credential_file}"


def _unreachable(reach: Reach) -> str:
    if not _listens(reach.address):
        return f"no server answers at {reach.address}; start one with `inferwire serve`, or name another by --address"
    if not reach.speaks_tls:
        return (
            f"something listens at {reach.address}, but does not answer gRPC without TLS; "
            "if it speaks TLS, name the CA of its certificate by --tls-ca (a public CA: --tls)"
        )
    return (
        f"something listens at {reach.address}, but gRPC over TLS with it fails; see whether --tls-ca names the CA of "
        "its certificate, whether that has the name (--tls-server-name), and whether it asks for yours "
        "(--tls-certificate)"
    )


def _listens(address: str) -> bool:
    """Whether a connection to `host:port` or `unix:/path` comes about; what is spoken there it does not tell."""
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_LIMIT_S)
                connection.connect(address.removeprefix("unix:"))
            return True
        host, _, port = address.removeprefix("dns:///").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True
