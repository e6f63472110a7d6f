"""Upper bounds of histogram buckets in seconds, after OpenTelemetry's conventions for generative AI servers."""

from __future__ import annotations

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""gen_ai.server.time_to_first_token, and on to what a full queue makes of it."""

GAP_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
)  # fmt: skip
"""gen_ai.server.time_per_output_token, and below it for small models."""

REQUEST_BUCKETS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 600.0,
)  # fmt: skip
"""gen_ai.server.request.duration, and on to long documents."""

CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0)
"""rpc.server.call.duration, and on to streams."""
