"""Chooses an output's tokens. Each draw is keyed by (seed, output, position): an output can be continued anywhere."""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.generation import Sampling, TokenLogprobs
from inferwire_server.engines.scripted.grammar import GrammarState
from inferwire_server.engines.scripted.token_model import LOGITS, NUM_END_RANKS, SURE_LOGIT, TokenModel
from inferwire_server.engines.scripted.vocabulary import END_ID, END_TOKEN_IDS, VOCABULARY_SIZE

_DRAWS_PER_DIGEST = 8
_GREEDY_BELOW = 1e-5
"""Temperatures under this would overflow, and are greedy to any precision."""
_SURE_BELOW = 1.2
"""Under this temperature nothing but a sure token can be drawn with 53 random bits."""
_CLOSING_LOGIT = 40.0
"""Lifts even an end token over the words, and nothing over a sure token."""
_CLOSERS = (END_ID, *b'"}],')


class PositionKeyedDraws:
    """Uniform numbers in [0, 1) by position."""

    __slots__ = ("_key", "_loaded", "_values")

    def __init__(self, seed: int, output_index: int) -> None:
        self._key = struct.pack("<II", seed & 0xFFFFFFFF, output_index)
        self._loaded = -1
        self._values: tuple[int, ...] = ()

    def at(self, position: int) -> float:
        block = position // _DRAWS_PER_DIGEST
        if block != self._loaded:
            self._loaded = block
            digest = blake2b(struct.pack("<Q", block), key=self._key, digest_size=8 * _DRAWS_PER_DIGEST).digest()
            self._values = struct.unpack("<8Q", digest)
        return (self._values[position % _DRAWS_PER_DIGEST] >> 11) * 2.0**-53


