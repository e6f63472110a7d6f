"""Names become folders, so nothing in them may reach outside or differ between systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.models.errors import InvalidModelName
from inferwire_server.models.names import check_name, name_from, split_reference


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/abs",
        ".hidden",
        "-flag",
        "a..b",
        "Upper",
        "nul",
        "com1.x",
        "é",
        "a\n",
        "a" * 97,
    ],
)
def test_a_name_that_is_no_safe_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidModelName):
        check_name(name, "model name")


@given(st.text(max_size=120))
def test_whatever_is_accepted_stays_below_the_root(name: str) -> None:
    root = Path("/models")
    try:
        check_name(name, "model name")
    except InvalidModelName:
        return

    assert (root / name).parent == root
    assert Path(root / name).name == name


@given(st.text(max_size=200))
def test_a_derived_name_is_always_acceptable(text: str) -> None:
    try:
        name = name_from(text)
    except InvalidModelName:
        return

    assert check_name(name, "model name") == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b-instruct"),
        ("My Model (v2)", "my-model-v2"),
        ("__x__", "x"),
        ("a...b", "a.b"),
    ],
)
def test_a_name_is_derived_readably(text: str, name: str) -> None:
    assert name_from(text) == name


def test_a_reference_names_a_version_or_leaves_it_open() -> None:
    assert split_reference("small") == ("small", None)
    assert split_reference("small@q8_0") == ("small", "q8_0")


@pytest.mark.parametrize("reference", ["small@", "@one", "small@a@b", "small@../../x"])
def test_a_malformed_reference_is_refused(reference: str) -> None:
    with pytest.raises(InvalidModelName):
        split_reference(reference)
