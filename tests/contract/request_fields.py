"""Every field of GenerateRequest, from the contract itself, and what shows that it is honoured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor
from inferwire.v1 import generation_pb2

GROUPS = ("sampling", "stop", "output", "structured_output", "scheduling", "cache", "expected_model")
"""Messages whose fields capabilities name one by one; others are named as a whole."""


def leaf_paths(message: Descriptor = generation_pb2.GenerateRequest.DESCRIPTOR, prefix: str = "") -> Iterator[str]:
    """Paths of all fields that hold a value, durations as one."""
    for field in message.fields:
        path = f"{prefix}{field.name}"
        inner = field.message_type
        if inner is not None and inner.file.package == "inferwire.v1":
            yield from leaf_paths(inner, f"{path}.")
        else:
            yield path


def capability_of(path: str) -> str:
    """The path by which capabilities name a field."""
    head, _, rest = path.partition(".")
    return f"{head}.{rest.partition('.')[0]}" if head in GROUPS else head


Observe = Callable[[Any], Any]


def text(response: Any) -> str:
    said: str = response.outputs[0].text
    return said


@dataclass(frozen=True)
class Effect:
    """Two requests that differ in one field, and what in the answers differs for it."""

    one: dict[str, Any]
    other: dict[str, Any]
    observe: Observe = text


def sampling(name: str, one: Any, other: Any, **base: Any) -> Effect:
    fixed = {"temperature": 1.5, "seed": 1} | base
    return Effect({"sampling": fixed | {name: one}}, {"sampling": fixed | {name: other}})


def output(one: dict[str, Any], other: dict[str, Any], observe: Observe, **base: Any) -> Effect:
    return Effect({"output": one} | base, {"output": other} | base, observe)


def chat(one: dict[str, Any], other: dict[str, Any]) -> Effect:
    return Effect(_chat(**one), _chat(**other), lambda response: response.started.prompt_digest)


def _chat(role: str = "user", said: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"prompt": None, "chat": {"messages": [{"role": role, "text": said}]} | fields}


ENDING = {"prompt": "short"}
"""A prompt whose answer is "hello", then the model's end."""
CONTROL = {"prompt": "control"}
"""A prompt whose answer has a control token in it."""
GREEDY = {"sampling": {"temperature": 0.0}}

EFFECTS = {
    "prompt": Effect({"prompt": "a"} | GREEDY, {"prompt": "b"} | GREEDY),
    "token_ids.ids": Effect(
        {"prompt": None, "token_ids": {"ids": [65]}} | GREEDY, {"prompt": None, "token_ids": {"ids": [66]}} | GREEDY
    ),
    "chat.messages.role": chat({"role": "user"}, {"role": "system"}),
    "chat.messages.text": chat({"said": "hi"}, {"said": "ho"}),
    "chat.add_generation_prompt": chat({"add_generation_prompt": True}, {"add_generation_prompt": False}),
    "chat.template_variables_json": chat(
        {"template_variables_json": '{"mood": "good"}'}, {"template_variables_json": '{"mood": "bad"}'}
    ),
    "max_output_tokens": Effect({"max_output_tokens": 3}, {"max_output_tokens": 4}, lambda r: r.usage.output_tokens),
    "sampling.temperature": sampling("temperature", 0.0, 2.0),
    "sampling.top_p": sampling("top_p", 1.0, 0.01),
    "sampling.top_k": sampling("top_k", 0, 1),
    "sampling.min_p": sampling("min_p", 0.0, 0.9),
    "sampling.repetition_penalty": sampling("repetition_penalty", 1.0, 8.0),
    "sampling.presence_penalty": sampling("presence_penalty", -2.0, 2.0),
    "sampling.frequency_penalty": sampling("frequency_penalty", -2.0, 2.0),
    "sampling.seed": sampling("seed", 1, 2),
    "sampling.logit_bias.token_id": sampling(
        "logit_bias", [{"token_id": 65, "bias": 90}], [{"token_id": 66, "bias": 90}]
    ),
    "sampling.logit_bias.bias": sampling("logit_bias", [{"token_id": 65, "bias": 90}], [{"token_id": 65, "bias": -90}]),
    "stop.strings": Effect(ENDING | {"stop": {"strings": ["l"]}}, ENDING),
    "stop.token_ids": Effect(ENDING | {"stop": {"token_ids": [ord("l")]}}, ENDING),
    "stop.min_output_tokens": Effect(ENDING | {"stop": {"min_output_tokens": 9}}, ENDING),
    "stop.ignore_end_of_sequence": Effect(ENDING | {"stop": {"ignore_end_of_sequence": True}}, ENDING),
    "stop.include_match": Effect(
        ENDING | {"stop": {"strings": ["l"], "include_match": True}}, ENDING | {"stop": {"strings": ["l"]}}
    ),
    "output.count": output({"count": 1}, {"count": 2}, lambda response: len(response.outputs)),
    "output.text": output({"text": True}, {"text": False}, lambda response: bool(text(response))),
    "output.token_ids": output({}, {"token_ids": True}, lambda response: len(response.outputs[0].token_ids)),
    "output.top_logprobs": output({}, {"top_logprobs": 2}, lambda response: len(response.outputs[0].logprobs)),
    "output.prompt_top_logprobs": output(
        {}, {"prompt_top_logprobs": 2}, lambda response: len(response.prompt_logprobs)
    ),
    "output.skip_special_tokens": output({}, {"skip_special_tokens": False}, text, **CONTROL),
    "structured_output.json_schema": Effect({"structured_output": {"json_schema": '{"const": 7}'}}, {}),
    "structured_output.regex": Effect({"structured_output": {"regex": "a{3}"}}, {}),
    "structured_output.ebnf": Effect({"structured_output": {"ebnf": 'root ::= "yes"'}}, {}),
    "structured_output.choices.texts": Effect({"structured_output": {"choices": {"texts": ["yes"]}}}, {}),
    "request_id": Effect({"request_id": "one"}, {"request_id": "other"}, lambda response: response.started.request_id),
}
"""Where the answer itself shows it."""

