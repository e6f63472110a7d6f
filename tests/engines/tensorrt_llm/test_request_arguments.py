"""What a request becomes: fresh, explicit, keyword by keyword; and what is refused before it gets there."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind, Sampling
from inferwire_server.engines.tensorrt_llm.abilities import capabilities
from inferwire_server.engines.tensorrt_llm.installation import load_installation
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.request_arguments import RequestArguments

from tests.engines.tensorrt_llm.running_engine import request
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint

pytestmark = pytest.mark.usefixtures("standin")


def translator(**options: Any) -> RequestArguments:
    return RequestArguments(toy_checkpoint(), Options(**options), load_installation())


def sampling_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are not at their default."""
    params = arguments["sampling_params"]
    return {
        field.name: getattr(params, field.name)
        for field in dataclasses.fields(params)
        if field.init and getattr(params, field.name) != field.default
    }


def test_a_plain_greedy_request_is_explicit_about_everything() -> None:
    arguments: dict[str, Any] = translator().build(request((201, 202), resumed_token_ids=(203,)))
    assert arguments["inputs"] == {"prompt_token_ids": [201, 202, 203]}
    assert arguments["streaming"] is True
    assert sampling_of(arguments) == {
        "end_id": 2,
        "pad_id": 2,
        "best_of": 1,
        "max_tokens": 16,
        "stop_token_ids": [7],
        "top_k": 1,
        "detokenize": False,
        "add_special_tokens": False,
    }


def test_sampling_always_names_its_width() -> None:
    """Without top_k and top_p the engine would be greedy whatever the temperature."""
    arguments = translator().build(request(sampling=Sampling(temperature=0.7)))
    assert sampling_of(arguments).items() >= {"temperature": 0.7, "top_p": 1.0, "top_k": 0}.items()


def test_every_end_id_but_the_engines_own_goes_down_as_a_stop_id() -> None:
    arguments = translator().build(request(stop_token_ids=frozenset({300, 301})))
    assert sampling_of(arguments)["stop_token_ids"] == [7, 300, 301]


def test_ignored_end_ids_stop_nothing() -> None:
    given = sampling_of(translator().build(request(ignore_end_of_sequence=True, stop_token_ids=frozenset({300}))))
    assert (given["ignore_eos"], given["stop_token_ids"]) == (True, [300])
    assert "bad_token_ids" not in given


def test_the_trtllm_sampler_also_holds_ignored_end_ids_back() -> None:
    given = sampling_of(translator(sampler="trtllm").build(request(ignore_end_of_sequence=True)))
    assert given["bad_token_ids"] == [2, 7]


def test_parameters_are_fresh_for_each_request() -> None:
    arguments = translator()
    same = request()
    assert arguments.build(same)["sampling_params"] is not arguments.build(same)["sampling_params"]


