"""Conversations to token ids by the model's own chat template."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.limits import LIMITS
from inferwire_server.domain.request import Conversation, Message
from inferwire_server.text.control_text import ControlText, Run, StandIns
from inferwire_server.text.render_budget import Budget, RenderingTooCostly
from inferwire_server.text.sandbox import BoundedEnvironment
from inferwire_server.text.tokenizer import Tokenizer, too_long

_VARIABLES_FIELD = "chat.template_variables_json"
_LONGEST_DATE_FORMAT = 64
_DEEPEST_VARIABLE = 64
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own operations raise when messages or variables are not what it expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What one rendering may cost."""

    characters: int = 64 * 1024 * 1024
    """Produced in all, intermediate values included; so a rendering holds a few hundred MB at the very most."""
    seconds: float = 1.0
    """Of the thread's own work."""


class TemplateRefusal(TemplateError):
    """Raised by a template's `raise_exception`."""


class ChatTemplate:
    """A model's chat template in a sandbox whose renderings have a bounded cost.

    What a caller writes never becomes a control token: a conversation's ids are those of the rendered text, except
    that the characters of control tokens in messages and variables stay text.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        roles: Sequence[str] = ("system", "user", "assistant"),
        special_tokens: Mapping[str, str] | None = None,
        limits: RenderLimits = RenderLimits(),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`roles` are those that the model publishes: most templates would copy any other text in their place into
        the prompt, control tokens too. `special_tokens` are those that the template names, as in
        `{"bos_token": "<s>"}`.

        Raises ValueError, saying what is wrong, when the template cannot be used.
        """
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        """Lower-case hex sha256 of the template."""
        self.roles = tuple(roles)
        self._tokenizer = tokenizer
        self._control = ControlText(tokenizer.control_tokens)
        self._limits = limits
        self._clock = clock
        self._environment = BoundedEnvironment()
        self._environment.globals |= {"raise_exception": _refuse, "strftime_now": _date_writer(now)}
        try:
            self._template, self._strings = self._environment.compile_bounded(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be used: {error}") from error
        self._constants = {"tools": None, "documents": None, **(special_tokens or {})}
        self._reserved = frozenset({"messages", "add_generation_prompt", *(special_tokens or {})}) | frozenset(
            self._environment.globals
        )

    def encode(self, conversation: Conversation, *, max_tokens: int | None = None) -> list[int]:
        """The conversation's token ids: `encode_runs` of `runs`, which see for what is refused."""
        return self.encode_runs(self.runs(conversation, max_tokens=max_tokens), max_tokens=max_tokens)

    def runs(self, conversation: Conversation, *, max_tokens: int | None = None) -> list[Run]:
        """The rendered conversation, parted at the template's control tokens. Holds the interpreter lock.

        Raises InvalidRequest naming the field, as in `chat.messages[3].role`, for what does not fit the template,
        the limits or the vocabulary, and for messages that alone have more than `max_tokens` tokens for certain.
        """
        self._check_messages(conversation.messages, max_tokens)
        variables = self._parsed_variables(conversation.template_variables_json)
        texts = [message.text for message in conversation.messages]
        stand_ins = StandIns([*texts, *_strings_in(variables)], "chat")
        messages = [
            {"role": message.role, "content": self._control.hide(message.text, stand_ins)}
            for message in conversation.messages
        ]
        rendered = self._render(messages, conversation.add_generation_prompt, self._hidden(variables, stand_ins))
        return [Run(stand_ins.reveal(run.text), run.token_id) for run in self._control.split(rendered)]

    def encode_runs(self, runs: Sequence[Run], *, max_tokens: int | None = None) -> list[int]:
        """The token ids of `runs`, of which there may be `max_tokens`. Works mostly without the interpreter lock."""
        texts = [run.text for run in runs]
        control_tokens = len(runs) - 1
        least = control_tokens + sum(map(self._tokenizer.least_tokens, texts))
        if max_tokens is not None and least > max_tokens:
            raise too_long("chat", max_tokens, least, at_least=True)
        encoded = self._tokenizer.encode_runs(texts, field="chat", max_tokens=max_tokens, other_tokens=control_tokens)
        ids: list[int] = []
        for run, run_ids in zip(runs, encoded, strict=True):
            ids += run_ids
            if run.token_id is not None:
                ids.append(run.token_id)
        return ids

    def render(self, conversation: Conversation) -> str:
        """The text that the template makes of a conversation. Raises InvalidRequest like `encode`."""
        self._check_messages(conversation.messages, None)
        messages = [{"role": message.role, "content": message.text} for message in conversation.messages]
        variables = self._parsed_variables(conversation.template_variables_json)
        return self._render(messages, conversation.add_generation_prompt, variables)

    def _render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool, variables: Any) -> str:
        values = {
            **self._constants,
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        budget = Budget(characters=self._limits.characters, seconds=self._limits.seconds, clock=self._clock)
        try:
            return self._environment.render_bounded(self._template, values, budget)
        except RenderingTooCostly:
            raise InvalidRequest("chat", "takes too much work to render; send fewer or shorter messages") from None
        except TemplateRefusal as refusal:
            # The template's own words only: a message made of a caller's text would end up in logs.
            reason = f": {refusal.message}" if refusal.message in self._strings else ""
            raise InvalidRequest("chat.messages", f"the model's chat template refuses them{reason}") from None
        except _TEMPLATE_FAULTS:
            raise InvalidRequest(
                "chat", "the model's chat template cannot render these messages and template variables"
            ) from None

    def _check_messages(self, messages: Sequence[Message], max_tokens: int | None) -> None:
        if not messages:
            raise InvalidRequest("chat.messages", "must have at least one message")
        if len(messages) > LIMITS.messages:
            raise InvalidRequest(
                "chat.messages",
                f"has {len(messages)} messages, at most {LIMITS.messages} are allowed",
                limit=LIMITS.messages,
                actual=len(messages),
            )
        for index, message in enumerate(messages):
            if message.role not in self.roles:
                raise InvalidRequest(
                    f"chat.messages[{index}].role", f"must be one of this model's roles: {', '.join(self.roles)}"
                )
            self._tokenizer.refuse_unspellable(message.text, f"chat.messages[{index}].text")
        least = sum(self._tokenizer.least_tokens(message.text) for message in messages)
        if max_tokens is not None and least > max_tokens:
            raise too_long("chat.messages", max_tokens, least, at_least=True)

    def _parsed_variables(self, text: str) -> dict[str, Any]:
        variables = parse_template_variables(text)
        for name in variables.keys() & self._reserved:
            raise InvalidRequest(_VARIABLES_FIELD, f"may not set {name!r}, which the template gets from the server")
        return variables

    def _hidden(self, value: Any, stand_ins: StandIns) -> Any:
        if isinstance(value, str):
            return self._control.hide(value, stand_ins)
        if isinstance(value, dict):
            return {self._hidden(key, stand_ins): self._hidden(item, stand_ins) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item, stand_ins) for item in value]
        return value


