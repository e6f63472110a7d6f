"""One channel for each endpoint, set up so that a dead or frozen server is noticed."""

from __future__ import annotations

from typing import Any

import grpc

from inferwire.settings import ClientConfig, KeepalivePolicy

_RECEIVE_LIMIT_BYTES = 16 * 1024 * 1024


def channel_options(keepalive: KeepalivePolicy) -> list[tuple[str, Any]]:
    """gRPC options of a channel to one endpoint."""
    return [
        ("grpc.keepalive_time_ms", round(keepalive.time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.timeout_s * 1000)),
        # Without it a frozen server goes unnoticed for a minute: its kernel still acknowledges.
        ("grpc.http2.ping_timeout_ms", round(keepalive.ping_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _RECEIVE_LIMIT_BYTES),
        ("grpc.enable_retries", 0),
        # A stalled reader is noticed by the server after kilobytes, not megabytes.
        ("grpc.http2.bdp_probe", 0),
    ]


def open_channel(config: ClientConfig) -> grpc.aio.Channel:
    """A channel to the first endpoint. Nothing is connected before the first call."""
    endpoint = config.regions[0].endpoints[0]
    return grpc.aio.insecure_channel(str(endpoint), options=channel_options(config.keepalive))
