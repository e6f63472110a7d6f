"""Prompts to token ids without holding up the serving loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.request import Conversation
from inferwire_server.text.chat import ChatTemplate
from inferwire_server.text.pool import TextPool
from inferwire_server.text.tokenizer import Tokenizer, too_long

_SHORT_TEXT = 512
"""Characters that are tokenised at once: 0.2 ms of the loop, 0.7 ms for the costliest text known (digits)."""
_FEW_MESSAGES = 8


class PromptEncoder:
    """Tokenises prompts and conversations for one model: short ones at once, others in the pool."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, pool: TextPool) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._pool = pool

    async def encode(
        self,
        prompt: str | Conversation,
        *,
        max_tokens: int | None = None,
        add_special_tokens: bool = True,
        deadline: float | None = None,
    ) -> list[int]:
        """The prompt's token ids; a conversation has the special tokens that its template writes, and no others.

        Raises InvalidRequest naming the field (and for more than `max_tokens` the number, or a lower bound of it),
        Overloaded when too many texts wait, Expired at the deadline (time.monotonic() seconds).
        """
        if isinstance(prompt, Conversation):
            return await self._encode_conversation(prompt, max_tokens, deadline)
        least = self._tokenizer.least_tokens(prompt)
        if max_tokens is not None and least > max_tokens:
            raise too_long("prompt", max_tokens, least, at_least=True)

        def work() -> list[int]:
            return self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

        return work() if len(prompt) <= _SHORT_TEXT else await self._pool.run(work, deadline=deadline)

    async def _encode_conversation(
        self, conversation: Conversation, max_tokens: int | None, deadline: float | None
    ) -> list[int]:
        template = self._chat_template
        if template is None:
            raise InvalidRequest("chat", "this model has no chat template; send prompt or token_ids instead")

        messages = conversation.messages
        length = len(conversation.template_variables_json) + sum(len(message.text) for message in messages)
        if length <= _SHORT_TEXT and len(messages) <= _FEW_MESSAGES:
            return template.encode(conversation, max_tokens=max_tokens)
        rendering = partial(template.runs, conversation, max_tokens=max_tokens)
        runs = await self._pool.run(rendering, holds_lock=True, deadline=deadline)
        return await self._pool.run(partial(template.encode_runs, runs, max_tokens=max_tokens), deadline=deadline)

    async def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, deadline: float | None = None
    ) -> str:
        """The text of ids. Raises like `encode`, InvalidRequest for an id outside the vocabulary."""

        def work() -> str:
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

        if len(token_ids) <= _SHORT_TEXT:
            return work()
        return await self._pool.run(work, holds_lock=True, deadline=deadline)