def parse_template_variables(text: str) -> dict[str, Any]:
    """The variables of a JSON object; '' has none. Raises InvalidRequest."""
    if not text:
        return {}
    size = len(text.encode(errors="surrogatepass"))
    if size > LIMITS.template_variables_bytes:
        raise InvalidRequest(
            _VARIABLES_FIELD,
            f"has {size} bytes, at most {LIMITS.template_variables_bytes} are allowed",
            limit=LIMITS.template_variables_bytes,
            actual=size,
        )
    try:
        variables = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidRequest(_VARIABLES_FIELD, "must be JSON") from None
    if not isinstance(variables, dict):
        raise InvalidRequest(_VARIABLES_FIELD, 'must be a JSON object, as in {"enable_thinking": false}')
    _strings_in(variables)
    return variables


def _strings_in(value: Any, depth: int = 0) -> list[str]:
    if depth > _DEEPEST_VARIABLE:
        raise InvalidRequest(_VARIABLES_FIELD, f"is nested too deeply, at most {_DEEPEST_VARIABLE} levels are allowed")
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in _strings_in(item, depth + 1))]
    if isinstance(value, list):
        return [text for item in value for text in _strings_in(item, depth + 1)]
    return []


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _date_writer(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if len(form) > _LONGEST_DATE_FORMAT:
            raise ValueError(form)
        return now().strftime(form)

    return strftime_now
