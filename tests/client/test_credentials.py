"""A credential that ends is fetched once an expiry, in time, by one for all."""

from __future__ import annotations

import asyncio

import pytest
from inferwire import Token
from inferwire.credentials import FetchedCredential
from inferwire.errors import Unauthenticated

from tests.polling import until


class Issuer:
    """Hands out tokens that last 100 s, on a clock moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.issued = 0
        self.is_down = False
        self.gate = asyncio.Event()
        self.gate.set()

    def clock(self) -> float:
        return self.now

    async def fetch(self) -> Token:
        await self.gate.wait()
        if self.is_down:
            raise ConnectionError("the issuer is down")
        self.issued += 1
        return Token(f"token {self.issued}", expires_at=self.now + 100)


def credential(issuer: Issuer) -> FetchedCredential:
    return FetchedCredential(issuer.fetch, issuer.clock)


async def test_one_fetch_serves_all_who_wait_and_all_who_come_until_it_is_nearly_over() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    wanted = credential(issuer)
    assert wanted.at_hand() is None
    waiting = [asyncio.create_task(wanted.get()) for _ in range(50)]
    issuer.gate.set()
    assert set(await asyncio.gather(*waiting)) == {"token 1"}
    issuer.now += 89
    assert {wanted.at_hand() for _ in range(50)} == {"token 1"}
    assert issuer.issued == 1


async def test_it_is_renewed_before_it_ends_while_the_old_one_still_goes_out() -> None:
    issuer = Issuer()
    wanted = credential(issuer)
    await wanted.get()
    for expiry in range(1, 6):
        issuer.now += 95
        assert {wanted.at_hand() for _ in range(50)} == {f"token {expiry}"}
        await until(lambda expected=expiry + 1: wanted.at_hand() == f"token {expected}")  # type: ignore[misc]
        assert issuer.issued == expiry + 1


async def test_a_vain_renewal_leaves_the_old_one_until_its_end_and_is_tried_again() -> None:
    issuer = Issuer()
    wanted = credential(issuer)
    await wanted.get()
    issuer.is_down = True
    issuer.now += 95
    assert wanted.at_hand() == "token 1"
    issuer.now += 5
    assert wanted.at_hand() is None
    with pytest.raises(Unauthenticated, match="ConnectionError"):
        await wanted.get()
    issuer.is_down = False
    assert await wanted.get() == "token 2"


async def test_who_leaves_does_not_take_the_fetch_with_it() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    wanted = credential(issuer)
    leaving, staying = asyncio.create_task(wanted.get()), asyncio.create_task(wanted.get())
    await asyncio.sleep(0)
    leaving.cancel()
    issuer.gate.set()
    assert await staying == "token 1"
    assert repr(Token("secret")) == "Token(expires_at=None)"
