"""Prefix-cache partitions: one a namespace, and none that a caller can aim at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.tensorrt_llm.cache_salt import cache_salt

PARTS = st.text(max_size=12)


@given(PARTS, PARTS, PARTS, PARTS)
def test_different_parts_give_different_salts(left: str, only: str, right: str, other: str) -> None:
    assert (cache_salt(left, only_for=only) == cache_salt(right, only_for=other)) == ((left, only) == (right, other))


def test_the_border_between_parts_counts() -> None:
    assert cache_salt("ab", only_for="c") != cache_salt("a", only_for="bc")


@pytest.mark.parametrize("namespace", ["", "3:acm:e", "\ud800", "x" * 10_000])
def test_every_namespace_has_a_salt_of_one_form(namespace: str) -> None:
    assert len(cache_salt(namespace)) == 64


def test_a_salt_is_the_same_on_every_server_and_release() -> None:
    assert cache_salt("4:acme:") == "13b2e63212862e7f6ea66b2d6335912f41f59a3783db565d5f44f37d1950a8b7"