PROMISES = {
    "model": "tests/server/test_errors.py::test_an_unknown_model_is_not_found",
    "attempt": "tests/server/test_idempotency.py::test_a_lower_attempt_is_refused_while_it_runs_and_after",
    "scheduling.priority": "tests/server/test_operations.py::test_generations_are_listed_page_by_page_oldest_first",
    "scheduling.max_queue_time": (
        "tests/server/test_deadlines.py::test_the_longest_queue_time_ends_the_wait_with_a_hint"
    ),
    "scheduling.first_token_target": (
        "tests/server/test_deadlines.py::test_a_first_token_that_cannot_come_in_time_is_refused_at_once_without_a_hint"
    ),
    "scheduling.detach_grace": (
        "tests/server/test_idempotency.py::test_within_the_grace_a_reader_comes_back_and_nothing_is_lost_or_doubled"
    ),
    "cache.salt": "tests/server/test_tenant_caches.py::test_a_salt_divides_a_tenant_s_own_cache_further",
    "cache.bypass": "tests/server/test_tenant_caches.py::test_a_bypass_neither_reads_nor_fills_the_cache",
    "expected_model.fingerprint": (
        "tests/server/test_expected_model.py::test_the_right_pin_is_served_and_a_wrong_one_is_not"
    ),
    "expected_model.tokenizer_digest": (
        "tests/server/test_expected_model.py::test_the_right_pin_is_served_and_a_wrong_one_is_not"
    ),
    "expected_model.chat_template_digest": (
        "tests/server/test_expected_model.py::test_the_right_pin_is_served_and_a_wrong_one_is_not"
    ),
    "resume.prompt_digest": "tests/server/test_resuming.py::test_another_prompt_s_digest_is_refused_by_its_field",
    "resume.outputs.output_index": (
        "tests/server/test_resuming.py::test_a_finished_output_stays_finished_and_the_others_go_on"
    ),
    "resume.outputs.token_ids": "tests/server/test_resuming.py::test_words_cut_at_every_token",
    "resume.outputs.finished": (
        "tests/server/test_resuming.py::test_a_finished_output_stays_finished_and_the_others_go_on"
    ),
    "progress_interval": "tests/server/test_progress.py::test_a_silent_model_is_shown_to_be_decoding",
}
"""Where it takes more than two answers to see it: the promise that shows it."""

SAMPLES: dict[str, dict[str, Any]] = {
    "sampling.temperature": {"sampling": {"temperature": 0.5}},
    "sampling.top_p": {"sampling": {"top_p": 0.5}},
    "sampling.top_k": {"sampling": {"top_k": 5}},
    "sampling.min_p": {"sampling": {"min_p": 0.1}},
    "sampling.repetition_penalty": {"sampling": {"repetition_penalty": 1.1}},
    "sampling.presence_penalty": {"sampling": {"presence_penalty": 0.1}},
    "sampling.frequency_penalty": {"sampling": {"frequency_penalty": 0.1}},
    "sampling.seed": {"sampling": {"seed": 1}},
    "sampling.logit_bias": {"sampling": {"logit_bias": [{"token_id": 65, "bias": 1}]}},
    "stop.token_ids": {"stop": {"token_ids": [65]}},
    "stop.min_output_tokens": {"stop": {"min_output_tokens": 1}},
    "stop.ignore_end_of_sequence": {"stop": {"ignore_end_of_sequence": True}},
    "output.top_logprobs": {"output": {"top_logprobs": 0}},
    "output.prompt_top_logprobs": {"output": {"prompt_top_logprobs": 0}},
    "structured_output.json_schema": {"structured_output": {"json_schema": "{}"}},
    "structured_output.regex": {"structured_output": {"regex": "a"}},
    "structured_output.ebnf": {"structured_output": {"ebnf": 'root ::= "a"'}},
    "structured_output.choices": {"structured_output": {"choices": {"texts": ["a"]}}},
    "cache.salt": {"cache": {"salt": "s"}},
    "cache.bypass": {"cache": {"bypass": True}},
    "chat": {"prompt": None, "chat": {"messages": [{"role": "user", "text": "hi"}]}},
    "resume": {"resume": {"prompt_digest": b"x"}},
}
"""A harmless value of each field that not every engine honours, by the path that capabilities use."""
