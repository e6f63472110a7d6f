"""Ordinary conversations have the ids of their rendered text; hostile ones have no control id of their own making."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.request import Conversation, Message
from inferwire_server.models.version import ModelVersion
from inferwire_server.text.chat import ChatTemplate
from inferwire_server.text.tokenizer import Tokenizer

from tests.real_model import smollm2_f16, smollm2_repository  # noqa: F401
from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import CONTROL, loaded, plain
from tests.server.text.templates import CHATML, NO_BORDERS, WITH_TOOLS

DEFINITION = small_tokenizers.byte_level()
TOKENIZER = loaded(DEFINITION)
TEMPLATES = {
    name: ChatTemplate(source, TOKENIZER, clock=lambda: 0.0)
    for name, source in (("ChatML", CHATML), ("with tools", WITH_TOOLS), ("no borders", NO_BORDERS))
}
PIECES = [
    "a",
    "the ",
    " ",
    "\n",
    "é",
    "👩‍👧",
    "<",
    "|",
    ">",
    "<|",
    "|>",
    "im_",
    "im_start",
    "<|im_",
    "end|>",
    "\U000f0000",
]
HOSTILE = [*PIECES, *CONTROL, "\U000f0000", "<|im_start|>system\n", "<<|im_end|>|im_end|>", "<|im_<|im_end|>"]


def texts(pieces: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.lists(st.sampled_from(pieces), max_size=8).map("".join), min_size=1, max_size=4)


def talk(turns: Sequence[str]) -> Conversation:
    roles = ("system", "user", "assistant", "user")
    return Conversation(messages=tuple(map(Message, roles, turns)))


def check_ordinary(chat: ChatTemplate, library: tokenizers.Tokenizer, turns: Sequence[str]) -> None:
    conversation = talk(turns)
    assert chat.encode(conversation) == library.encode(chat.render(conversation), add_special_tokens=False).ids


def check_hostile(chat: ChatTemplate, tokenizer: Tokenizer, turns: Sequence[str]) -> None:
    ids = chat.encode(talk(turns))
    harmless = chat.encode(talk(["hi"] * len(turns)))
    assert [i for i in ids if i in tokenizer.control_ids] == [i for i in harmless if i in tokenizer.control_ids]
    assert tokenizer.decode(ids, skip_special_tokens=False) == chat.render(talk(turns))


def is_ordinary(turns: Sequence[str], control: Sequence[str]) -> bool:
    joined = "".join(turns)
    return not any(text in joined for text in control)


@pytest.mark.parametrize("name", TEMPLATES)
@given(texts(PIECES))
def test_ordinary_conversations_have_the_ids_of_the_rendered_text(name: str, turns: list[str]) -> None:
    if is_ordinary(turns, CONTROL):
        check_ordinary(TEMPLATES[name], plain(DEFINITION), turns)


@pytest.mark.parametrize("name", ["ChatML", "no borders"])
@given(texts(HOSTILE))
def test_hostile_conversations_make_no_control_ids(name: str, turns: list[str]) -> None:
    check_hostile(TEMPLATES[name], TOKENIZER, turns)


@pytest.mark.real_model
@pytest.mark.case("H11")
def test_the_real_template_keeps_control_text_as_text(smollm2_f16: ModelVersion) -> None:  # noqa: F811
    definition = smollm2_f16.tokenizer_path.read_bytes()
    tokenizer, library, draw = Tokenizer(definition), plain(definition), random.Random(5)
    chat = ChatTemplate(smollm2_f16.chat_template or "", tokenizer, clock=lambda: 0.0)
    control = [token.text for token in tokenizer.control_tokens]
    for _ in range(200):
        turns = ["".join(draw.choices(PIECES, k=6)) for _ in range(3)]
        if is_ordinary(turns, control):
            check_ordinary(chat, library, turns)
        check_hostile(chat, tokenizer, ["".join(draw.choices([*PIECES, *control], k=6)) for _ in range(3)])
