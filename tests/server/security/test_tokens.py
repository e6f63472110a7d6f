"""A token counts when the issuer signed it for this service and its time has not passed; nothing else does."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import Starting, Unauthenticated
from inferwire_server.security.key_sets import KeySet, parse_key_set
from inferwire_server.security.tokens import Tokens
from inferwire_server.security.verdicts import Verdicts
from inferwire_server.settings import JwtSettings

from tests.secured import Issuer

_MEMBERS = st.sampled_from(["kid", "kty", "crv", "alg", "use", "n", "e", "x", "y", "k", "d", "keys"])
_WORDS = st.sampled_from(
    ["RSA", "EC", "OKP", "oct", "P-256", "P-521", "Ed25519", "X25519", "ES256", "sig", "AQAB", "AA"]
)


class Clock:
    """Wall and monotonic time in one, moved by hand."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Failures(list[str]):
    def __call__(self, kind: str) -> None:
        self.append(kind)


def checker(issuer: Issuer, clock: Callable[[], float] = time.time, source: str = "", **changes: Any) -> Tokens:
    settings = JwtSettings(**issuer.settings(**changes))
    keys = KeySet(source or settings.jwks, settings.algorithms, refresh_s=300, failed=Failures(), clock=clock)
    return Tokens(settings, keys, clock)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "jwks.json")


async def refusal_of(tokens: Tokens, token: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await tokens.caller(token)
    assert token not in caught.value.message
    return caught.value.message


async def test_claims_become_a_caller(issuer: Issuer) -> None:
    token = issuer.token(sub="backend-7", tenant="acme", roles=["user", "auditor"])
    assert await checker(issuer).caller(token) == Caller(
        tenant="acme", subject="backend-7", roles=frozenset({"user", "auditor"})
    )
    words = issuer.token(org="other", scope="user operator")
    renamed = checker(issuer, tenant_claim="org", roles_claim="scope")
    assert (await renamed.caller(words)) == Caller(
        tenant="other", subject="backend", roles=frozenset({"user", "operator"})
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"tenant": None},
        {"tenant": "../other"},
        {"tenant": 7},
        {"roles": 7},
        {"roles": [7]},
        {"roles": {"user": True}},
        {"nbf": time.time() + 3600},
        {"exp": "soon"},
    ],
    ids=str,
)
async def test_a_claim_that_is_wrong_or_missing_is_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    assert await refusal_of(checker(issuer), issuer.token(**claims))


async def test_a_token_that_never_ends_is_as_good_as_the_issuers_word(issuer: Issuer) -> None:
    assert (await checker(issuer).caller(issuer.token(exp=10**400))).tenant == "acme"


async def test_a_token_that_has_ended_is_refused_beyond_the_leeway(issuer: Issuer) -> None:
    ended = issuer.token(expires_in_s=-10)
    assert await refusal_of(checker(issuer, leeway=0), ended) == "the token has expired"
    await checker(issuer, leeway=60).caller(ended)


def test_a_verdict_stands_for_a_minute_at_most_and_never_beyond_the_tokens_end() -> None:
    verdicts, caller = Verdicts(), Caller(tenant="acme")
    verdicts.put(b"long", caller, now=100.0, expires_at=10**400)
    verdicts.put(b"short", caller, now=100.0, expires_at=103)
    assert verdicts.get(b"long", 159.9) is caller
    assert verdicts.get(b"long", 160.0) is None
    assert verdicts.get(b"short", 102.9) is caller
    assert verdicts.get(b"short", 103.0) is None


def test_only_so_many_verdicts_are_kept_the_latest_used() -> None:
    verdicts, caller = Verdicts(), Caller(tenant="acme")
    for number in range(5000):
        verdicts.put(number.to_bytes(2), caller, now=0.0, expires_at=50)
        assert verdicts.get((0).to_bytes(2), 0.0) is caller
    assert sum(verdicts.get(number.to_bytes(2), 0.0) is caller for number in range(5000)) == 4096


async def test_a_signature_by_anything_but_the_issuers_key_is_refused(issuer: Issuer, tmp_path: Path) -> None:
    tokens = checker(issuer)
    head, payload, signature = issuer.token().split(".")
    other = Issuer(tmp_path / "other.json")
    public = json.loads(issuer.jwks.read_text())["keys"][0]
    claims = jwt.decode(f"{head}.{payload}.{signature}", options={"verify_signature": False})
    of_another_kind = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = [
        other.token(),
        f"{head}.{_encoded({**claims, 'tenant': 'rich'})}.{signature}",
        f"{_encoded({'alg': 'none', 'kid': 'first'})}.{payload}.",
        jwt.encode(claims, json.dumps(public) * 2, algorithm="HS256", headers={"kid": "first"}),
        jwt.encode(claims, of_another_kind, algorithm="RS256", headers={"kid": "first"}),
        issuer.token(headers={"kid": "absent"}),
        f"{_encoded({'alg': 'ES256'})}.{payload}.{signature}",
        f"{_encoded({'alg': 'ES256', 'kid': 7})}.{payload}.{signature}",
        f"{head}.{payload}",
        f"{head}.{payload}.{signature[:-2]}",
        "." * 2,
    ]
    for token in forged:
        assert await refusal_of(tokens, token)


