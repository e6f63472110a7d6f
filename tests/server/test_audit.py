"""Every call leaves one record of who, what, how much and how it ended, and nothing of what was said unless wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2
from inferwire.v1 import inference_pb2, model_pb2, operations_pb2
from inferwire_server.engines.scripted import Fail, Plan, PlanBook, ScriptedOptions

from tests.polling import until
from tests.server.security.audit_reading import records
from tests.serving import Serving, error_info, refusal, request, rest_of, serving

ACME = (("x-inferwire-tenant", "acme"),)
STEADY = ScriptedOptions(step_base_s=0.005)
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SAID = ("what I ask", "what it says")


def redacted(text: str) -> str:
    """The hook of the tests."""
    return text.replace("I", "[someone]")


async def test_an_answer_leaves_who_what_how_much_and_how_long(tmp_path: Path) -> None:
    metadata = (*ACME, ("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01"))
    async with serving(audit_dir=tmp_path) as server:
        message = request(request_id="job-1", attempt=2, output={"count": 2}, scheduling={"priority": "PRIORITY_BATCH"})
        usage = (await server.inference.Generate(message, metadata=metadata)).usage
    (record,) = records(tmp_path)
    expected = {
        "method": "inferwire.v1.InferenceService/Generate",
        "tenant": "acme",
        "subject": "",
        "roles": [],
        "model": "scripted@1",
        "request_id": "job-1",
        "attempt": 2,
        "priority": "batch",
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": 0,
        "output_tokens": 32,
        "resumed_tokens": 0,
        "code": "OK",
        "reason": "",
        "trace_id": TRACE_ID,
    }
    assert expected.items() <= record.items()
    assert 0 <= record["queue_seconds"] <= record["first_token_seconds"] <= record["seconds"]
    assert set(record) == {*expected, "time", "seconds", "queue_seconds", "first_token_seconds"}


async def test_whatever_becomes_of_a_call_it_leaves_a_record(tmp_path: Path) -> None:
    plans = PlanBook((("boom", Plan(mishap=Fail(lambda: ValueError("no"), after=3))),))
    async with serving(STEADY, plans=plans, audit_dir=tmp_path) as server:
        fault = error_info(await refusal(server.inference.Generate(request("boom"))))
        await refusal(server.inference.Generate(request(model="nobody")))
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=4000))
        async for event in rest_of(stream):
            if event.HasField("delta"):
                break
        stream.cancel()
        await until(lambda: server.is_quiet)
        late = await refusal(server.inference.Generate(request(max_output_tokens=4000), timeout=0.5))
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.is_quiet)
    failed, unknown, cancelled, expired = records(tmp_path)
    assert (failed["code"], failed["reason"], failed["output_tokens"]) == ("INTERNAL", "INTERNAL", 3)
    assert failed["error_id"] == fault.metadata["error_id"]
    assert (unknown["code"], unknown["reason"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert cancelled["code"] == "CANCELLED"
    assert cancelled["output_tokens"] > 0
    assert expired["code"] == "DEADLINE_EXCEEDED"


async def test_who_joins_a_generation_says_so_and_so_no_token_is_added_up_twice(tmp_path: Path) -> None:
    async with serving(STEADY, audit_dir=tmp_path) as server:
        message = request(request_id="job-1", max_output_tokens=40)
        first: Any = server.inference.StreamGenerate(message)
        await first.read()
        await server.inference.Generate(message)
        async for _ in rest_of(first):
            pass
        await server.inference.Generate(message)
    found = records(tmp_path)
    assert sorted(record.get("continuation", "") for record in found) == ["", "attached", "replayed"]
    assert sum(record["output_tokens"] for record in found if "continuation" not in record) == 40


async def test_every_rpc_but_a_probe_leaves_one_record(tmp_path: Path) -> None:
    async with serving(STEADY, audit_dir=tmp_path) as server:
        calls = await _every_rpc(server)
        await server.health.Check(health_pb2.HealthCheckRequest())
        assert await server.is_alive()
        await until(lambda: server.calls_under_way == 0)
    found = [record["method"].rpartition("/")[2] for record in records(tmp_path)]
    assert sorted(found) == sorted([*calls, "Generate"])
    (cancelled,) = [record for record in records(tmp_path) if record["method"].endswith("/CancelGeneration")]
    assert (cancelled["request_id"], cancelled["of_tenant"]) == ("job-1", "acme")


async def test_an_audit_says_nothing_of_what_was_said(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    async with serving(plans=PlanBook(otherwise=Plan(reply=SAID[1])), audit_dir=folder) as server:
        await server.inference.Generate(request(SAID[0]))
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "OK" in text
    assert not any(said in text for said in SAID)


async def test_a_tenant_that_wants_its_content_kept_has_it_kept_redacted_and_no_other(tmp_path: Path) -> None:
    policy = 'audit_content = ["prompt", "output"]\naudit_redactions = ["tests.server.test_audit:redacted"]'
    file = tmp_path / "tenants.toml"
    file.write_text(f"[tenants.acme]\n{policy}")
    folder = tmp_path / "audit"
    plans = PlanBook(otherwise=Plan(reply=SAID[1]))
    async with serving(plans=plans, audit_dir=folder, tenants=file) as server:
        await server.inference.Generate(request(SAID[0]), metadata=ACME)
        chat = {"messages": [{"role": "user", "text": SAID[0]}]}
        await server.inference.Generate(request(prompt=None, chat=chat), metadata=ACME)
        await server.inference.Generate(request(SAID[0]))
    plain, conversation, other = records(folder)
    assert (plain["prompt"], plain["outputs"]) == ("what [someone] ask", [SAID[1]])
    assert conversation["prompt"] == [{"role": "user", "text": "what [someone] ask"}]
    assert not {"prompt", "outputs"} & set(other)


async def test_records_are_counted_on_the_metrics_page(tmp_path: Path) -> None:
    async with serving(audit_dir=tmp_path) as server:
        for _ in range(3):
            await server.inference.Generate(request())
        await until(lambda: server.server.metrics.registry.get_sample_value("inferwire_audit_records_total") == 3)
        assert server.sample("inferwire_audit_dropped_total", reason="too_many_waiting") == 0


async def _every_rpc(server: Serving) -> list[str]:
    """Call them all but health's and Drain; their names, in no order."""
    names = []

    async def say(call: Any, name: str) -> Any:
        names.append(name)
        return await call

    inference, operations = server.inference, server.operations
    stream: Any = inference.StreamGenerate(request(request_id="job-1", max_output_tokens=4000), metadata=ACME)
    await say(stream.read(), "StreamGenerate")
    await say(operations.ListGenerations(operations_pb2.ListGenerationsRequest()), "ListGenerations")
    await say(operations.GetServerStatus(operations_pb2.GetServerStatusRequest()), "GetServerStatus")
    await say(
        operations.CancelGeneration(operations_pb2.CancelGenerationRequest(request_id="job-1", tenant="acme")),
        "CancelGeneration",
    )
    watch: Any = operations.WatchLoad(operations_pb2.WatchLoadRequest(interval=Duration(nanos=10**8)))
    await say(watch.read(), "WatchLoad")
    watch.cancel()
    await say(inference.Tokenize(inference_pb2.TokenizeRequest(model="scripted", prompt="a")), "Tokenize")
    await say(inference.Detokenize(inference_pb2.DetokenizeRequest(model="scripted", token_ids=[97])), "Detokenize")
    await say(inference.GetServerInfo(inference_pb2.GetServerInfoRequest()), "GetServerInfo")
    await say(server.models.ListModels(model_pb2.ListModelsRequest()), "ListModels")
    await say(server.models.GetModel(model_pb2.GetModelRequest(model="scripted")), "GetModel")
    return names
