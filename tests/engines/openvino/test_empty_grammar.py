"""A grammar of which no text can come is told from one that has an end somewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.openvino.empty_grammar import derives_nothing


@pytest.mark.parametrize(
    "source",
    [
        "root ::= root",
        'root ::= "a" root | root "b"',
        'root ::= "a" pair # for ever\npair ::= "(" root ")"',
        'root ::= (root | "x" root)+ "a"',
        "root ::= other{1,3}\nother ::= [a-z] other",
    ],
)
def test_without_an_end(source: str) -> None:
    assert derives_nothing(source)


@pytest.mark.parametrize(
    "source",
    [
        'root ::= root "a" | "a"',
        'root ::= "a" root?',
        'root ::= "a" (root)*',
        'root ::= other{0,3} "x"\nother ::= other',
        'root ::= ""',
        "root ::=",
        'root ::= "::=" | [|()"]\n# root ::= root',
        'word ::= "red" | "green"\nroot ::= word ("," word)*',
        'start ::= "a"',
        'root ::= "a',
        "root ::= missing",
        pytest.param("root ::= " + "(" * 30_000 + "root" + ")" * 30_000, id="deep"),
        pytest.param(
            "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(5_000)) + 'r5000 ::= "x"', id="long"
        ),
    ],
)
def test_with_an_end_or_for_the_compiler_to_refuse(source: str) -> None:
    assert not derives_nothing(source)


@given(st.text(alphabet='ab:= |()"[]*?+{}0,1\\#\nrot', max_size=60))
def test_any_text_is_read_to_its_end(source: str) -> None:
    derives_nothing("root ::= " + source)
