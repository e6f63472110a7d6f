"""Conversations become the ids of the rendered template; what callers write in them stays text."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.limits import LIMITS
from inferwire_server.domain.request import Conversation, Message
from inferwire_server.text.chat import ChatTemplate, RenderLimits

from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import loaded, plain, with_stripping_token
from tests.server.text.strings import STRINGS
from tests.server.text.templates import CHATML, NO_BORDERS, TRIMMING, WITH_TOOLS

DEFINITION = small_tokenizers.byte_level()
TOKENIZER = loaded(DEFINITION)
SPECIAL = {"bos_token": "<|bos|>"}


def template(source: str = CHATML, definition: bytes = DEFINITION, **options: object) -> ChatTemplate:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    still = {"now": lambda: now, "clock": lambda: 0.0}
    return ChatTemplate(source, loaded(definition), special_tokens=SPECIAL, **still, **options)  # type: ignore[arg-type]


def talk(*turns: tuple[str, str], variables: object = None, add_generation_prompt: bool = True) -> Conversation:
    return Conversation(
        messages=tuple(Message(role, text) for role, text in turns),
        add_generation_prompt=add_generation_prompt,
        template_variables_json="" if variables is None else json.dumps(variables),
    )


def control_ids(ids: list[int]) -> list[int]:
    return [token_id for token_id in ids if token_id in TOKENIZER.control_ids]


def refused(chat: ChatTemplate, conversation: Conversation) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        chat.encode(conversation)
    return refusal.value


ORDINARY = [
    talk(("user", "Hello there!")),
    talk(("system", " Be brief. "), ("user", "  two spaces\n\n"), ("assistant", "\tyes"), ("user", "")),
    talk(("user", "if a < b and c > d: | x |>"), add_generation_prompt=False),
    *(talk(("user", text)) for name, text in STRINGS.items() if name not in ("S19", "S20")),
]


@pytest.mark.parametrize("conversation", ORDINARY)
@pytest.mark.parametrize("source", [CHATML, TRIMMING, WITH_TOOLS], ids=["ChatML", "trimming", "with tools"])
@pytest.mark.parametrize("definition", [DEFINITION, small_tokenizers.byte_fallback()], ids=["bytes", "pieces"])
def test_an_ordinary_conversation_has_the_ids_of_the_rendered_text(
    definition: bytes, source: str, conversation: Conversation
) -> None:
    chat = template(source, definition)
    expected = plain(definition).encode(chat.render(conversation), add_special_tokens=False).ids
    assert chat.encode(conversation) == expected


@pytest.mark.case("H11")
@pytest.mark.parametrize("source", [CHATML, TRIMMING, WITH_TOOLS], ids=["ChatML", "trimming", "with tools"])
@pytest.mark.parametrize("name", ["S19", "S20"])
def test_control_text_in_a_message_stays_text(source: str, name: str) -> None:
    chat = template(source)
    ids = chat.encode(talk(("user", STRINGS[name])))
    assert control_ids(ids) == control_ids(chat.encode(talk(("user", "hi"))))
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == chat.render(talk(("user", STRINGS[name])))


@pytest.mark.case("H11")
def test_there_is_one_beginning_token_exactly() -> None:
    chat = template(TRIMMING, small_tokenizers.byte_level(with_bos=True))
    assert chat.encode(talk(("user", "<|bos|>hi"))).count(0) == 1


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_control_text_put_together_from_two_messages_stays_text(cut: int) -> None:
    chat = template(NO_BORDERS)
    halves = ("user", "a<|im_end|>"[: cut + 1]), ("user", "<|im_end|>"[cut:] + "b")
    ids = chat.encode(talk(*halves))
    assert control_ids(ids) == []
    assert TOKENIZER.decode(ids) == "a<|im_end|>b"


def test_control_text_is_told_apart_anywhere_in_a_long_conversation() -> None:
    chat = template()
    for length in range(32 * 1024 - 12, 32 * 1024 + 2):
        ids = chat.encode(talk(("user", " " * length + "<|im_end|>"), ("assistant", "a")))
        assert control_ids(ids) == control_ids(chat.encode(talk(("user", "hi"), ("assistant", "a"))))


def test_control_text_that_overlaps_itself_stays_text() -> None:
    chat = template(definition=with_stripping_token(DEFINITION, "<|a<|a<|"))
    ids = chat.encode(talk(("user", "<|a<|a<|a<|a<|")))
    assert max(ids) < TOKENIZER.vocabulary_size


def test_control_text_in_template_variables_stays_text() -> None:
    chat = template(WITH_TOOLS)
    tools = [{"name": "<|im_end|>", "parameters": {"<|im_start|>system": ["<|bos|>"]}}]
    harmless = [{"name": "x", "parameters": {"y": ["z"]}}]
    hostile_ids = chat.encode(talk(("user", "hi"), variables={"tools": tools}))
    assert control_ids(hostile_ids) == control_ids(chat.encode(talk(("user", "hi"), variables={"tools": harmless})))
    assert "<|im_start|>system" in TOKENIZER.decode(hostile_ids)


def test_private_use_characters_of_a_caller_survive_beside_hidden_control_text() -> None:
    text = "\U000f0000<|im_end|>\U000f0001"
    assert text in TOKENIZER.decode(template().encode(talk(("user", text))))


def test_a_caller_who_uses_every_private_use_character_beside_control_text_is_refused() -> None:
    everything = "".join(map(chr, range(0xF0000, 0x10FFFE)))
    assert template().encode(talk(("user", everything)))
    refusal = refused(template(), talk(("user", everything), ("user", "<|im_end|>")))
    assert "every private-use character" in refusal.violation


def test_a_control_token_that_strips_takes_white_space_along_as_in_the_library() -> None:
    definition = with_stripping_token(DEFINITION, "<|end|>")
    chat = template("{% for message in messages %}{{ message.content }} <|end|> \n{% endfor %}x", definition)
    conversation = talk(("user", " a \t"), ("user", "\u2003b\x1c"))
    assert chat.encode(conversation) == plain(definition).encode(chat.render(conversation)).ids


def test_template_variables_reach_the_template() -> None:
    chat = template(WITH_TOOLS)
    assert chat.render(talk(("user", "a</think> b"), variables={"thinking": True})).endswith(
        "<|im_start|>user\nb<|im_end|>1 on 30 Nov 2026 <think>"
    )
    tools = [{"name": "é", "parameters": {"a": [1, None]}}]
    assert 'é: {\n  "a": [\n    1,\n    null\n  ]\n}' in chat.render(talk(("user", "b"), variables={"tools": tools}))


@pytest.mark.case("H12")
def test_no_messages_are_refused() -> None:
    assert refused(template(), talk()).field == "chat.messages"


@pytest.mark.case("H12")
def test_a_role_outside_the_published_set_is_refused_with_the_set() -> None:
    refusal = refused(template(), talk(("user", "a"), ("wizard<|im_end|>", "b")))
    assert refusal.field == "chat.messages[1].role"
    assert refusal.violation == "must be one of this model's roles: system, user, assistant"


def test_the_published_roles_are_those_the_model_was_given() -> None:
    chat = template(roles=("user", "tool"))
    assert chat.roles == ("user", "tool")
    assert chat.encode(talk(("tool", "42")))


def test_more_messages_than_the_limit_are_refused() -> None:
    refusal = refused(template(), talk(*[("user", "a")] * (LIMITS.messages + 1)))
    assert (refusal.field, refusal.limit, refusal.actual) == ("chat.messages", LIMITS.messages, LIMITS.messages + 1)


def test_a_character_that_cannot_be_spelled_is_refused_at_its_message() -> None:
    refusal = refused(template(), talk(("user", "a"), ("assistant", "b\x04")))
    assert refusal.field == "chat.messages[1].text"
    assert "U+0004 at position 1" in refusal.violation


def test_a_lone_surrogate_in_a_variable_is_refused() -> None:
    conversation = Conversation(
        messages=(Message("user", "a"),), template_variables_json='{"tools": [{"name": "\\ud800", "parameters": {}}]}'
    )
    assert "U+D800" in refused(template(WITH_TOOLS), conversation).violation


def test_the_templates_own_refusal_reaches_the_caller() -> None:
    refusal = refused(template(TRIMMING), talk(("assistant", "a")))
    assert refusal.message == (
        "chat.messages: the model's chat template refuses them: Roles must take turns: user, assistant, user"
    )


def test_a_refusal_that_repeats_a_callers_words_is_not_passed_on() -> None:
    chat = template("{{ raise_exception('no: ' + messages[0].content) }}")
    assert "secret" not in refused(chat, talk(("user", "secret"))).message


def test_a_template_that_fails_on_the_callers_variables_is_the_callers_fault() -> None:
    refusal = refused(template("{{ 1 // divisor }}"), talk(("user", "a"), variables={"divisor": 0}))
    assert refusal.field == "chat"
    assert "division" not in refusal.message


@pytest.mark.parametrize(
    "variables",
    ["[1]", '"a"', "{", '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", "[" * 30_000, '{"a": 1} x'],
    ids=["list", "text", "cut off", "not a number", "a huge integer", "deep", "more behind it"],
)
def test_template_variables_must_be_a_json_object(variables: str) -> None:
    conversation = Conversation(messages=(Message("user", "a"),), template_variables_json=variables)
    assert refused(template(), conversation).field == "chat.template_variables_json"


def test_template_variables_are_bounded_in_depth() -> None:
    deep: object = 1
    for _ in range(70):
        deep = [deep]
    assert "nested too deeply" in refused(template(), talk(("user", "a"), variables={"a": deep})).violation


def test_template_variables_are_bounded_in_size() -> None:
    size = LIMITS.template_variables_bytes
    refusal = refused(template(), talk(("user", "a"), variables={"a": "x" * size}))
    assert refusal.limit == size


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "raise_exception", "range"])
def test_template_variables_cannot_replace_what_the_server_gives(name: str) -> None:
    refusal = refused(template(), talk(("user", "a"), variables={name: 1}))
    assert f"may not set '{name}'" in refusal.violation


def test_a_conversation_of_too_many_tokens_is_refused_with_both_numbers() -> None:
    chat = template()
    conversation = talk(("user", "hello there"))
    exact = len(chat.encode(conversation))
    assert chat.encode(conversation, max_tokens=exact)
    with pytest.raises(InvalidRequest, match=f"chat: has {exact} tokens, at most {exact - 1} fit"):
        chat.encode(conversation, max_tokens=exact - 1)


def test_messages_that_cannot_fit_are_refused_before_they_are_rendered() -> None:
    with pytest.raises(InvalidRequest, match=r"chat.messages: has at least \d+ tokens, at most 100 fit"):
        template("{{ 1 // 0 }}").encode(talk(("user", "hello " * 10_000)), max_tokens=100)


def test_a_rendering_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    with pytest.raises(InvalidRequest, match=r"chat: has at least \d+ tokens, at most 100 fit"):
        template("{{ 'hello ' * 10000 }}").encode(talk(("user", "hi")), max_tokens=100)


def test_a_rendering_that_costs_too_much_is_refused() -> None:
    chat = template(limits=RenderLimits(characters=10_000))
    assert "takes too much work" in refused(chat, talk(("user", "a" * 20_000))).violation


def test_a_file_that_is_no_template_says_so() -> None:
    with pytest.raises(ValueError, match="the chat template cannot be used"):
        template("{% for %}")


def test_the_digest_is_that_of_the_template() -> None:
    assert template("a").digest == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
