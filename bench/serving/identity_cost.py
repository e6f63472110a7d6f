"""What knowing the caller and its quota costs: the share of a unary call's server CPU, the engine's own left out.

One server asks nobody, another asks for a credential and counts against every limit; both are on one core, in turns,
and the caller is on the other.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from inferwire_server.security.key_file import KeyFile

from bench.figures import Figure, figure_of
from bench.serving import calls
from bench.serving.processes import ServerProcess, away_from, inferwire_server, serving_core
from bench.serving.token_cost import STREAMS, UNARY_STEP_S, UNARY_TOKENS, engine_alone
from bench.serving.turns import turns

ROUNDS = 10
TURNS = 5
TIME_S = 35.0
_ISSUER = {"issuer": "https://issuer.example", "audience": "inferwire"}

_TENANTS = """
[default]
concurrent_requests = 1_000_000
requests_per_minute = 1_000_000_000
tokens_per_minute = 1_000_000_000_000
monthly_tokens = 1_000_000_000_000_000
max_prompt_tokens = 100_000
max_output_tokens = 100_000
"""
"""Every limit there is, and none that is reached."""

Credentials = Sequence[str]


class _Signer:
    """Tokens of two key kinds; no two are the same."""

    def __init__(self) -> None:
        self._keys: dict[str, Any] = {
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        }
        self._numbers = count()

    def jwks(self) -> str:
        kinds: dict[str, Any] = {"ES256": jwt.algorithms.ECAlgorithm, "RS256": jwt.algorithms.RSAAlgorithm}
        public = {name: kinds[name].to_jwk(key.public_key(), as_dict=True) for name, key in self._keys.items()}
        return json.dumps({"keys": [{**key, "kid": name, "alg": name} for name, key in public.items()]})

    def tokens(self, algorithm: str, number: int) -> list[str]:
        claims = {
            "iss": _ISSUER["issuer"],
            "aud": _ISSUER["audience"],
            "sub": "bench",
            "exp": time.time() + 3600,
            "tenant": "bench",
            "roles": ["user"],
        }
        return [
            jwt.encode(
                {**claims, "jti": str(next(self._numbers))},
                self._keys[algorithm],
                algorithm,
                headers={"kid": algorithm},
            )
            for _ in range(number)
        ]


async def measure() -> list[Figure]:
    """About a minute."""
    core = serving_core()
    signer, now = _Signer(), datetime.now(UTC)
    with away_from(core), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jwks.json").write_text(signer.jwks(), encoding="utf-8")
        (folder / "tenants.toml").write_text(_TENANTS, encoding="utf-8")
        keys = KeyFile(folder / "keys.json", folder / "keys.secret")
        key = keys.create(tenant="bench", subject="", roles=["user"], now=now, expires_at=None)
        identities = {
            "api_keys": str(folder / "keys.json"),
            "api_keys_secret": str(folder / "keys.secret"),
            "jwt": {**_ISSUER, "jwks": str(folder / "jwks.json")},
            "tenants": str(folder / "tenants.toml"),
        }
        number = STREAMS * ROUNDS
        used_again = signer.tokens("ES256", 1)
        return await _shares(
            core,
            identities,
            {
                "API key": lambda: [key],
                "JWT (ES256), one that was seen in the last minute": lambda: used_again,
                "JWT (RS256), each verified anew": lambda: signer.tokens("RS256", number),
                "JWT (ES256), each verified anew": lambda: signer.tokens("ES256", number),
            },
        )


async def _shares(
    core: int | None, identities: dict[str, Any], kinds: dict[str, Callable[[], Credentials]]
) -> list[Figure]:
    async with AsyncExitStack() as stack:
        asks_nobody = await _calling(stack, core, {})
        asks = await _calling(stack, core, identities)
        costs: dict[str, list[float]] = {kind: [] for kind in ("nobody", "engine", *kinds)}
        for turn in turns(TURNS + 1, within_s=TIME_S):
            taken = {"engine": (await engine_alone(UNARY_STEP_S, UNARY_TOKENS, rounds=ROUNDS, per_call=True)).cost_s}
            taken["nobody"] = await asks_nobody(())
            for kind, credentials in kinds.items():
                taken[kind] = await asks(credentials())
            if turn:
                for kind, cost_s in taken.items():
                    costs[kind].append(cost_s)
    return [_share(kind, costs, at_most=0.15 if kind == "API key" else 0.40) for kind in kinds]


async def _calling(
    stack: AsyncExitStack, core: int | None, identities: dict[str, Any]
) -> Callable[[Credentials], Awaitable[float]]:
    """CPU seconds of the server for a call with one of some credentials."""
    options = {"step_base_s": UNARY_STEP_S, "max_running": STREAMS}
    settings = {"engine_options": options, **identities}
    server: ServerProcess = await stack.enter_async_context(
        inferwire_server("--engine", "scripted", settings=settings, core=core)
    )
    channel = await stack.enter_async_context(server.channel())
    requests = calls.different_requests(STREAMS * ROUNDS, UNARY_TOKENS)

    async def turn(credentials: Credentials) -> float:
        metadata = [(("authorization", f"Bearer {credential}"),) for credential in credentials]
        began = server.cpu_s()
        received = await calls.replies(channel, requests, at_once=STREAMS, metadata=metadata)
        used = server.cpu_s() - began
        received.check_replies(UNARY_TOKENS)
        return used / received.calls

    return turn


def _share(kind: str, costs: dict[str, list[float]], *, at_most: float) -> Figure:
    shares = [
        (asked - unasked) / (asked - engine)
        for asked, unasked, engine in zip(costs[kind], costs["nobody"], costs["engine"], strict=True)
    ]
    detail = (
        f"{_us(costs[kind])} us a call of 16 tokens against {_us(costs['nobody'])}, {_us(costs['engine'])} the engine's"
    )
    return figure_of(f"knowing the caller and its quota by {kind}", shares, at_most=at_most, detail=detail)


def _us(seconds: list[float]) -> str:
    return f"{1e6 * median(seconds):.0f}"