async def test_keys_of_another_use_or_kind_are_left_out() -> None:
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key.public_key(), as_dict=True)
    entries = [
        {**public, "kid": "for encryption", "use": "enc"},
        {**public, "kid": "of another algorithm", "alg": "RS512"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric"},
        {**public, "kid": 7},
        public,
        {**public, "kid": "plain"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"},
    ]
    found = parse_key_set(json.dumps({"keys": entries}).encode(), ["RS256", "PS256", "ES256"])
    assert {name: key.algorithms for name, key in found.items()} == {"plain": ("RS256", "PS256")}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": [7]}', b"[" * 100_000, b"\xff"])
def test_what_is_no_key_set_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"(?i)key"):
        parse_key_set(content, ["ES256"])


class Publisher:
    """Serves a key set over HTTP and counts how often it was asked."""

    def __init__(self, file: Path) -> None:
        self.asked = 0
        self.is_broken = False
        self.points_to = b""
        self.is_gibberish = False
        self._file = file

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        if self.is_gibberish:
            writer.write(b"\x00\xff gibberish\r\n\r\n")
            writer.close()
            return
        body = b"{" if self.is_broken else self._file.read_bytes()
        status = b"302 Found\r\nLocation: " + self.points_to if self.points_to else b"200 OK"
        head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        writer.write(head + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def published(file: Path) -> AsyncIterator[tuple[Publisher, str]]:
    publisher = Publisher(file)
    server = await asyncio.start_server(publisher.answer, "127.0.0.1", 0)
    try:
        yield publisher, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
    finally:
        server.close()


async def test_a_new_key_is_fetched_once_for_all_who_bring_it_and_made_up_ones_are_not(issuer: Issuer) -> None:
    clock = Clock()
    async with published(issuer.jwks) as (publisher, address):
        tokens = checker(issuer, clock, address)
        await asyncio.gather(*[tokens.caller(issuer.token(sub=f"s{number}")) for number in range(20)])
        assert publisher.asked == 1
        for number in range(20):
            assert await refusal_of(tokens, issuer.token(headers={"kid": f"made up {number}"}))
        assert publisher.asked == 1
        clock.now += 10
        issuer.rotate("second", keep=["first"])
        await asyncio.gather(*[tokens.caller(issuer.token(sub=f"s{number}")) for number in range(20)])
        assert publisher.asked == 2


async def test_while_the_issuers_keys_were_never_seen_a_token_is_for_later_and_afterwards_old_keys_stay(
    issuer: Issuer,
) -> None:
    clock = Clock()
    async with published(issuer.jwks) as (publisher, address):
        publisher.is_broken = True
        tokens = checker(issuer, clock, address)
        with pytest.raises(Starting):
            await tokens.caller(issuer.token())
        publisher.is_broken = False
        clock.now += 10
        await tokens.caller(issuer.token())
        publisher.is_broken = True
        clock.now += 10
        assert await refusal_of(tokens, issuer.token(headers={"kid": "another"}))
        await tokens.caller(issuer.token(sub="new"))


async def test_keys_are_taken_from_the_address_alone_not_from_where_it_points(issuer: Issuer) -> None:
    async with published(issuer.jwks) as (publisher, address), published(issuer.jwks) as (other, elsewhere):
        publisher.points_to = elsewhere.encode()
        with pytest.raises(Starting):
            await checker(issuer, source=address).caller(issuer.token())
        assert (publisher.asked, other.asked) == (1, 0)


async def test_an_address_that_answers_in_no_known_way_is_asked_again_later(issuer: Issuer) -> None:
    clock = Clock()
    async with published(issuer.jwks) as (publisher, address):
        publisher.is_gibberish = True
        tokens = checker(issuer, clock, address)
        with pytest.raises(Starting):
            await tokens.caller(issuer.token())
        publisher.is_gibberish = False
        clock.now += 10
        await tokens.caller(issuer.token())


@given(st.lists(st.dictionaries(_MEMBERS, _WORDS | st.sampled_from([None, 7, [], {}, ""]), max_size=8), max_size=2))
def test_no_key_set_makes_reading_it_fail_otherwise_than_as_a_bad_one(entries: list[Any]) -> None:
    try:
        found = parse_key_set(json.dumps({"keys": entries}).encode(), ["RS256", "ES256", "EdDSA"])
    except ValueError:
        return
    assert all(found)


async def test_a_verdict_falls_with_the_key_that_proved_it(issuer: Issuer) -> None:
    settings = JwtSettings(**issuer.settings())
    keys = KeySet(settings.jwks, settings.algorithms, refresh_s=300, failed=Failures())
    tokens = Tokens(settings, keys)
    token = issuer.token()
    await tokens.caller(token)
    issuer.rotate("second")
    assert keys.refresh()
    assert await refusal_of(tokens, token)


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