def test_each_output_of_a_seed_has_a_seed_of_its_own() -> None:
    arguments = translator(sampler="trtllm")
    seeds = {
        sampling_of(arguments.build(request(sampling=Sampling(seed=seed), output_index=index)))["seed"]
        for seed in (0, 1, 2**32 - 1)
        for index in range(4)
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_asking_for_the_chosen_logprob_alone_still_asks_the_engine_for_one() -> None:
    given = sampling_of(translator(logprobs=True).build(request(top_logprobs=0)))
    assert given["logprobs"] == 1


def test_a_namespace_becomes_a_salt_and_never_none() -> None:
    build = translator().build
    salts = [build(request(cache_namespace=name))["cache_salt"] for name in ("", "3:abc:", "3:abd:", "")]
    assert None not in salts
    assert len(set(salts)) == 3


def test_each_bypass_has_a_salt_of_its_own() -> None:
    arguments, same = translator(), request(cache_namespace="3:abc:", bypass_cache=True)
    assert arguments.build(same)["cache_salt"] != arguments.build(same)["cache_salt"]


@pytest.mark.parametrize(
    ("backend", "grammar", "guide"),
    [
        ("xgrammar", Grammar(kind=GrammarKind.JSON_SCHEMA, source="{}"), {"json": "{}"}),
        ("xgrammar", Grammar(kind=GrammarKind.REGEX, source="a+"), {"regex": "a+"}),
        ("xgrammar", Grammar(kind=GrammarKind.EBNF, source='root ::= "a"'), {"grammar": 'root ::= "a"'}),
        ("xgrammar", Grammar(kind=GrammarKind.CHOICES, texts=('a"', "b")), {"grammar": 'root ::= "a\\"" | "b"'}),
        ("llguidance", Grammar(kind=GrammarKind.CHOICES, texts=("a.", "b")), {"regex": r"(a\.)|(b)"}),
    ],
)
def test_a_grammar_is_given_in_the_backends_words(backend: str, grammar: Grammar, guide: dict[str, str]) -> None:
    given = sampling_of(translator(guided_decoding=backend).build(request(grammar=grammar)))
    decoding = given["guided_decoding"]
    assert {name: getattr(decoding, name) for name in guide} == guide


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": ()}, "prompt"),
        ({"prompt_token_ids": (201,) * 512}, "prompt"),
        ({"prompt_token_ids": (1024,)}, "prompt"),
        ({"resumed_token_ids": (-1,)}, "resume.outputs"),
        ({"stop_token_ids": frozenset({1024})}, "stop.token_ids"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 510}, "max_output_tokens"),
        ({"resumed_token_ids": (201,) * 496}, "max_output_tokens"),
    ],
)
def test_what_the_engine_would_choke_on_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translator().check(request(**changes))
    assert refused.value.field == field


UNHONOURED: dict[str, dict[str, Any]] = {
    "sampling.min_p": {"sampling": Sampling(min_p=0.1)},
    "sampling.repetition_penalty": {"sampling": Sampling(repetition_penalty=1.1)},
    "sampling.presence_penalty": {"sampling": Sampling(presence_penalty=0.5)},
    "sampling.frequency_penalty": {"sampling": Sampling(frequency_penalty=0.5)},
    "sampling.logit_bias": {"sampling": Sampling(logit_bias=((3, 1.0),))},
    "stop.min_output_tokens": {"min_output_tokens": 2},
    "output.top_logprobs": {"top_logprobs": 0},
    "output.prompt_top_logprobs": {"prompt_top_logprobs": 0},
    "structured_output.regex": {"grammar": Grammar(kind=GrammarKind.REGEX, source="a")},
}


@pytest.mark.parametrize("field", UNHONOURED)
def test_what_the_engine_would_ignore_is_refused_by_name(field: str) -> None:
    """The default sampler of 1.2 takes these without complaint."""
    with pytest.raises(InvalidRequest) as refused:
        translator().check(request(**UNHONOURED[field]))
    assert refused.value.field == field


@pytest.mark.parametrize("field", UNHONOURED)
@pytest.mark.parametrize("sampler", ["torch", "trtllm"])
def test_what_is_refused_is_not_among_the_capabilities_and_the_other_way_round(field: str, sampler: str) -> None:
    options = Options(sampler=sampler)
    declared = field in capabilities(toy_checkpoint(), options, load_installation()).request_fields
    try:
        translator(sampler=sampler).check(request(**UNHONOURED[field]))
        taken = True
    except InvalidRequest:
        taken = False
    assert taken is declared


def test_seed_is_declared_only_with_the_sampler_that_honours_it() -> None:
    declared = {
        sampler: "sampling.seed"
        in capabilities(toy_checkpoint(), Options(sampler=sampler), load_installation()).request_fields
        for sampler in ("torch", "trtllm")
    }
    assert declared == {"torch": False, "trtllm": True}


def test_parameters_that_the_real_class_would_refuse_are_never_built() -> None:
    for sampling in (Sampling(temperature=0.0), Sampling(top_p=1e-9), Sampling(top_k=2**31 - 1)):
        given = translator(sampler="trtllm").build(request(sampling=sampling))
        assert json.dumps(sampling_of(given))
