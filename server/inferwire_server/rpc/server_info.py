"""What a server says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from inferwire.v1 import inference_pb2

SCHEMA_REVISION = 1
OLDEST_CLIENT_REVISION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Fixed for the life of the process."""

    server_version: str
    server_id: str
    region: str
    max_message_bytes: int
    min_ping_interval_s: float

    def message(self) -> inference_pb2.GetServerInfoResponse:
        """As the contract has it."""
        response = inference_pb2.GetServerInfoResponse(
            server_version=self.server_version,
            schema_revision=SCHEMA_REVISION,
            oldest_client_revision=OLDEST_CLIENT_REVISION,
            region=self.region,
            server_id=self.server_id,
            max_message_bytes=self.max_message_bytes,
        )
        response.min_ping_interval.FromMilliseconds(round(self.min_ping_interval_s * 1000))
        return response
