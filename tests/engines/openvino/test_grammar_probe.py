"""A grammar reaches the engine only after another process has compiled it, and soon enough."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Failed
from inferwire_server.domain.errors import CapabilityAbsent, EngineDown, InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.grammar_probe import GrammarProbe
from inferwire_server.models.version import ModelVersion

from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.random_model import write_random_model
from tests.engines.openvino.requests import BOUND_S, a_request, run, submitted

GOOD = Grammar(kind=GrammarKind.REGEX, source="[a-c]{3}")
ALSO_GOOD = Grammar(kind=GrammarKind.EBNF, source='root ::= "red" | "green"')
AMBIGUOUS = Grammar(kind=GrammarKind.REGEX, source="((((a{1,30}){1,30}){1,30}){1,30}){1,30}")
BAD = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type": 12}')

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def probe(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GrammarProbe]:
    probe = GrammarProbe(write_random_model(tmp_path_factory.mktemp("random") / "random.gguf"))
    yield probe
    await probe.close()


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param(GOOD, id="regex"),
        pytest.param(ALSO_GOOD, id="ebnf"),
        pytest.param(Grammar(kind=GrammarKind.CHOICES, texts=("yes", 'no "quotes"\n', "é")), id="choices"),
        pytest.param(Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"type": "object"})), id="json schema"),
    ],
)
async def test_a_good_grammar_passes(probe: GrammarProbe, grammar: Grammar) -> None:
    await probe.check(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param(BAD, id="schema of a wrong type"),
        pytest.param(Grammar(kind=GrammarKind.JSON_SCHEMA, source="{"), id="no JSON"),
        pytest.param(Grammar(kind=GrammarKind.REGEX, source="(["), id="open regex"),
        pytest.param(Grammar(kind=GrammarKind.EBNF, source='root ::= "a'), id="open quotes"),
        pytest.param(Grammar(kind=GrammarKind.EBNF, source='start ::= "a"'), id="no root"),
    ],
)
async def test_a_bad_grammar_is_refused_and_the_next_one_passes(probe: GrammarProbe, grammar: Grammar) -> None:
    with pytest.raises(InvalidRequest, match="cannot be compiled") as refused:
        await probe.check(grammar)

    assert refused.value.field == f"structured_output.{grammar.kind.value}"
    await probe.check(Grammar(kind=GrammarKind.REGEX, source=f"after{len(grammar.source)}"))


async def test_verdicts_are_kept_without_the_process(probe: GrammarProbe) -> None:
    await probe.check(GOOD)
    with pytest.raises(InvalidRequest):
        await probe.check(BAD)
    await kill(probe)

    await probe.check(GOOD)
    with pytest.raises(InvalidRequest):
        await probe.check(BAD)

    assert probe.pid is None


async def test_a_killed_process_is_replaced(probe: GrammarProbe) -> None:
    await probe.check(Grammar(kind=GrammarKind.REGEX, source="before"))
    await kill(probe)

    await probe.check(Grammar(kind=GrammarKind.REGEX, source="behind"))

    assert probe.pid is not None


async def kill(probe: GrammarProbe) -> None:
    assert probe.pid is not None
    os.kill(probe.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while probe.pid is not None:  # noqa: ASYNC110 - a process has no event to wait for
            await asyncio.sleep(0.005)


async def test_a_caller_who_leaves_harms_neither_the_verdict_nor_the_next_caller(probe: GrammarProbe) -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, source="left[0-9]+")
    leaving = asyncio.create_task(probe.check(grammar))
    staying = asyncio.create_task(probe.check(grammar))
    await asyncio.sleep(0)

    leaving.cancel()

    await staying
    await probe.check(ALSO_GOOD)
    assert leaving.cancelled()


async def test_many_at_once_each_get_their_own_verdict(probe: GrammarProbe) -> None:
    grammars = [Grammar(kind=GrammarKind.REGEX, source="(" * (number % 2) + f"x{number}") for number in range(10)]

    verdicts = await asyncio.gather(*map(probe.check, grammars), return_exceptions=True)

    assert [isinstance(verdict, InvalidRequest) for verdict in verdicts] == [number % 2 == 1 for number in range(10)]


@pytest.mark.real_model
@pytest.mark.timeout(180)
async def test_a_costly_grammar_is_refused_and_remembered(smollm2_q8_0: ModelVersion) -> None:
    costly = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"type": "string", "maxLength": 1000}))
    probe = GrammarProbe(smollm2_q8_0.weights_path)

    with pytest.raises(InvalidRequest, match="too costly"):
        await probe.check(costly)
    before = probe.pid
    with pytest.raises(InvalidRequest, match="too costly"):
        await probe.check(costly)

    assert probe.pid == before
    await probe.close()


async def test_a_grammar_that_is_ever_slower_to_follow_is_refused(probe: GrammarProbe) -> None:
    with pytest.raises(InvalidRequest, match="too costly to follow"):
        await probe.check(AMBIGUOUS)

    await probe.check(Grammar(kind=GrammarKind.REGEX, source="after(an ambiguous one)"))


async def test_one_that_begins_to_be_slow_behind_the_walk_ends_when_it_holds_up_the_batch(tmp_path: Path) -> None:
    hidden = Grammar(kind=GrammarKind.REGEX, source="x{60}((((a{1,30}){3,30}){3,30}){3,30}){3,30}")
    async with running(byte_model_options(write_random_model(tmp_path / "random.gguf"))) as engine:
        await engine.check(hidden)
        _, neighbour = submitted(engine, a_request([5], 1000))
        costly = await run(engine, a_request([6], 1000, grammar=hidden))
        await neighbour.until_ended(BOUND_S)

        assert isinstance(costly.terminal, Failed)
        assert isinstance(costly.terminal.error, InvalidRequest)
        assert costly.terminal.error.field == "structured_output.regex"
        assert len(neighbour.token_ids) == 1000
        assert engine.health().restarts == 0
        with pytest.raises(InvalidRequest, match="too costly to follow"):
            await engine.check(hidden)


async def test_closing_leaves_neither_process_nor_file_and_no_second_life(tmp_path: Path) -> None:
    probe = GrammarProbe(write_random_model(tmp_path / "random.gguf"))
    await probe.check(GOOD)
    assert probe.pid is not None
    process = psutil.Process(probe.pid)

    await probe.close()
    await probe.close()

    assert not process.is_running()
    with pytest.raises(EngineDown):
        await probe.check(ALSO_GOOD)


async def test_a_model_that_is_no_gguf_file_offers_no_structured_output(tmp_path: Path) -> None:
    engine = OpenVinoEngine(byte_model_options(tmp_path))

    with pytest.raises(CapabilityAbsent):
        await engine.check(GOOD)

    assert not {field for field in engine.capabilities.request_fields if field.startswith("structured_output")}
