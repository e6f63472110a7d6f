"""The settings of the Kubernetes base start a server with TLS and keys, and its probes find it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import grpc
import pytest
from inferwire.v1 import inference_pb2, inference_pb2_grpc
from inferwire_server.settings import ENVIRONMENT_PREFIX

from tests.secured import Deployment, bearer
from tests.server_process import server_process
from tools.ops_check.pods import environment, servers
from tools.ops_check.probes import SERVICES
from tools.ops_check.rendering import rendered

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
async def test_a_server_with_the_settings_of_the_base_is_found_by_its_probes_and_by_callers_with_a_key(
    tmp_path: Path,
) -> None:
    base = next(each for each in rendered(ROOT) if each.name == "base")
    pods, container = next(servers(base))
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    given = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value for name, value in environment(pods, container).items()
    }
    files = {name: value for name, value in deployment.settings().items() if name != "jwt"}
    assert files.keys() <= given.keys()

    async with server_process(**(given | files | {"health_port": 0, "models_dir": tmp_path})) as server:
        listening = next(line for line in server.log if line.get("event") == "listening")
        for service in SERVICES.values():
            assert await is_serving(service, listening["health_port"])
        port = str(listening["address"]).rpartition(":")[2]
        async with grpc.aio.secure_channel(f"localhost:{port}", deployment.channel_credentials()) as channel:
            stub, request = inference_pb2_grpc.InferenceServiceStub(channel), inference_pb2.GetServerInfoRequest()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetServerInfo(request, timeout=20)
            info = await stub.GetServerInfo(request, timeout=20, metadata=bearer(key))

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert info.server_version


async def is_serving(service: str, port: int) -> bool:
    """What the image's own health check says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        ROOT / "docker" / "healthcheck.py",
        service,
        env=os.environ | {"INFERWIRE_HEALTH_PORT": str(port)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0
