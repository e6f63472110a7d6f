"""What the scripted engine draws: by seed, output and position, from a distribution that the request shapes."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import FinishReason, Grammar, GrammarKind, Sampling
from inferwire_server.engines.scripted import Plan
from inferwire_server.engines.scripted.sampler import PositionKeyedDraws, cumulative_weights
from inferwire_server.engines.scripted.token_model import LOGITS
from inferwire_server.engines.scripted.vocabulary import END_ID, byte_tokens, text_of

from tests.engines.scripted_driving import Driver, drive

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0, 100.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.1]),
    top_k=st.sampled_from([0, 1, 5, 2**31 - 1]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)
penalties = st.sampled_from(
    [
        {},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": ((32, -100.0),)},
    ]
)


async def _tokens(driver: Driver, **changes: Any) -> list[int]:
    return driver.run(max_output_tokens=40, **changes).token_ids


class TestDraws:
    @given(seed=st.integers(0, 2**32 - 1), output=st.integers(0, 16), positions=st.lists(st.integers(0, 10_000)))
    def test_a_draw_depends_on_its_position_and_on_nothing_drawn_before(
        self, seed: int, output: int, positions: list[int]
    ) -> None:
        draws = PositionKeyedDraws(seed, output)
        assert [draws.at(p) for p in positions] == [PositionKeyedDraws(seed, output).at(p) for p in positions]

    def test_draws_are_uniform(self) -> None:
        draws = PositionKeyedDraws(1, 0)
        deciles = Counter(int(draws.at(position) * 10) for position in range(10_000))
        assert all(900 < deciles[decile] < 1100 for decile in range(10))

    @given(samplings.filter(lambda sampling: sampling.temperature >= 0.3))
    def test_truncation_keeps_the_likeliest_and_never_nothing(self, sampling: Sampling) -> None:
        kept = cumulative_weights(LOGITS, sampling)
        assert 1 <= len(kept) <= min(sampling.top_k or len(LOGITS), len(LOGITS))
        assert kept == sorted(kept)

    @given(st.floats(0.01, 0.99))
    def test_top_p_keeps_the_fewest_tokens_that_reach_it(self, top_p: float) -> None:
        kept = cumulative_weights(LOGITS, Sampling(top_p=top_p))
        wanted = top_p * sum(math.exp(logit - LOGITS[0]) for logit in LOGITS)
        assert kept[-1] >= wanted
        assert len(kept) == 1 or kept[-2] < wanted

    async def test_tokens_come_as_often_as_their_logprobs_say(self) -> None:
        driver = await drive()
        firsts = [driver.run(sampling=Sampling(seed=seed), max_output_tokens=1) for seed in range(2000)]
        logprobs = driver.run(max_output_tokens=1, top_logprobs=3).logprobs[0].top
        counts = Counter(recorder.token_ids[0] for recorder in firsts)
        for candidate in logprobs:
            assert candidate.logprob is not None
            expected = 2000 * math.exp(candidate.logprob)
            assert abs(counts[candidate.token_id] - expected) < 5 * math.sqrt(expected)

    async def test_a_high_temperature_breaks_utf8_and_a_usual_one_does_not(self) -> None:
        driver = await drive()
        texts = {
            temperature: "".join(
                driver.run(sampling=Sampling(temperature=temperature, seed=seed), max_output_tokens=64).text
                for seed in range(16)
            )
            for temperature in (1.0, 2.0)
        }
        assert texts[1.0].count("�") < 5
        assert texts[2.0].count("�") > 16


class TestOneAnswer:
    """However an output is asked for, its tokens are the same."""

    @given(samplings, penalties)
    async def test_continues_exactly_at_every_cut(self, sampling: Sampling, penalty: dict[str, Any]) -> None:
        driver = await drive(plans=Plan(mean_output_tokens=30.0))
        sampling = Sampling(**{field: getattr(sampling, field) for field in _PLAIN_FIELDS}, **penalty)
        whole = await _tokens(driver, sampling=sampling, output_index=2)
        for cut in range(1, len(whole), 7):
            rest = driver.run(
                sampling=sampling, output_index=2, resumed_token_ids=whole[:cut], max_output_tokens=40 - cut
            )
            assert whole[:cut] + rest.token_ids == whole

    @given(samplings)
    async def test_the_careful_way_and_the_fast_way_choose_the_same(self, sampling: Sampling) -> None:
        driver = await drive()
        fast = await _tokens(driver, sampling=sampling, ignore_end_of_sequence=True)
        careful = await _tokens(driver, sampling=sampling, min_output_tokens=40)
        assert careful == fast

    @given(samplings)
    async def test_asking_for_logprobs_changes_nothing(self, sampling: Sampling) -> None:
        driver = await drive(plans=Plan(mean_output_tokens=30.0))
        assert await _tokens(driver, sampling=sampling, top_logprobs=2) == await _tokens(driver, sampling=sampling)

    async def test_a_planned_reply_survives_a_usual_temperature(self) -> None:
        driver = await drive(plans=Plan(reply="exactly this"))
        replies = {driver.run(sampling=Sampling(seed=seed), max_output_tokens=40).text for seed in range(8)}
        assert replies == {"exactly this"}

    async def test_a_bias_can_ban_a_planned_token_and_its_end(self) -> None:
        driver = await drive(plans=Plan(reply="aaaa"))
        sampling = Sampling(temperature=0.0, logit_bias=((97, -100.0), (END_ID, -100.0)))
        recorder = driver.run(sampling=sampling, max_output_tokens=12)
        assert ord("a") not in recorder.token_ids
        assert recorder.finished.reason is FinishReason.LENGTH

    async def test_a_reply_without_its_end_is_followed_by_words(self) -> None:
        driver = await drive(plans=Plan(reply="Sure:"))
        text = driver.run(ignore_end_of_sequence=True, max_output_tokens=40).text
        assert text.startswith("Sure:")
        assert len(text) == 40


_PLAIN_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")


class TestLogprobs:
    @pytest.mark.parametrize("reply", [None, "planned"])
    async def test_candidates_are_distinct_and_sum_to_at_most_one(self, reply: str | None) -> None:
        driver = await drive(plans=Plan(reply=reply))
        for entry in driver.run(top_logprobs=20).logprobs:
            assert len({candidate.token_id for candidate in entry.top}) == 20
            assert sum(math.exp(candidate.logprob or 0.0) for candidate in entry.top) <= 1.0 + 1e-9

    async def test_more_candidates_than_promised_are_refused(self) -> None:
        driver = await drive()
        with pytest.raises(InvalidRequest, match="top_logprobs"):
            driver.submit(top_logprobs=21)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1},
    {"enum": ["ä", "b", 3, None]},
    {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
    {"type": "object", "additionalProperties": {"type": "string"}},
]


class TestGrammars:
    @pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
    @pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
    async def test_what_ends_by_itself_is_valid(self, schema: dict[str, Any], temperature: float) -> None:
        driver = await drive()
        grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema))
        outputs = [
            driver.run(grammar=grammar, sampling=Sampling(temperature=temperature, seed=seed), max_output_tokens=200)
            for seed in range(8)
        ]
        ended = [recorder for recorder in outputs if recorder.finished.reason is FinishReason.STOP]
        assert len(ended) >= 4
        for recorder in ended:
            jsonschema.validate(json.loads(recorder.text), schema)

    async def test_a_complete_output_ends_even_where_ends_are_ignored(self) -> None:
        driver = await drive()
        grammar = Grammar(kind=GrammarKind.REGEX, source="ab")
        recorder = driver.run(grammar=grammar, ignore_end_of_sequence=True, min_output_tokens=8)
        assert recorder.text == "ab"
        assert recorder.finished.reason is FinishReason.STOP

    async def test_a_planned_reply_is_followed_as_far_as_the_grammar_permits(self) -> None:
        driver = await drive(plans=Plan(reply='{"n":42}'))
        grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type":"object"}')
        assert driver.run(grammar=grammar, max_output_tokens=40).text == '{"n":42}'

    async def test_resumed_tokens_that_disobey_are_refused(self) -> None:
        driver = await drive()
        grammar = Grammar(kind=GrammarKind.REGEX, source="[0-9]+")
        with pytest.raises(InvalidRequest, match="resume"):
            driver.submit(grammar=grammar, resumed_token_ids=byte_tokens("x"))
        assert driver.engine.load().running == 0

    @pytest.mark.parametrize(
        "grammar",
        [
            Grammar(kind=GrammarKind.CHOICES),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"$ref":"#"}'),
            Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"not":{}}'),
            Grammar(kind=GrammarKind.EBNF, source="root ::= root"),
            Grammar(kind=GrammarKind.EBNF, source=""),
        ],
        ids=lambda grammar: grammar.source or grammar.kind.value,
    )
    async def test_what_cannot_be_compiled_is_refused_with_its_field(self, grammar: Grammar) -> None:
        driver = await drive()
        with pytest.raises(InvalidRequest) as refused:
            await driver.engine.check(grammar)
        assert refused.value.field == f"structured_output.{grammar.kind.value}"
        with pytest.raises(InvalidRequest):
            driver.submit(grammar=grammar)

    async def test_bytes_of_a_character_are_permitted_one_by_one(self) -> None:
        driver = await drive()
        grammar = Grammar(kind=GrammarKind.CHOICES, texts=("龜",))
        recorder = driver.run(grammar=grammar)
        assert len(recorder.token_ids) == 3
        assert text_of(recorder.token_ids) == "龜"
