"""Refusals: one status, one reason, a hint exactly when a retry is useful, and nothing from inside."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from inferwire.v1 import error_pb2, generation_pb2
from inferwire_server.domain import errors
from inferwire_server.domain.errors import Aborted, InvalidRequest, ServiceError, Unavailable
from inferwire_server.engines.scripted import Die, Fail, Plan, PlanBook, ScriptedOptions
from inferwire_server.rpc.status import STATUS, wire_status
from structlog.testing import capture_logs

from tests.polling import until
from tests.serving import Serving, bad_request, error_info, request, retry_hint_ms, serving, text_of

Call = Callable[[Serving, generation_pb2.GenerateRequest], Awaitable[object]]


async def unary(server: Serving, message: generation_pb2.GenerateRequest) -> object:
    return await server.inference.Generate(message)


async def stream(server: Serving, message: generation_pb2.GenerateRequest) -> object:
    return [event async for event in server.inference.StreamGenerate(message)]


both_calls = pytest.mark.parametrize("call", [unary, stream])


async def refusal_of(call: Call, server: Serving, message: generation_pb2.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, message)
    return caught.value


def families() -> list[type[ServiceError]]:
    everything = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ServiceError)]
    return [kind for kind in everything if kind not in (ServiceError, Unavailable, Aborted)]


@pytest.mark.parametrize("kind", families(), ids=lambda kind: kind.__name__)
def test_every_domain_error_has_a_status(kind: type[ServiceError]) -> None:
    assert kind in STATUS


def test_every_reason_of_the_table_is_in_the_contract_and_the_other_way_round() -> None:
    table = {reason for _, reason in STATUS.values() if reason}
    names = error_pb2.ErrorReason.DESCRIPTOR.values_by_name
    contract = {name.removeprefix("ERROR_REASON_") for name in names} - {"UNSPECIFIED"}
    assert table == contract


def test_the_family_drawn_in_the_docstring_is_the_one_there_is() -> None:
    drawn = {line.split()[-1] for line in (errors.__doc__ or "").splitlines() if "──" in line}
    there = {kind.__name__ for kind in families()} | {"Unavailable", "Aborted"}
    assert drawn == there


def test_details_stay_within_a_kibibyte_whatever_the_message() -> None:
    status = wire_status(InvalidRequest("sampling." + "x" * 5000, "y" * 5000, limit=1, actual=2))
    details = dict(status.trailers)["grpc-status-details-bin"]
    assert len(details) <= 1024
    assert status_pb2.Status.FromString(details).details


@both_calls
@pytest.mark.case("H06")
async def test_an_unknown_model_is_not_found(call: Call) -> None:
    async with serving() as server:
        error = await refusal_of(call, server, request(model="nowhere"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error_info(error).reason == "MODEL_NOT_FOUND"
    assert retry_hint_ms(error) is None


@both_calls
@pytest.mark.case("H06")
async def test_a_bad_parameter_is_named(call: Call) -> None:
    async with serving() as server:
        error = await refusal_of(call, server, request(sampling={"top_p": 1.5}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_request(error).field_violations[0].field == "sampling.top_p"
    assert error_info(error).metadata["started"] == "false"


@both_calls
@pytest.mark.case("H06")
@pytest.mark.parametrize(
    "schema",
    [
        r'{"type": "object", "properties": {"\ud800": {"foo": 1}}}',
        r'{"$defs": {"\udc00": {"minLength": -1}}, "type": "object"}',
    ],
)
async def test_half_a_character_in_a_schema_s_name_is_the_caller_s_fault(call: Call, schema: str) -> None:
    async with serving() as server:
        error = await refusal_of(call, server, request(structured_output={"json_schema": schema}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_request(error).field_violations[0].field == "structured_output.json_schema"
    assert r"\ud" in (error.details() or "")


@pytest.mark.case("H06")
async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving() as server:
        call: Any = server.channel.unary_unary("/inferwire.v1.InferenceService/Imagine")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@both_calls
@pytest.mark.case("H06")
async def test_a_full_queue_refuses_with_a_hint(call: Call) -> None:
    async with serving(ScriptedOptions(max_running=1), max_waiting=1) as server:
        running = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await running.read()
        waiting = server.inference.StreamGenerate(request())
        await until(lambda: server.server.sessions.num_live == 2)
        error = await refusal_of(call, server, request())
        running.cancel()
        waiting.cancel()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_info(error).reason == "OVERLOADED"
    assert retry_hint_ms(error) is not None
    assert "retry-after" in dict(error.trailing_metadata() or ())


@both_calls
@pytest.mark.case("H06")
async def test_a_dead_engine_refuses_with_a_hint(call: Call) -> None:
    async with serving() as server:
        server.engine.die("a test wants it")
        error = await refusal_of(call, server, request())
        server.engine.recover()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error_info(error).reason == "ENGINE_DOWN"
    assert retry_hint_ms(error) is not None


@both_calls
@pytest.mark.case("H06")
async def test_a_draining_server_refuses_with_a_hint(call: Call) -> None:
    async with serving() as server:
        running = aiter(server.inference.StreamGenerate(request(max_output_tokens=40)))
        await anext(running)
        server.server.drain()
        error = await refusal_of(call, server, request())
        assert await text_of(running)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error_info(error).reason == "DRAINING"
    assert retry_hint_ms(error) is not None


@both_calls
@pytest.mark.case("H06")
async def test_a_fault_of_ours_gives_an_id_and_nothing_else(call: Call) -> None:
    plans = PlanBook((("boom", Plan(mishap=Fail(lambda: ValueError("secret /srv/path"), after=2))),))
    with capture_logs() as logs:
        async with serving(plans=plans) as server:
            error = await refusal_of(call, server, request("boom"))
    info = error_info(error)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert info.reason == "INTERNAL"
    faults = [line for line in logs if line.get("error_id") == info.metadata["error_id"] and "exc_info" in line]
    assert len(faults) == 1
    wire = repr(error.trailing_metadata()) + str(error.details())
    assert not any(word in wire for word in ("secret", "/srv", "ValueError", "Traceback", "boom"))


@both_calls
async def test_an_engine_lost_after_started_gives_no_hint(call: Call) -> None:
    plans = PlanBook((("die", Plan(mishap=Die(after=3))),))
    async with serving(plans=plans) as server:
        error = await refusal_of(call, server, request("die now"))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error_info(error).metadata["started"] == "true"
    assert retry_hint_ms(error) is None


@pytest.mark.parametrize("encoded", [b"\xff\xff\xff", b"\x0a\x05ab", b"\x12\x02\xc3\x28"])
async def test_malformed_bytes_are_the_callers_fault(encoded: bytes) -> None:
    async with serving() as server:
        call: Any = server.channel.unary_unary("/inferwire.v1.InferenceService/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(encoded)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
