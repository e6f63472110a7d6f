"""Ask the server in this container by grpc.health.v1 whether it is ready; exit 1 when it is not.

python healthcheck.py [SERVICE]     SERVICE is startup, readiness (the default) or liveness

It speaks no TLS: a server that has TLS needs a health port (INFERWIRE_HEALTH_PORT).
"""

from __future__ import annotations

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def main(arguments: list[str]) -> int:
    """0 when the service is SERVING; says why not otherwise."""
    service = arguments[0] if arguments else "readiness"
    port = os.environ.get("INFERWIRE_HEALTH_PORT") or os.environ.get("INFERWIRE_PORT", "50051")
    address = f"127.0.0.1:{port}"
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status
        except grpc.RpcError as error:
            print(f"{service} at {address}: {error.code().name}", file=sys.stderr)
            return 1
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    print(f"{service} at {address}: {name}", file=sys.stderr)
    return 0 if status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
