"""A tenant over its quota is told so in a way that a machine can act on; each token is paid once, whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from inferwire.v1 import generation_pb2
from inferwire_server.domain.errors import Overloaded
from inferwire_server.engines.scripted import Die, Fail, Plan, PlanBook, Refuse, ScriptedOptions
from structlog.testing import capture_logs

from tests.polling import until
from tests.serving import Serving, detail, error_info, refusal, request, rest_of, retry_hint_ms, serving

PLENTY = 1_000_000
STEADY = ScriptedOptions(step_base_s=0.005)
ACME = (("x-inferwire-tenant", "acme"),)
OTHER = (("x-inferwire-tenant", "other-one"),)


def tenants(folder: Path, text: str) -> Path:
    """A file of tenants."""
    file = folder / "tenants.toml"
    file.write_text(text)
    return file


def acme(folder: Path, **limits: Any) -> dict[str, Any]:
    """Settings of a server that knows one tenant by name."""
    lines = [f"{name} = {value}" for name, value in ({"monthly_tokens": PLENTY} | limits).items()]
    return {"tenants": tenants(folder, "[tenants.acme]\n" + "\n".join(lines)), "metrics_tenants": frozenset({"acme"})}


def generate(server: Serving, metadata: Any = ACME, **fields: Any) -> Any:
    return server.inference.Generate(request(**fields), metadata=metadata)


def stream(server: Serving, message: generation_pb2.GenerateRequest) -> Any:
    return server.inference.StreamGenerate(message, metadata=ACME)


def paid(server: Serving) -> int:
    """Tokens that the tenant has used this month."""
    return int(server.sample("inferwire_quota_monthly_tokens", tenant="acme"))


async def begun(server: Serving, message: generation_pb2.GenerateRequest, tokens: int) -> tuple[Any, list[int]]:
    """A stream of which at least so many ids have been read, and they."""
    call, held = stream(server, message), list[int]()
    while len(held) < tokens:
        held += (await call.read()).delta.token_ids
    return call, held


@pytest.mark.parametrize("call", ["Generate", "StreamGenerate"])
async def test_a_refusal_names_the_limit_and_when_to_come_back(tmp_path: Path, call: str) -> None:
    async with serving(**acme(tmp_path, requests_per_minute=1)) as server:
        await generate(server)
        error = await refusal(getattr(server.inference, call)(request(), metadata=ACME))
        info = error_info(error)
        assert (error.code(), info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA")
        assert (info.metadata["started"], info.metadata["limit"], info.metadata["actual"]) == ("false", "1", "2")
        (violation,) = detail(error, error_details_pb2.QuotaFailure()).violations
        assert (violation.quota_id, violation.quota_value) == ("requests_per_minute", 1)
        hint_ms = retry_hint_ms(error)
        assert hint_ms is not None
        assert 30_000 < hint_ms <= 60_061
        assert detail(error, error_details_pb2.RetryInfo()).retry_delay.ToMilliseconds() == hint_ms
        assert dict(error.trailing_metadata() or ())["retry-after"] == str(-(-hint_ms // 1000))
        assert server.sample("inferwire_quota_refusals_total", tenant="acme", limit="requests_per_minute") == 1
        assert server.outcomes() == {"ok": 1, "quota_exceeded": 1}
        await generate(server, OTHER)


@pytest.mark.parametrize(
    ("limits", "fields", "named"),
    [
        ({"max_prompt_tokens": 5}, {}, "max_prompt_tokens"),
        ({"max_output_tokens": 15}, {}, "max_output_tokens"),
        ({"tokens_per_minute": 20}, {"output": {"count": 2}}, "tokens_per_minute"),
        ({"monthly_tokens": 20}, {}, "monthly_tokens"),
        ({"priorities": '["batch"]'}, {"scheduling": {"priority": "PRIORITY_INTERACTIVE"}}, "priorities"),
    ],
)
async def test_what_a_tenant_can_never_have_is_final(
    tmp_path: Path, limits: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    async with serving(**acme(tmp_path, **limits)) as server:
        error = await refusal(generate(server, **fields))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA")
        assert detail(error, error_details_pb2.QuotaFailure()).violations[0].quota_id == named
        assert retry_hint_ms(error) is None
        await generate(server, OTHER, **fields)


async def test_who_names_no_length_is_given_what_the_tenant_may_have(tmp_path: Path) -> None:
    async with serving(**acme(tmp_path, max_output_tokens=15)) as server:
        message = request()
        message.ClearField("max_output_tokens")
        answer = await server.inference.Generate(message, metadata=ACME)
        assert (answer.started.max_output_tokens, answer.usage.output_tokens) == (15, 15)


async def test_only_so_many_at_once_and_an_end_makes_room_for_the_next_call(tmp_path: Path) -> None:
    async with serving(STEADY, **acme(tmp_path, concurrent_requests=1)) as server:
        for _ in range(5):
            await generate(server)
        running, _ = await begun(server, request(max_output_tokens=4000, output={"token_ids": True}), 1)
        error = await refusal(generate(server))
        assert detail(error, error_details_pb2.QuotaFailure()).violations[0].quota_id == "concurrent_requests"
        assert retry_hint_ms(error) is not None
        running.cancel()
        await until(lambda: server.is_quiet)
        await generate(server)


async def test_a_whole_answer_costs_its_prompt_and_its_tokens(tmp_path: Path) -> None:
    async with serving(STEADY, **acme(tmp_path)) as server:
        answer = await generate(server, output={"count": 3})
        assert paid(server) == answer.usage.prompt_tokens + answer.usage.output_tokens == len("tell a story") + 1 + 48


async def test_a_cancelled_stream_costs_what_was_made_of_it(tmp_path: Path) -> None:
    async with serving(STEADY, **acme(tmp_path)) as server:
        call, _ = await begun(server, request(max_output_tokens=4000, output={"token_ids": True}), 5)
        call.cancel()
        await until(lambda: server.is_quiet)
        made = server.sample("inferwire_prompt_tokens_total") + server.sample("inferwire_output_tokens_total")
        assert paid(server) == made


async def test_a_failed_generation_costs_what_was_made_of_it(tmp_path: Path) -> None:
    plans = PlanBook((("boom", Plan(mishap=Fail(lambda: ValueError("no"), after=4))),))
    async with serving(STEADY, plans=plans, **acme(tmp_path)) as server:
        await refusal(generate(server, prompt="boom"))
        assert paid(server) == len("boom") + 1 + 4


async def test_what_the_engine_did_not_take_costs_nothing(tmp_path: Path) -> None:
    plans = PlanBook((("no", Plan(mishap=Refuse(lambda: Overloaded("no room")))),))
    async with serving(STEADY, plans=plans, **acme(tmp_path, requests_per_minute=1)) as server:
        for _ in range(3):
            assert error_info(await refusal(generate(server, prompt="no"))).reason == "OVERLOADED"
        assert paid(server) == 0
        await generate(server)


async def test_who_leaves_the_queue_has_paid_a_request_and_no_token(tmp_path: Path) -> None:
    options = ScriptedOptions(step_base_s=0.005, max_running=1)
    async with serving(options, **acme(tmp_path, requests_per_minute=1)) as server:
        running = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await running.read()
        waiting = stream(server, request())
        await until(lambda: server.server.sessions.num_live == 2)
        waiting.cancel()
        await until(lambda: server.server.sessions.num_live == 1)
        assert paid(server) == 0
        error = await refusal(generate(server))
        assert detail(error, error_details_pb2.QuotaFailure()).violations[0].quota_id == "requests_per_minute"
        running.cancel()


async def test_attached_and_replayed_readers_pay_nothing(tmp_path: Path) -> None:
    async with serving(STEADY, **acme(tmp_path, requests_per_minute=1)) as server:
        message = request(request_id="job-1", max_output_tokens=64, output={"token_ids": True})
        first, _ = await begun(server, message, 1)
        second = [event async for event in stream(server, message)]
        assert [event.started.continuation for event in second if event.HasField("started")] == [
            generation_pb2.CONTINUATION_ATTACHED
        ]
        async for _ in rest_of(first):
            pass
        replayed = await server.inference.Generate(message, metadata=ACME)
        assert replayed.started.continuation == generation_pb2.CONTINUATION_REPLAYED
        assert paid(server) == replayed.usage.prompt_tokens + 64


async def test_a_stream_that_goes_on_after_a_loss_pays_each_token_once(tmp_path: Path) -> None:
    plans = PlanBook((("die now", Plan(mishap=Die(after=9))),))
    async with serving(STEADY, plans=plans, **acme(tmp_path)) as server:
        message = request("die now", request_id="job-1", max_output_tokens=32, output={"token_ids": True})
        call, held = await begun(server, message, 1)
        assert error_info(await lost(call, held)).reason == "ENGINE_DOWN"
        server.engine.recover()
        await until(lambda: server.server.lifecycle.is_ready)
        assert paid(server) == len("die now") + 1 + len(held)
        message.attempt = 1
        digest = (await server.inference.Generate(request("die now", max_output_tokens=1))).started.prompt_digest
        message.resume.prompt_digest = digest
        message.resume.outputs.add(token_ids=held)
        resumed = [event async for event in stream(server, message)]
        assert sum(event.delta.token_count for event in resumed) == 32 - len(held)
        assert paid(server) == len("die now") + 1 + 32


async def test_who_breaks_off_and_goes_on_in_a_loop_pays_the_prompt_every_fourth_time(tmp_path: Path) -> None:
    slow, prompt = ScriptedOptions(step_base_s=0.05), "x" * 1000
    twice_and_some_output = 2 * (len(prompt) + 1) + 900
    async with serving(slow, **acme(tmp_path, tokens_per_minute=twice_and_some_output)) as server:
        message = request(prompt, request_id="loop", max_output_tokens=100, cache={"bypass": True})
        for _ in range(8):
            call = stream(server, message)
            started = (await call.read()).started
            message.resume.prompt_digest = started.prompt_digest
            call.cancel()
            await until(lambda: server.is_quiet)
        assert server.sample("inferwire_prompt_tokens_total") == 8 * started.prompt_tokens
        assert paid(server) == 2 * started.prompt_tokens + server.sample("inferwire_output_tokens_total")
        error = await refusal(stream(server, message))
        assert detail(error, error_details_pb2.QuotaFailure()).violations[0].quota_id == "tokens_per_minute"


async def test_what_a_caller_holds_in_full_costs_nothing_to_resume(tmp_path: Path) -> None:
    async with serving(STEADY, replay_time=0, **acme(tmp_path)) as server:
        whole = await generate(server, output={"token_ids": True}, sampling={"seed": 1})
        before = paid(server)
        message = request(request_id="again", sampling={"seed": 1})
        message.resume.prompt_digest = whole.started.prompt_digest
        message.resume.outputs.add(token_ids=whole.outputs[0].token_ids)
        assert [event async for event in stream(server, message)][-1].HasField("completed")
        assert paid(server) == before


async def test_a_budget_that_is_nearly_spent_is_in_the_log_and_counted(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(**acme(tmp_path, monthly_tokens=100, monthly_warning=0.5)) as server:
            for _ in range(3):
                await generate(server)
            assert server.sample("inferwire_quota_warnings_total", tenant="acme") == 1
            assert server.sample("inferwire_quota_monthly_tokens_limit", tenant="acme") == 100
    (warning,) = [line for line in logs if line["event"] == "monthly budget nearly spent"]
    assert (warning["tenant"], warning["tokens"], warning["budget"]) == ("acme", 58, 100)


async def test_a_changed_file_holds_within_seconds_and_a_spoilt_one_changes_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(**acme(tmp_path, requests_per_minute=1)) as server:
            await generate(server)
            tenants(tmp_path, "[tenants.acme]\nrequests_per_minute = 'many'")
            await until(lambda: server.sample("inferwire_security_reload_failures_total", kind="tenants") == 1)
            await refusal(generate(server))
            tenants(tmp_path, "[tenants.acme]\nrequests_per_minute = 2")
            await until(lambda: any(line["event"] == "reloaded" for line in logs))
            await generate(server)
            await refusal(generate(server))


async def lost(call: Any, held: list[int]) -> grpc.aio.AioRpcError:
    """The error that ends a stream, whose ids until then are added to those held."""

    async def keep() -> None:
        async for event in rest_of(call):
            held.extend(event.delta.token_ids)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keep()
    return caught.value
