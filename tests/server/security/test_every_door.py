"""Every RPC with every state of every kind of credential: the code is the one that the table below says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from inferwire.v1 import inference_pb2, model_pb2, operations_pb2
from inferwire_server.rpc.health import Health
from inferwire_server.rpc.server import Registration
from inferwire_server.security.authorisation import KNOWN, check_complete
from inferwire_server.security.development_ca import DevelopmentCa, Issued
from inferwire_server.settings import SettingsError

from tests.secured import Deployment, Metadata, bearer, secured
from tests.serving import MODEL, Serving

OPEN, CALLERS, USERS, OPERATORS, BOTH = "open", "any caller", "users", "operators", "users and operators"
DOORS = {
    "/grpc.health.v1.Health/Check": OPEN,
    "/grpc.health.v1.Health/Watch": OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": CALLERS,
    "/inferwire.v1.InferenceService/Detokenize": USERS,
    "/inferwire.v1.InferenceService/Generate": USERS,
    "/inferwire.v1.InferenceService/GetServerInfo": CALLERS,
    "/inferwire.v1.InferenceService/StreamGenerate": USERS,
    "/inferwire.v1.InferenceService/Tokenize": USERS,
    "/inferwire.v1.ModelService/GetModel": BOTH,
    "/inferwire.v1.ModelService/ListModels": BOTH,
    "/inferwire.v1.OperationsService/CancelGeneration": OPERATORS,
    "/inferwire.v1.OperationsService/Drain": OPERATORS,
    "/inferwire.v1.OperationsService/GetServerStatus": OPERATORS,
    "/inferwire.v1.OperationsService/ListGenerations": OPERATORS,
    "/inferwire.v1.OperationsService/WatchLoad": OPERATORS,
}
ADMITS = {
    OPEN: {"none", "wrong", "expired", "roleless", "user", "operator"},
    CALLERS: {"roleless", "user", "operator"},
    USERS: {"user"},
    OPERATORS: {"operator"},
    BOTH: {"user", "operator"},
}
KNOWN_STATES = {"roleless", "user", "operator"}
FILES = (inference_pb2, model_pb2, operations_pb2, health_pb2, reflection_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
REQUESTS: dict[str, dict[str, Any]] = {
    "Generate": {"model": MODEL, "prompt": "hi", "max_output_tokens": 1},
    "StreamGenerate": {"model": MODEL, "prompt": "hi", "max_output_tokens": 1},
    "Tokenize": {"model": MODEL, "prompt": "hi"},
    "Detokenize": {"model": MODEL, "token_ids": [97]},
    "GetModel": {"model": MODEL},
    "CancelGeneration": {"request_id": "x", "tenant": "acme"},
    "Drain": {"limit": {"seconds": -1}},
    "ServerReflectionInfo": {"list_services": ""},
}
"""Plausible ones, so that whoever gets in is answered; a drain that was understood would end the server."""
ANSWERS = {"CancelGeneration": "NOT_FOUND", "Drain": "INVALID_ARGUMENT"}

Way = tuple[grpc.aio.Channel, Metadata]
States = dict[str, Way]


async def code_of(way: Way, path: str) -> str:
    """How a call ends, or that its first answer came."""
    channel, metadata = way
    method = METHODS[path]
    message: Message = GetMessageClass(method.input_type)(**REQUESTS.get(method.name, {}))
    kind = "_".join("stream" if it else "unary" for it in (method.client_streaming, method.server_streaming))
    make: Any = getattr(channel, kind)
    request = message.SerializeToString()
    call = make(path)(iter((request,)) if method.client_streaming else request, metadata=metadata, timeout=30)
    try:
        if method.server_streaming:
            await call.read()
            if call.done():
                return str((await call.code()).name)
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def expected(path: str, state: str) -> str:
    door = DOORS[path]
    if state in ADMITS[door]:
        return ANSWERS.get(METHODS[path].name, "OK")
    return "PERMISSION_DENIED" if state in KNOWN_STATES else "UNAUTHENTICATED"


async def codes(states: States) -> dict[tuple[str, str], str]:
    return {(path, state): await code_of(way, path) for path in METHODS for state, way in states.items()}


@asynccontextmanager
async def by_credential(
    folder: Path, make: Callable[[Deployment], dict[str, Metadata]]
) -> AsyncIterator[tuple[Serving, States]]:
    deployment = Deployment(folder)
    credentials = make(deployment)
    async with secured(deployment) as server, deployment.channel(server) as channel:
        yield server, {state: (channel, metadata) for state, metadata in credentials.items()}


def api_keys(deployment: Deployment) -> dict[str, Metadata]:
    right = deployment.key("user")
    return {
        "none": (),
        "wrong": bearer(right[:-4] + "AAAA"),
        "expired": bearer(deployment.key("user", "operator", expires_in=-timedelta(seconds=1))),
        "roleless": bearer(deployment.key()),
        "user": bearer(right),
        "operator": bearer(deployment.key("operator")),
    }


def tokens(deployment: Deployment) -> dict[str, Metadata]:
    issuer = deployment.issuer
    return {
        "none": (),
        "wrong": bearer(issuer.token(aud="another")),
        "expired": bearer(issuer.token(expires_in_s=-3600, roles=["user", "operator"])),
        "roleless": bearer(issuer.token(roles=[])),
        "user": bearer(issuer.token()),
        "operator": bearer(issuer.token(roles="operator auditor")),
    }


@pytest.mark.parametrize("make", [api_keys, tokens], ids=["API key", "JWT"])
async def test_a_credential_opens_what_its_roles_permit_and_nothing_else(
    tmp_path: Path, make: Callable[[Deployment], dict[str, Metadata]]
) -> None:
    async with by_credential(tmp_path, make) as (_, states):
        found = await codes(states)
    assert found == {(path, state): expected(path, state) for path in METHODS for state in states}


async def test_a_certificate_opens_what_its_roles_permit_and_one_that_is_no_good_opens_nothing(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    clients: dict[str, Issued | None] = {
        "none": None,
        "of another CA": deployment.client("user", ca=DevelopmentCa("another CA")),
        "expired": deployment.client("user", lasts=-timedelta(hours=1)),
        "wrong": deployment.client("stranger"),
        "roleless": deployment.client("roleless"),
        "user": deployment.client("user"),
        "operator": deployment.client("operator"),
    }
    async with secured(deployment, client_ca=True) as server:
        channels = {state: deployment.channel(server, client) for state, client in clients.items()}
        found = await codes({state: (channel, ()) for state, channel in channels.items()})
        for channel in channels.values():
            await channel.close()
    unconnected = {"none", "of another CA", "expired"}
    assert found == {
        (path, state): "UNAVAILABLE" if state in unconnected else expected(path, state)
        for path in METHODS
        for state in clients
    }


async def test_a_bad_credential_is_refused_whatever_the_certificate_says(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    generate, operators_key = "/inferwire.v1.InferenceService/Generate", deployment.key("operator")
    async with (
        secured(deployment, client_ca=True) as server,
        deployment.channel(server, deployment.client("user")) as channel,
    ):
        assert await code_of((channel, ()), generate) == "OK"
        assert await code_of((channel, bearer("iw_000000000000_none")), generate) == "UNAUTHENTICATED"
        assert await code_of((channel, bearer(operators_key)), generate) == "PERMISSION_DENIED"


async def test_two_credentials_are_none_whichever_is_good(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    good, bad = bearer(deployment.key("user")), bearer("iw_000000000000_none")
    generate, health = "/inferwire.v1.InferenceService/Generate", "/grpc.health.v1.Health/Check"
    async with (
        secured(deployment, client_ca=True) as server,
        deployment.channel(server, deployment.client("user")) as channel,
    ):
        assert await code_of((channel, good), generate) == "OK"
        for two in (good + bad, bad + good, good + good):
            assert await code_of((channel, two), generate) == "UNAUTHENTICATED"
            assert await code_of((channel, two), health) == "OK"


async def test_every_method_of_the_server_has_its_door() -> None:
    assert METHODS.keys() == DOORS.keys()
    assert METHODS.keys() <= KNOWN


async def test_a_method_that_no_table_knows_stops_the_server_from_starting() -> None:
    register: Any = Registration(grpc.aio.server())
    health_pb2_grpc.add_HealthServicer_to_server(Health(()), register)
    check_complete(register.methods)
    register.add_registered_method_handlers("inferwire.v1.NewService", {"Peek": None})
    with pytest.raises(SettingsError, match=r"who may call /inferwire\.v1\.NewService/Peek$"):
        check_complete(register.methods)
