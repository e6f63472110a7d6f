"""One line a call, with what an operator needs and nothing of what was said; and whom a caller is believed to be."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from inferwire import AsyncClient, CallEnded, Observer
from inferwire_server.domain.caller import ANONYMOUS
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.engines.scripted import Plan, PlanBook
from inferwire_server.security.identity import caller_from_metadata
from structlog.testing import capture_logs

from tests.serving import refusal, request, serving

SECRET, ANSWER = "my secret question", "a secret answer"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


async def lines_of(*messages: Any, metadata: Any = ()) -> tuple[list[dict[str, Any]], str]:
    """The access lines of some calls, and everything that was logged."""
    plans = PlanBook(otherwise=Plan(reply=ANSWER))
    with capture_logs() as logs:
        async with serving(plans=plans) as server:
            for message in messages:
                call = server.inference.Generate(message, metadata=metadata)
                if message.max_output_tokens:
                    await call
                else:
                    await refusal(call)
    return [dict(line) for line in logs if line["event"] == "call"], repr(logs)


async def test_a_call_is_one_line_with_its_facts() -> None:
    metadata = (("x-inferwire-tenant", "acme"), ("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01"))
    lines, _ = await lines_of(request(SECRET, request_id="job-1"), metadata=metadata)
    (line,) = lines
    expected = {"tenant": "acme", "code": "OK", "reason": "", "request_id": "job-1", "trace_id": TRACE_ID}
    assert expected.items() <= line.items()
    assert line["method"].endswith("/Generate")
    assert line["prompt_tokens"] == len(SECRET) + 1


async def test_a_refused_call_says_why() -> None:
    lines, _ = await lines_of(request(SECRET, max_output_tokens=0))
    assert (lines[0]["code"], lines[0]["reason"]) == ("INVALID_ARGUMENT", "INVALID_FIELD")


async def test_nothing_that_was_said_is_ever_logged() -> None:
    chat = request(prompt=None, chat={"messages": [{"role": "user", "text": SECRET}]})
    _, everything = await lines_of(request(SECRET), chat, request(SECRET, max_output_tokens=0))
    assert "secret" not in everything


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        "00-zz-00f067aa0ba902b7-01",
        f"00-{TRACE_ID.upper()}-1-01",
        "00-" + "x" * 5000,
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-00f067aa0ba902b7-01",
    ],
)
async def test_a_malformed_trace_is_left_out(value: str) -> None:
    lines, _ = await lines_of(request(), metadata=(("traceparent", value),))
    assert "trace_id" not in lines[0]


async def test_a_trace_goes_from_a_client_to_the_line_of_the_server_that_served_it() -> None:
    seen: list[CallEnded] = []

    class Notebook(Observer):
        def call_ended(self, call: CallEnded) -> None:
            seen.append(call)

    with capture_logs() as logs:
        async with serving() as server, AsyncClient(server.address, observer=Notebook()) as client:
            await client.generate("hi", model="scripted", max_output_tokens=4)
    (line,) = (line for line in logs if line["event"] == "call" and "request_id" in line)
    (call,) = (call for call in seen if call.method.endswith("Generate"))
    assert len(line["trace_id"]) == 32
    assert line["trace_id"] == call.trace_id


async def test_health_checks_are_worth_a_line_at_debug_unless_they_fail() -> None:
    with capture_logs() as logs:
        async with serving() as server:
            await server.health.Check(health_pb2.HealthCheckRequest())
            await refusal(server.health.Check(health_pb2.HealthCheckRequest(service="nobody")))
    lines = [(line["code"], line["log_level"]) for line in logs if line["event"] == "call"]
    assert lines == [("OK", "debug"), ("NOT_FOUND", "info")]


def test_a_tenant_named_in_metadata_is_believed_on_loopback_only() -> None:
    metadata = {"x-inferwire-tenant": "acme"}
    assert caller_from_metadata(metadata, is_local=True).tenant == "acme"
    assert caller_from_metadata(metadata, is_local=False) == ANONYMOUS
    assert caller_from_metadata({}, is_local=True) == ANONYMOUS


@pytest.mark.parametrize("name", ["", " ", "a\n", "ä", "x" * 65, b"acme"])
def test_a_name_that_no_tenant_can_have_is_refused(name: str | bytes) -> None:
    with pytest.raises(InvalidRequest):
        caller_from_metadata({"x-inferwire-tenant": name}, is_local=True)
