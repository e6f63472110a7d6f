"""Calls that begin alike meet at one server, and no server gets much more than the others."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire.policy.affinity import by_affinity
from inferwire.policy.endpoint import EndpointState
from inferwire.prompts import affinity_key
from inferwire.v1 import generation_pb2

from tests.client.policy.endpoints import endpoint

KEYS = [f"key {number}".encode() for number in range(400)]


def four() -> list[EndpointState]:
    return [endpoint(f"eu/{name}") for name in "abcd"]


def test_a_key_has_its_endpoint_and_keys_are_spread() -> None:
    endpoints = four()

    places = [by_affinity(key, endpoints, 1.25).key for key in KEYS]

    assert places == [by_affinity(key, endpoints[::-1], 1.25).key for key in KEYS]
    assert min(Counter(places).values()) > 70


def test_only_the_keys_of_an_endpoint_that_leaves_move() -> None:
    endpoints = four()
    before = {key: by_affinity(key, endpoints, 1.25).key for key in KEYS}

    after = {key: by_affinity(key, endpoints[1:], 1.25).key for key in KEYS}

    assert all(after[key] == place for key, place in before.items() if place != "eu/a")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.sampled_from([1.0, 1.25, 2.0]))
def test_no_endpoint_holds_more_than_its_bound(keys: list[int], bounded_load: float) -> None:
    endpoints = four()
    for number in keys:
        by_affinity(bytes([number]), endpoints, bounded_load).begin()

    mean = len(keys) / len(endpoints)
    assert max(one.outstanding for one in endpoints) < bounded_load * mean + 1.0


def test_a_key_spills_to_the_same_next_endpoint_each_time() -> None:
    endpoints = four()
    first = by_affinity(b"k", endpoints, 1.25)
    first.begin(8)

    second = by_affinity(b"k", endpoints, 1.25)

    assert second is not first
    assert {by_affinity(b"k", endpoints, 1.25).key for _ in range(10)} == {second.key}


PREFIX = "You are a helpful assistant. " * 40


def prompt(text: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(prompt=text)


def chat(*texts: str) -> generation_pb2.GenerateRequest:
    messages = [generation_pb2.ChatMessage(role="user", text=text) for text in texts]
    return generation_pb2.GenerateRequest(chat=generation_pb2.Chat(messages=messages))


def tokens(*ids: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=ids))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (prompt(PREFIX + "a"), prompt(PREFIX + "b"), True),
        (prompt(PREFIX + "a"), prompt("x" + PREFIX), False),
        (chat(PREFIX, "a"), chat(PREFIX, "b", "c"), True),
        (chat(PREFIX), chat("x", PREFIX), False),
        (tokens(*range(256), 1), tokens(*range(256), 2), True),
        (tokens(*range(256)), tokens(*range(1, 257)), False),
    ],
    ids=["prompts", "other prompts", "chats", "other chats", "ids", "other ids"],
)
def test_equal_beginnings_have_equal_keys(
    one: generation_pb2.GenerateRequest, other: generation_pb2.GenerateRequest, is_same: bool
) -> None:
    keys = [affinity_key(each, (), 1024) for each in (one, other)]

    assert None not in keys
    assert (keys[0] == keys[1]) is is_same


@pytest.mark.parametrize("short", [prompt("hi"), chat("hi", "you"), tokens(1, 2, 3), generation_pb2.GenerateRequest()])
def test_a_short_prompt_has_no_key(short: generation_pb2.GenerateRequest) -> None:
    assert affinity_key(short, (), 1024) is None


def test_a_session_goes_before_the_prompt_and_works_without_prefixes() -> None:
    session = (("x-inferwire-session", "conversation 7"),)

    keys = {affinity_key(prompt(text), session, length) for text in ("hi", PREFIX) for length in (0, 1024)}

    assert len(keys) == 1
    assert None not in keys
    assert affinity_key(prompt(PREFIX), (), 0) is None
