"""Prompts are tokenised without holding up the loop; what cannot fit is refused before it costs anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from inferwire_server.domain.errors import Expired, InvalidRequest
from inferwire_server.domain.request import Conversation, Message
from inferwire_server.text.chat import ChatTemplate
from inferwire_server.text.pool import TextPool
from inferwire_server.text.prompt import PromptEncoder

from tests.polling import until
from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import loaded
from tests.server.text.templates import CHATML

TOKENIZER = loaded(small_tokenizers.byte_level(with_bos=True))
TEMPLATE = ChatTemplate(CHATML, TOKENIZER, clock=lambda: 0.0)
LONG = "The quick brown fox. " * 100


@pytest.fixture
def pool() -> Iterator[TextPool]:
    pool = TextPool()
    yield pool
    pool.close()


@pytest.fixture
async def busy_pool() -> AsyncIterator[TextPool]:
    """All of its threads have other work."""
    pool, release = TextPool(threads=1, max_waiting=5), threading.Event()
    held = asyncio.ensure_future(pool.run(lambda: release.wait(30)))
    await until(lambda: pool.jobs == 1)
    yield pool
    release.set()
    await held
    pool.close()


def conversation(*texts: str) -> Conversation:
    return Conversation(messages=tuple(Message("user", text) for text in texts))


async def test_a_prompt_and_a_conversation_have_the_ids_of_tokenizer_and_template(pool: TextPool) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, pool)
    for text in ("hi", LONG):
        assert await encoder.encode(text) == TOKENIZER.encode(text)
        assert await encoder.encode(text, add_special_tokens=False) == TOKENIZER.encode(text)[1:]
        assert await encoder.encode(conversation(text)) == TEMPLATE.encode(conversation(text))


async def test_short_prompts_wait_for_nobody(busy_pool: TextPool) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, busy_pool)
    assert await encoder.encode("hi")
    assert await encoder.encode(conversation("hi", "there"))
    assert await encoder.decode([5, 6])


async def test_long_prompts_wait_until_their_deadline(busy_pool: TextPool) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, busy_pool)
    soon = time.monotonic() + 0.02
    for prompt in (LONG, conversation(LONG), conversation(*["hi"] * 20)):
        with pytest.raises(Expired):
            await encoder.encode(prompt, deadline=soon)
    with pytest.raises(Expired):
        await encoder.decode([5] * 1000, deadline=soon)


async def test_a_prompt_that_cannot_fit_is_refused_without_work(busy_pool: TextPool) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, busy_pool)
    with pytest.raises(InvalidRequest, match=r"prompt: has at least \d+ tokens, at most 100 fit") as refusal:
        await encoder.encode("hello " * 100_000, max_tokens=100)
    assert refusal.value.limit == 100
    assert (refusal.value.actual or 0) > 100
    assert busy_pool.jobs == 1


async def test_a_prompt_that_does_not_fit_is_refused_with_its_number(pool: TextPool) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, pool)
    exact = TOKENIZER.count(LONG)
    assert len(await encoder.encode(LONG, max_tokens=exact)) == exact
    with pytest.raises(InvalidRequest, match=f"prompt: has {exact} tokens, at most {exact - 1} fit"):
        await encoder.encode(LONG, max_tokens=exact - 1)


async def test_a_model_without_a_chat_template_refuses_conversations(pool: TextPool) -> None:
    with pytest.raises(InvalidRequest, match="chat: this model has no chat template"):
        await PromptEncoder(TOKENIZER, None, pool).encode(conversation("hi"))


@pytest.mark.parametrize(
    "text", ["x" * 50_000, "a1" * 10_000, "\u0301" * 50_000, "QUJD" * 25_000], ids=["x", "a1", "marks", "base64"]
)
async def test_the_loop_turns_while_hostile_texts_are_read(pool: TextPool, text: str) -> None:
    encoder = PromptEncoder(TOKENIZER, TEMPLATE, pool)
    reading = asyncio.gather(*(encoder.encode(text) for _ in range(8)))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert [len(ids) for ids in await reading] == [TOKENIZER.count(text)] * 8
    assert turns > 50
