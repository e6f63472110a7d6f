"""The load report that every generation's trailers carry, as gRPC's weighted_round_robin reads it (gRFC A51, A58)."""

from __future__ import annotations

import struct

KEY = "endpoint-load-metrics-bin"
_RPS_FRACTIONAL, _APPLICATION_UTILIZATION = 6, 9
"""Fields of xds.data.orca.v3.OrcaLoadReport, both doubles. Two numbers need no dependency on the xDS protos."""


def load_trailer(utilization: float) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that reports a utilization: 1 at capacity, more when requests wait.

    The balancer's weight is requests a second over utilization. Generations differ so much in length that finished
    ones a second say nothing of capacity, so every server reports 1 and weights follow utilization alone.
    """
    return ((KEY, _double(_RPS_FRACTIONAL, 1.0) + _double(_APPLICATION_UTILIZATION, utilization)),)


def _double(field: int, value: float) -> bytes:
    """One field in protobuf's encoding."""
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
