"""Whatever is called and however it fails: no prompt, output, key or token comes out of a server but in its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import error_pb2, inference_pb2, model_pb2, operations_pb2

from tests.polling import until_it_says
from tests.secured import bearer
from tests.serving import MODEL, rest_of
from tests.system.canaries import CANARY, FAULT, GRAMMAR, OPTION, OUTPUT, PROMPT, TOKEN, Birdcage, birdcage, request

OURS = ("log", "audit", "metrics")
UNREACHABLE = {"UNSPECIFIED", "CAPABILITY_ABSENT"}
"""No error is unspecified. The scripted engine honours every field; that refusal names the field alone."""


async def test_nothing_that_was_said_and_no_credential_comes_out_anywhere(tmp_path: Path) -> None:
    async with birdcage(tmp_path, stall_time=0.5, max_waiting=1, max_request_bytes=100_000, drain_limit=1.0) as cage:
        token = cage.deployment.issuer.token(note=TOKEN, jti=TOKEN)
        await before_it_is_ready(cage)
        await cage.process.until_logged("ready")
        await every_rpc(cage, token)
        await cage.scrape()
        await refused_as_they_are(cage)
        await refused_for_whom_they_come_from(cage, token)
        await refused_for_what_else_is_there(cage)
        await cut_while_they_run(cage)
        await cage.scrape()
        await the_end(cage)
        heard = cage.heard()
    contract = {name.removeprefix("ERROR_REASON_") for name in error_pb2.ErrorReason.DESCRIPTOR.values_by_name} - {
        "UNSPECIFIED"
    }
    assert cage.reasons >= contract - UNREACHABLE
    assert OUTPUT in "".join(cage.replies), "what is not said proves nothing"
    secrets = {
        CANARY,
        FAULT,
        token,
        *token.split(".")[1:],
        *(key.rpartition("_")[2] for key in vars(cage.keys).values()),
    }
    leaks = [(where, secret) for where, text in heard for secret in secrets if secret in text]
    assert leaks == []
    assert not [where for where, text in heard if where in OURS and GRAMMAR in text]
    assert set(OURS) <= {where for where, text in heard if text}


async def before_it_is_ready(cage: Birdcage) -> None:
    assert await cage.outcome("starting", generate(cage)) == "STARTING"


async def every_rpc(cage: Birdcage, token: str) -> None:
    operator = cage.metadata(cage.keys.operator)
    chat = {
        "messages": [{"role": "user", "text": PROMPT}],
        "template_variables_json": f'{{"note": "{OPTION}"}}',
    }
    grammar = {"json_schema": f'{{"enum": ["{OPTION}", "x"]}}'}
    inference, models, operations = cage.inference, cage.models, cage.operations
    health = health_pb2_grpc.HealthStub(cage.channel)
    channel: Any = cage.channel
    reflection: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    calls: dict[str, Any] = {
        "Generate": generate(cage),
        "Generate by token": inference.Generate(request(), metadata=cage.metadata(token)),
        "Generate chat": generate(cage, prompt=None, chat=chat),
        "Generate by grammar": generate(cage, structured_output=grammar),
        "StreamGenerate": inference.StreamGenerate(request(), metadata=cage.metadata()),
        "Tokenize": inference.Tokenize(
            inference_pb2.TokenizeRequest(model=MODEL, prompt=PROMPT), metadata=cage.metadata()
        ),
        "Detokenize": inference.Detokenize(
            inference_pb2.DetokenizeRequest(model=MODEL, token_ids=PROMPT.encode()), metadata=cage.metadata()
        ),
        "GetServerInfo": inference.GetServerInfo(inference_pb2.GetServerInfoRequest(), metadata=cage.metadata()),
        "ListModels": models.ListModels(model_pb2.ListModelsRequest(), metadata=cage.metadata()),
        "GetModel": models.GetModel(model_pb2.GetModelRequest(model=MODEL), metadata=cage.metadata()),
        "GetServerStatus": operations.GetServerStatus(operations_pb2.GetServerStatusRequest(), metadata=operator),
        "ListGenerations": operations.ListGenerations(operations_pb2.ListGenerationsRequest(), metadata=operator),
        "Check": health.Check(health_pb2.HealthCheckRequest()),
        "reflection": reflection(iter((b"\x3a\x00",)), metadata=cage.metadata()),
    }
    for name, call in calls.items():
        assert await cage.outcome(name, call) == "OK", name
    watches: tuple[Any, ...] = (
        operations.WatchLoad(operations_pb2.WatchLoadRequest(), metadata=operator),
        health.Watch(health_pb2.HealthCheckRequest()),
    )
    for watch in watches:
        cage.replies.append(str(await watch.read()))
        watch.cancel()


async def refused_as_they_are(cage: Birdcage) -> None:
    """For what is in them."""
    wrong: dict[str, dict[str, Any]] = {
        "INVALID_FIELD": {"max_output_tokens": 0},
        "MODEL_NOT_FOUND": {"model": OPTION},
        "MODEL_MISMATCH": {"expected_model": {"fingerprint": OPTION}},
    }
    for reason, fields in wrong.items():
        assert await cage.outcome(reason, generate(cage, **fields)) == reason
    invalid: list[dict[str, Any]] = [
        {"request_id": f"{OPTION} !"},
        {"prompt": PROMPT * 1000},
        {"stop": {"strings": [OPTION * 100]}},
        {"cache": {"salt": OPTION * 100}},
        {"prompt": None, "chat": {"messages": [{"role": OPTION, "text": PROMPT}]}},
        {"prompt": None, "chat": {"messages": [{"role": "user", "text": PROMPT}], "template_variables_json": OPTION}},
        {"prompt": None, "chat": {"messages": [{"role": "user", "text": f"<|{PROMPT}|>"}] * 2000}},
        {"sampling": {"temperature": -1}},
        {"structured_output": {"json_schema": f'{{"{GRAMMAR}": 1}}'}},
        {"structured_output": {"regex": f"({GRAMMAR}["}},
        {"structured_output": {"ebnf": f"root ::= {GRAMMAR}"}},
    ]
    for fields in invalid:
        assert await cage.outcome(f"invalid {list(fields)}", generate(cage, **fields)) == "INVALID_FIELD", fields
    channel: Any = cage.channel
    for method in ("Generate", "Tokenize", "Imagine"):
        raw = channel.unary_unary(f"/inferwire.v1.InferenceService/{method}")
        for encoded in (PROMPT.encode(), b"\x12\x20" + PROMPT.encode() + b"\xff" * 5):
            outcome = await cage.outcome("bytes", raw(encoded, metadata=cage.metadata()))
            assert outcome in ("INVALID_FIELD", "UNIMPLEMENTED")
    too_large = await cage.outcome("too large", generate(cage, prompt=PROMPT * 10_000))
    assert too_large == "RESOURCE_EXHAUSTED"
    for name, said in (("INTERNAL", "be wrong"), ("refused by the engine", "be refused")):
        assert await cage.outcome(name, generate(cage, say=said)) == "INTERNAL"


async def refused_for_whom_they_come_from(cage: Birdcage, token: str) -> None:
    key = cage.keys.user
    wrong = [
        f"iw_{TOKEN}_{TOKEN}",
        key + TOKEN,
        TOKEN,
        f"{TOKEN}.{TOKEN}.{TOKEN}",
        token + TOKEN,
        cage.deployment.issuer.token(aud=TOKEN),
        cage.deployment.issuer.token(tenant=f"{TOKEN} !"),
        cage.deployment.issuer.token(expires_in_s=-600, note=TOKEN),
        cage.deployment.issuer.token(headers={"kid": TOKEN}),
    ]
    for credential in wrong:
        outcome = await cage.outcome(credential[:10], cage.inference.Generate(request(), metadata=bearer(credential)))
        assert outcome == "UNAUTHENTICATED", credential
    basic = (("authorization", f"Basic {TOKEN}"),)
    assert await cage.outcome("basic", cage.inference.Generate(request(), metadata=basic)) == "UNAUTHENTICATED"
    listing = cage.operations.ListGenerations(operations_pb2.ListGenerationsRequest(), metadata=cage.metadata())
    assert await cage.outcome("FORBIDDEN", listing) == "FORBIDDEN"
    poor = cage.inference.Generate(request(), metadata=cage.metadata(cage.keys.poor))
    assert await cage.outcome("QUOTA", poor) == "QUOTA"


async def refused_for_what_else_is_there(cage: Birdcage) -> None:
    async with running(cage, request_id="job", attempt=3):
        conflict = generate(cage, say="go on", request_id="job", attempt=3, max_output_tokens=1)
        assert await cage.outcome("KEY_CONFLICT", conflict) == "KEY_CONFLICT"
        older = generate(cage, say="go on", request_id="job", attempt=1, max_output_tokens=4000)
        assert await cage.outcome("FENCED", older) == "FENCED"
    whole = await cage.inference.Generate(
        request(request_id="lost", output={"token_ids": True}), metadata=cage.metadata()
    )
    resume = {"prompt_digest": whole.started.prompt_digest, "outputs": [{"token_ids": b"other"}]}
    lost = cage.inference.StreamGenerate(request(request_id="lost", resume=resume), metadata=cage.metadata())
    assert await cage.outcome("RESUME_LOST", lost) == "RESUME_LOST"
    hurried = generate(cage, scheduling={"first_token_target": {"nanos": 1}})
    assert await cage.outcome("WOULD_EXCEED", hurried) == "WOULD_EXCEED"
    nobody = operations_pb2.CancelGenerationRequest(request_id=OPTION, tenant=OPTION)
    cancel = cage.operations.CancelGeneration(nobody, metadata=cage.metadata(cage.keys.operator))
    assert await cage.outcome("GENERATION_NOT_FOUND", cancel) == "GENERATION_NOT_FOUND"
    async with running(cage), running(cage), running(cage), running(cage):
        waiting: Any = cage.inference.StreamGenerate(
            request(progress_interval={"nanos": 10**8}), metadata=cage.metadata()
        )
        assert (await waiting.read()).HasField("progress")
        assert await cage.outcome("OVERLOADED", generate(cage)) == "OVERLOADED"
        waiting.cancel()
        assert await cage.outcome("cancelled", rest_of(waiting)) == "CANCELLED"


async def cut_while_they_run(cage: Birdcage) -> None:
    late = cage.inference.Generate(request("go on", max_output_tokens=8000), metadata=cage.metadata(), timeout=1.0)
    if await cage.outcome("EXPIRED", late) in ("EXPIRED", "DEADLINE_EXCEEDED"):
        cage.reasons.add("EXPIRED")
    async with running(cage, request_id="ended") as stream:
        ended = operations_pb2.CancelGenerationRequest(request_id="ended", tenant="acme")
        await cage.operations.CancelGeneration(ended, metadata=cage.metadata(cage.keys.operator))
        assert await cage.outcome("CANCELLED_BY_OPERATOR", rest_of(stream)) == "CANCELLED_BY_OPERATOR"
    large = {"output": {"top_logprobs": 20, "token_ids": True}}
    async with running(cage, **large) as stream:
        await until_it_says(True, lambda: is_counted(cage, 'inferwire_refusals_total{reason="READER_STALLED"} 1.0'))
        assert await cage.outcome("READER_STALLED", rest_of(stream)) == "READER_STALLED"
    assert await cage.outcome("ENGINE_DOWN", generate(cage, say="die")) == "ENGINE_DOWN"


async def the_end(cage: Birdcage) -> None:
    await until_it_says("OK", lambda: cage.outcome("recovering", generate(cage)))
    async with running(cage) as stream:
        await cage.operations.Drain(operations_pb2.DrainRequest(), metadata=cage.metadata(cage.keys.operator))
        assert await cage.outcome("DRAINING", generate(cage)) == "DRAINING"
        assert await cage.outcome("DRAINING", rest_of(stream)) == "DRAINING"
    assert await cage.process.until_exit() == 0


class running:  # noqa: N801 used like a function
    """A stream that the engine has taken, cancelled in the end."""

    def __init__(self, cage: Birdcage, **fields: Any) -> None:
        message = request("go on", **({"max_output_tokens": 4000} | fields))
        self._stream: Any = cage.inference.StreamGenerate(message, metadata=cage.metadata())

    async def __aenter__(self) -> Any:
        assert (await self._stream.read()).HasField("started")
        return self._stream

    async def __aexit__(self, *error: object) -> None:
        self._stream.cancel()


def generate(cage: Birdcage, say: str = "", **fields: Any) -> Any:
    return cage.inference.Generate(request(say, **fields), metadata=cage.metadata(), timeout=30)


async def is_counted(cage: Birdcage, sample: str) -> bool:
    await cage.scrape()
    return sample in cage.said[-1][1]
