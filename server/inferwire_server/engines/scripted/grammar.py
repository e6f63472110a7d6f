"""Structured output over the byte vocabulary, by llguidance: which tokens may come next."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.scripted.vocabulary import (
    BEGINNING_ID,
    CONTROL_TOKENS,
    END_ID,
    END_TOKEN_IDS,
    VOCABULARY_SIZE,
)

if TYPE_CHECKING:
    import llguidance

_MAX_CACHED = 64
_TRIAL_TOKENS = 16
_MAX_REASON_LENGTH = 200


class GrammarViolated(Exception):
    """A token that the grammar does not permit, or a grammar too costly to follow."""


class _ByteVocabulary:
    """The vocabulary in the shape that llguidance asks for."""

    def __init__(self) -> None:
        self.eos_token_id = END_ID
        self.bos_token_id = BEGINNING_ID
        self.tokens = [bytes((byte,)) for byte in range(BEGINNING_ID)] + [name.encode() for name in CONTROL_TOKENS]
        self.special_token_ids = sorted(CONTROL_TOKENS.values())

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class GrammarState:
    """Where one output stands in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def permitted(self) -> frozenset[int]:
        """Tokens that may come next, end tokens among them where the output may end. Raises GrammarViolated."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarViolated(_reason(self._matcher.get_error()))
        return frozenset(token for token in range(VOCABULARY_SIZE) if mask[token >> 3] >> (token & 7) & 1)

    def accept(self, token_id: int) -> None:
        """Move on by a token. Raises GrammarViolated."""
        if not self._matcher.consume_token(token_id):
            raise GrammarViolated(_reason(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles grammars and keeps the latest ones."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._tokenizer: llguidance.LLTokenizer | None = None

    def knows(self, grammar: Grammar) -> bool:
        """Whether the grammar has been compiled, and is still kept."""
        return grammar in self._compiled

    def start(self, grammar: Grammar) -> GrammarState:
        """Begin an output. Raises InvalidRequest when the grammar cannot be compiled."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self.compile(grammar)
            self.keep(grammar, matcher)
        else:
            self._compiled.move_to_end(grammar)
        return GrammarState(matcher.deep_copy())

    def compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        """Compile, on any thread. Raises InvalidRequest."""
        import llguidance

        if self._tokenizer is None:
            wrapper = llguidance.TokenizerWrapper(_ByteVocabulary())
            self._tokenizer = llguidance.LLTokenizer(wrapper, eos_token=sorted(END_TOKEN_IDS), slices=[])
        field = f"structured_output.{grammar.kind.value}"
        try:
            source = _source(grammar)
        except ValueError as error:
            raise InvalidRequest(field, _reason(str(error))) from None
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise InvalidRequest(field, _reason(matcher.get_error()))
        try:
            _try_out(GrammarState(matcher.deep_copy()))
        except GrammarViolated as error:
            raise InvalidRequest(field, str(error)) from None
        return matcher

    def keep(self, grammar: Grammar, matcher: llguidance.LLMatcher) -> None:
        """Remember a compiled grammar, on the serving loop."""
        self._compiled[grammar] = matcher
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _MAX_CACHED:
            self._compiled.popitem(last=False)


def _try_out(state: GrammarState) -> None:
    """Follow the grammar for some tokens: much is compiled only then, and may prove too costly."""
    for _ in range(_TRIAL_TOKENS):
        inner = state.permitted() - END_TOKEN_IDS
        if not inner:
            return
        state.accept(min(inner))


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher, grammar_from

    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            # Without optional white space: a model that likes spaces would never leave it.
            return LLMatcher.grammar_from_json_schema(grammar.source, overrides={"whitespace_flexible": False})
        case GrammarKind.REGEX:
            return grammar_from("regex", grammar.source)
        case GrammarKind.EBNF:
            return grammar_from("ebnf", grammar.source)
        case GrammarKind.CHOICES:
            if not grammar.texts:
                raise ValueError("needs at least one text")
            return grammar_from("choice", json.dumps(grammar.texts))


def _reason(message: str) -> str:
    """The first line, short: the whole of it repeats the caller's grammar."""
    return message.strip().partition("\n")[0][:_MAX_REASON_LENGTH]