def cumulative_weights(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """Running sums of the weights that stay after temperature, then top_k, top_p and min_p; `logits` fall."""
    weights = [math.exp((logit - logits[0]) / sampling.temperature) for logit in logits]
    if sampling.top_k:
        del weights[sampling.top_k :]
    kept = len(weights)
    if sampling.top_p < 1.0:
        enough = sampling.top_p * sum(weights)
        kept = next((i for i, total in enumerate(accumulate(weights), 1) if total >= enough), kept)
    if sampling.min_p > 0.0:
        kept = min(kept, sum(weight >= sampling.min_p for weight in weights))
    return list(accumulate(weights[:kept]))


@lru_cache(maxsize=256)
def _model_weights(sampling: Sampling, *, without_ends: bool) -> list[float]:
    return cumulative_weights(LOGITS[:-NUM_END_RANKS] if without_ends else LOGITS, sampling)


def _rank(cumulative: list[float], uniform: float) -> int:
    return min(bisect_right(cumulative, uniform * cumulative[-1]), len(cumulative) - 1)


class Sampler:
    """The next token of one output: by its request, its position and, with penalties or a grammar, its past."""

    def __init__(self, request: EngineRequest, model: TokenModel, grammar: GrammarState | None) -> None:
        sampling = request.sampling
        self._sampling = sampling
        self._model = model
        self._grammar = grammar
        self._min_output_tokens = request.min_output_tokens
        self._draws = PositionKeyedDraws(sampling.seed, request.output_index)
        self._is_greedy = sampling.temperature < _GREEDY_BELOW
        self._may_draw_sure = self._is_greedy or sampling.temperature <= _SURE_BELOW
        self._ignored = END_TOKEN_IDS - request.stop_token_ids if request.ignore_end_of_sequence else frozenset[int]()
        self._terminators = END_TOKEN_IDS | request.stop_token_ids
        self._has_penalties = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )
        self._in_prompt = frozenset(request.prompt_token_ids) if self._has_penalties else frozenset()
        self._in_output: Counter[int] = Counter()
        # An end token that is also a stop id may be drawn although ends are ignored: the last ranks are then mixed.
        has_mixed_ends = bool(self._ignored) and self._ignored != END_TOKEN_IDS
        self._needs_care = self._has_penalties or bool(sampling.logit_bias) or grammar is not None or has_mixed_ends
        if not self._is_greedy:
            plain = Sampling(
                temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p
            )
            self._weights = _model_weights(plain, without_ends=bool(self._ignored))

    def run_from(self, position: int, limit: int) -> Sequence[int]:
        """Up to `limit` tokens that depend on nothing but their positions, and end nothing; may be empty."""
        if self._needs_care or position < self._min_output_tokens:
            return ()
        tokens = self._planned(position, limit) if self._model.has_reply_at(position) else self._words(position, limit)
        if self._terminators.isdisjoint(tokens):
            return tokens
        return tokens[: next(i for i, token in enumerate(tokens) if token in self._terminators)]

    def choose(self, position: int) -> int:
        """The token at a position; everything before it has been accepted."""
        return (self.run_from(position, 1) or (self._choose_with_care(position),))[0]

    def accept(self, token_ids: Iterable[int]) -> None:
        """Take note of tokens that became part of the output. Raises GrammarViolated."""
        if self._grammar is not None or self._has_penalties:
            for token_id in token_ids:
                self._in_output[token_id] += 1
                if self._grammar is not None:
                    self._grammar.accept(token_id)

    def logprobs(self, position: int, token_id: int, num_top: int) -> TokenLogprobs:
        """The model's own view of a choice."""
        return self._model.logprobs(position, token_id, num_top)

    def _planned(self, position: int, limit: int) -> Sequence[int]:
        return self._model.reply_from(position, limit) if self._may_draw_sure else ()

    def _words(self, position: int, limit: int) -> Sequence[int]:
        words = self._model.words_from(position)[:limit]
        if not self._ignored:
            words = words[: self._model.tokens_before_end(position, len(words))]
        if self._is_greedy:
            return words
        weights = self._weights
        likeliest = weights[0] / weights[-1]
        tokens = []
        for at, word in enumerate(words, position):
            uniform = self._draws.at(at)
            tokens.append(word if uniform < likeliest else self._model.token_at(at, _rank(weights, uniform)))
        return tokens

    def _choose_with_care(self, position: int) -> int:
        order = self._model.order(position)
        logits = self._adjusted_logits(position, order)
        candidates = self._candidates(position, order)
        if self._grammar is not None and self._model.wants_to_close(position):
            closer = next((token for token in _CLOSERS if token in candidates), None)
            if closer is not None:
                logits[closer] += _CLOSING_LOGIT
        if self._is_greedy:
            return max(candidates, key=logits.__getitem__)
        candidates.sort(key=logits.__getitem__, reverse=True)
        weights = cumulative_weights([logits[token] for token in candidates], self._sampling)
        return candidates[_rank(weights, self._draws.at(position))]

    def _adjusted_logits(self, position: int, order: Sequence[int]) -> list[float]:
        """Logits by token id: the model's, the plan's wish, then penalties and bias."""
        logits = [0.0] * VOCABULARY_SIZE
        for token_id, logit in zip(order, LOGITS, strict=True):
            logits[token_id] = logit
        sure = self._model.sure_token(position)
        if sure is not None:
            logits[sure] = SURE_LOGIT
        if self._has_penalties:
            self._penalise(logits)
        for token_id, bias in self._sampling.logit_bias:
            logits[token_id] += bias
        return logits

    def _penalise(self, logits: list[float]) -> None:
        """Repetition divides (CTRL, Keskar et al. 2019) for prompt and output; presence and frequency subtract."""
        sampling = self._sampling
        for token_id in self._in_prompt.union(self._in_output):
            factor = sampling.repetition_penalty
            logits[token_id] *= factor if logits[token_id] < 0.0 else 1.0 / factor
        for token_id, count in self._in_output.items():
            logits[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * count

    def _candidates(self, position: int, order: Sequence[int]) -> list[int]:
        """Tokens that may come, likeliest first. A grammar that leaves no other choice wins over a ban on ends."""
        allowed = list(order)
        if self._grammar is not None:
            permitted = self._grammar.permitted()
            allowed = [token for token in order if token in permitted]
        banned = self._terminators if position < self._min_output_tokens else self._ignored
        return [token for token in allowed if token not in banned] or allowed
