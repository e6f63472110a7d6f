"""Where an output ends, and what is said of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Engine, Finished
from inferwire_server.domain.generation import FinishReason, Grammar, GrammarKind

from tests.engines.openvino.byte_model import END, text_of, token, tokens
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.requests import a_request, run
from tests.engines.openvino.table_model import Table, write_table_model

SECOND_END = token("~")
STOPPED, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TABLE: Table = {
    # "abcd" and then the end; were the end forbidden, round again.
    token("a"): {token("b"): 9.0},
    token("b"): {token("c"): 9.0},
    token("c"): {token("d"): 9.0},
    token("d"): {END: 9.0, token("a"): -5.0, SECOND_END: -9.0},
    END: {token("x"): 9.0},
    token("x"): {token("x"): 9.0, SECOND_END: 1.0},
    token("y"): {SECOND_END: 9.0},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_table_model(tmp_path_factory.mktemp("table") / "alphabet.gguf", TABLE)
    async with running(byte_model_options(path, end_token_ids=frozenset({END, SECOND_END}))) as engine:
        yield engine


@pytest.mark.parametrize(
    ("changes", "text", "finished"),
    [
        pytest.param({}, "bcd", Finished(reason=STOPPED, end_token_id=END), id="by itself"),
        pytest.param(
            {"prompt": "y"}, "", Finished(reason=STOPPED, end_token_id=SECOND_END), id="by the second end id, at once"
        ),
        pytest.param({"limit": 2}, "bc", Finished(reason=LENGTH), id="at its length"),
        pytest.param({"limit": 3}, "bcd", Finished(reason=LENGTH), id="at its length, before the end comes"),
        pytest.param(
            {"stop_token_ids": frozenset(tokens("dz"))},
            "bc",
            Finished(reason=STOPPED, stop_token_id=token("d")),
            id="at a stop id",
        ),
        pytest.param(
            {"stop_token_ids": frozenset({END})},
            "bcd",
            Finished(reason=STOPPED, end_token_id=END),
            id="an end id among the stop ids is an end id",
        ),
        pytest.param(
            {"min_output_tokens": 5, "limit": 20},
            "bcdabcd",
            Finished(reason=STOPPED, end_token_id=END),
            id="not before the minimum",
        ),
    ],
)
async def test_an_output_ends(engine: Engine, changes: dict[str, Any], text: str, finished: Finished) -> None:
    settings: dict[str, Any] = {"prompt": "a", "limit": 16} | changes
    prompt, limit = settings.pop("prompt"), settings.pop("limit")

    recorder = await run(engine, a_request(tokens(prompt), limit, **settings))

    assert recorder.finished == finished
    assert text_of(recorder.token_ids) == text


async def test_no_stop_id_comes_before_the_minimum(engine: Engine) -> None:
    stops = frozenset(tokens("b"))

    recorder = await run(engine, a_request(tokens("a"), 9, min_output_tokens=3, stop_token_ids=stops))

    assert len(recorder.token_ids) >= 3
    assert not stops.intersection(recorder.token_ids)


async def test_an_ignored_end_is_a_token_like_any_other(engine: Engine) -> None:
    recorder = await run(engine, a_request(tokens("a"), 6, ignore_end_of_sequence=True))

    assert recorder.token_ids == [*tokens("bcd"), END, *tokens("xx")]
    assert recorder.finished == Finished(reason=LENGTH)


async def test_stop_ids_hold_while_the_end_is_ignored(engine: Engine) -> None:
    stops = frozenset(tokens("x"))

    recorder = await run(engine, a_request(tokens("a"), 9, ignore_end_of_sequence=True, stop_token_ids=stops))

    assert recorder.token_ids == [*tokens("bcd"), END]
    assert recorder.finished == Finished(reason=STOPPED, stop_token_id=token("x"))


async def test_an_end_id_that_is_ignored_and_a_stop_id_stops(engine: Engine) -> None:
    stops = frozenset({END})

    recorder = await run(engine, a_request(tokens("a"), 9, ignore_end_of_sequence=True, stop_token_ids=stops))

    assert recorder.token_ids == tokens("bcd")
    assert recorder.finished == Finished(reason=STOPPED, stop_token_id=END)


async def test_a_stop_id_ends_an_output_under_a_grammar(engine: Engine) -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, source="b[a-z]{6}")

    recorder = await run(engine, a_request(tokens("a"), 9, grammar=grammar, stop_token_ids=frozenset(tokens("d"))))

    assert recorder.token_ids == tokens("bc")
    assert recorder.finished == Finished(reason=STOPPED, stop_token_id=token("d"))
    assert engine.load().running == 0
