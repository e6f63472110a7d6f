"""Addresses to listen on: of a network, with or without TLS, or a socket file."""

from __future__ import annotations

import grpc

from inferwire_server.security.exposure import is_unix


class CannotListen(Exception):
    """The address is in use, or not one of this machine."""


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
        raise CannotListen(address)
    return bound
