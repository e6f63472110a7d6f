"""Strings that must not come out anywhere, a server that is given them, and everything that comes out of it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from inferwire.v1 import generation_pb2, inference_pb2_grpc, model_pb2_grpc, operations_pb2_grpc

from tests.secured import Deployment, Metadata, bearer
from tests.server_process import ServerProcess, server_process
from tests.serving import MODEL

CANARY = "kanarienvogel"
PROMPT, OUTPUT, OPTION, TOKEN, FAULT = (f"{CANARY}-{word}" for word in ("prompt", "output", "option", "token", "fault"))
GRAMMAR = "zaunkoenig"
"""In grammars that are wrong: what is wrong with them is told their caller, and nobody else."""
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
PLANS = f"""
[default]
reply = "{OUTPUT} and again {OUTPUT}"

[[when]]
prompt_contains = "go on"

[[when]]
prompt_contains = "be wrong"
mishap = {{ kind = "fail", error = "internal", reason = "{FAULT}", after = 2 }}

[[when]]
prompt_contains = "be refused"
mishap = {{ kind = "refuse", error = "internal", reason = "{FAULT}" }}

[[when]]
prompt_contains = "die"
mishap = {{ kind = "die", reason = "as planned", after = 2 }}
"""
TENANTS = """
[tenants.poor]
requests_per_minute = 0
"""


def request(say: str = "", **fields: Any) -> generation_pb2.GenerateRequest:
    """A request whose every text is a canary; `say` chooses a plan."""
    values: dict[str, Any] = {
        "model": MODEL,
        "prompt": f"{PROMPT} {say}",
        "max_output_tokens": 200,
        "stop": {"strings": [OPTION]},
        "cache": {"salt": OPTION},
    }
    return generation_pb2.GenerateRequest(**(values | fields))


class Keys:
    """One for each kind of caller."""

    def __init__(self, deployment: Deployment) -> None:
        self.user = deployment.key("user")
        self.operator = deployment.key("operator")
        self.poor = deployment.key("user", tenant="poor")


class Birdcage:
    """One server process and everything that it has said."""

    def __init__(self, process: ServerProcess, deployment: Deployment, folder: Path, keys: Keys) -> None:
        self.process = process
        self.deployment = deployment
        self.folder = folder
        self.keys = keys
        self.said: list[tuple[str, str]] = []
        """(where, what)."""
        self.reasons: set[str] = set()
        """Of the refusals that came."""
        self.replies: list[str] = []
        """What was answered, which is where outputs belong."""
        self.channel = grpc.aio.secure_channel(process.address, deployment.channel_credentials(), options=SMALL_WINDOW)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.operations = operations_pb2_grpc.OperationsServiceStub(self.channel)

    def metadata(self, credential: str = "") -> Metadata:
        """A credential, and a header that nobody asked for."""
        return (*bearer(credential or self.keys.user), ("x-note", CANARY))

    async def outcome(self, where: str, call: Any) -> str:
        """The reason, or the code, with which a call ends; its answers, trailers and details are kept."""
        try:
            if hasattr(call, "__aiter__"):
                async for answer in call:
                    self.replies.append(str(answer))
            else:
                self.replies.append(str(await call))
        except grpc.aio.AioRpcError as error:
            return self._keep(where, error)
        except asyncio.CancelledError:
            return "CANCELLED"
        self.said.append((where, repr(await call.trailing_metadata())))
        return "OK"

    async def scrape(self) -> None:
        """Keep the metrics page as it is now."""
        self.said.append(("metrics", await asyncio.to_thread(_read, self.process.metrics_port)))

    def heard(self) -> list[tuple[str, str]]:
        """All that came out, the log and the audit records included; for a process that has ended."""
        records = [path.read_text() for path in (self.folder / "audit").iterdir()]
        return [
            *self.said,
            ("log", "\n".join(json.dumps(line, ensure_ascii=False) for line in self.process.log)),
            ("audit", "".join(records)),
        ]

    def _keep(self, where: str, error: grpc.aio.AioRpcError) -> str:
        trailers = dict(error.trailing_metadata() or ())
        details = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
        self.said.append((where, f"{error.details()} {trailers!r} {details}"))
        info = error_details_pb2.ErrorInfo()
        reason = next((info.reason for packed in details.details if packed.Unpack(info)), error.code().name)
        self.reasons.add(reason)
        return reason


@asynccontextmanager
async def birdcage(folder: Path, **settings: Any) -> AsyncIterator[Birdcage]:
    """A server that is loading its model, with TLS, keys, tokens, quotas, audit records and its most talkative log."""
    deployment = Deployment(folder)
    (folder / "plans.toml").write_text(PLANS)
    (folder / "tenants.toml").write_text(TENANTS)
    given = deployment.settings() | {
        "jwt": json.dumps(deployment.issuer.settings()),
        "tenants": folder / "tenants.toml",
        "audit_dir": folder / "audit",
        "log_level": "debug",
        **settings,
    }
    options = {"plans": str(folder / "plans.toml"), "start_delay_s": 1.0, "recover_after_s": 0.1, "max_running": 4}
    keys = Keys(deployment)
    async with server_process(until="listening", engine_options=options, **given) as process:
        cage = Birdcage(process, deployment, folder, keys)
        try:
            yield cage
        finally:
            await cage.channel.close()


def _read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        text: str = page.read().decode()
        return text
