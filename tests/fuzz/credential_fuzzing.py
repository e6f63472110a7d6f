"""Random calls with random credentials against a secured server; what they brought must not come back."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inferwire.v1 import inference_pb2_grpc
from inferwire_server.engines.scripted import ScriptedOptions
from structlog.testing import capture_logs

from tests.fuzz.fuzzing import AT_ONCE, Findings, make_calls
from tests.fuzz.random_calls import RandomCall, random_call
from tests.fuzz.random_credentials import RandomCredentials
from tests.secured import TRUST, Deployment, bearer, secured
from tests.serving import request

_OPTIONS = ScriptedOptions(step_base_s=0.0005, max_context_tokens=512)


async def fuzz_credentials(seed: int, indices: range) -> Findings:
    """Make the calls of a seed with these numbers, through a trusted proxy's connection; ends with the server alive."""
    findings = Findings()
    brought: set[str] = set()
    with tempfile.TemporaryDirectory() as folder, capture_logs() as logs:
        deployment = Deployment(Path(folder))
        credentials, valid = RandomCredentials(deployment), deployment.key("user")
        proxy = deployment.client("proxy")
        async with (
            secured(deployment, client_ca=True, trusted_proxies=[f"{TRUST}/proxy"], options=_OPTIONS) as server,
            deployment.channel(server, proxy) as channel,
        ):
            insecure, server.channel = server.channel, channel
            calls = _calls(seed, indices, credentials, brought)
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(make_calls(server, calls, findings))
            alive = inference_pb2_grpc.InferenceServiceStub(channel)
            await alive.Generate(request(max_output_tokens=1), metadata=bearer(valid), timeout=30)
            await insecure.close()
    logged = repr(logs)
    findings.faults += [f"logged: {secret}" for secret in brought if secret in logged]
    return findings


def _calls(seed: int, indices: range, credentials: RandomCredentials, brought: set[str]) -> Iterator[RandomCall]:
    for index in indices:
        metadata, secrets = credentials.draw(random.Random(f"credentials {seed}/{index}"))
        call = random_call(seed, index)
        brought.update(secrets)
        yield replace(call, metadata=(*call.metadata[:10], *metadata), secrets=secrets)
