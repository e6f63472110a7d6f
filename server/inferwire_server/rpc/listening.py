"""Addresses to listen on: of a network, with or without TLS, or a socket file."""

from __future__ import annotations

from pathlib import Path

import grpc

from inferwire_server.security.exposure import is_unix


class CannotListen(Exception):
    """Says which address, and why."""


def listening_address(host: str, port: int) -> str:
    """As gRPC writes it; a socket file has no port."""
    if is_unix(host):
        return host
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def listen(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """The port in use; 0 asks for a free one. Raises CannotListen."""
    address = listening_address(host, port)
    try:
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise CannotListen(f"{address}: {_reason(address)}")
    return bound


def _reason(address: str) -> str:
    if not is_unix(address):
        return (
            "the port is in use (choose another by --port or --health-port), "
            "or the host is no address of this machine (--host)"
        )
    folder = Path(address.partition(":")[2]).parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    return "no socket can be made there: the path is too long, taken, or not this user's to write to"
