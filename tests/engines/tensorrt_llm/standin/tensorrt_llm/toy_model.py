"""A language of one rule: the next token follows from all before it. Sampled and penalised as the real samplers do."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from .executor.result import Logprob
from .sampling_params import SamplingParams
from .temperament import ENDS_AFTER, ENDS_OTHERWISE_AFTER, STRAYS, VOCABULARY

_CANDIDATES = 24
_WORDS = 48
_FIRST_WORD = 100
SECOND_END = 7


class ToyModel:
    """The state of one sequence."""

    def __init__(
        self, prompt: Sequence[int], sampling: SamplingParams, *, draws: random.Random, extends_sampling: bool
    ) -> None:
        self._sampling = sampling
        self._draws = draws
        self._extends_sampling = extends_sampling
        self._mark = prompt[0]
        self._state = 0
        self._used: Counter[int] = Counter()
        self.produced = 0
        for token in prompt:
            self._absorb(token)

    def next(self) -> tuple[int, dict[int, Logprob] | None]:
        """One token and, if asked for, the logprobs of the likeliest: the chosen one need not be among them."""
        logits = self._logits()
        token = self._ending() or self._choose(logits)
        logprobs = self._report(logits) if self._sampling.logprobs else None
        self.produced += 1
        self._absorb(token)
        self._used[token] += 1
        return token, logprobs

    def _absorb(self, token: int) -> None:
        self._state = (self._state * 6364136223846793005 + token * 1442695040888963407 + 1) & (2**64 - 1)

    def _ending(self) -> int:
        if self._mark == STRAYS and self.produced == 2:
            return VOCABULARY + 5
        for first, end in ((ENDS_AFTER, self._sampling.end_id), (ENDS_OTHERWISE_AFTER, SECOND_END)):
            is_banned = self._extends_sampling and end in (self._sampling.bad_token_ids or ())
            if first <= self._mark < first + 64 and self.produced == self._mark - first and not is_banned:
                return end or 0
        return 0

    def _logits(self) -> dict[int, float]:
        pick = random.Random(self._state)
        words = pick.sample(range(_FIRST_WORD, _FIRST_WORD + _WORDS), _CANDIDATES)
        logits = {word: -0.25 * rank for rank, word in enumerate(words)}
        if not self._extends_sampling:
            return logits
        presence, frequency = self._sampling.presence_penalty or 0.0, self._sampling.frequency_penalty or 0.0
        repetition = self._sampling.repetition_penalty or 1.0
        for word in words:
            if self._used[word]:
                logits[word] -= presence + frequency * self._used[word] + math.log(repetition)
        return logits

    def _choose(self, logits: dict[int, float]) -> int:
        ranked = sorted(logits, key=lambda word: -logits[word])
        sampling = self._sampling
        if sampling.is_greedy:
            return ranked[0]
        temperature = sampling.temperature or 1.0
        weights = [math.exp(logits[word] / temperature) for word in ranked]
        kept = self._narrow(ranked, weights)
        draws = random.Random(f"{sampling.seed} {self._state}") if self._extends_sampling else self._draws
        return draws.choices(ranked[:kept], weights[:kept])[0]

    def _narrow(self, ranked: list[int], weights: list[float]) -> int:
        sampling = self._sampling
        kept = min(len(ranked), sampling.top_k or len(ranked))
        if sampling.top_p is not None and sampling.top_p < 1.0:
            total, reached = sum(weights), 0.0
            for position, weight in enumerate(weights):
                reached += weight
                if reached >= sampling.top_p * total:
                    kept = min(kept, position + 1)
                    break
        if self._extends_sampling and sampling.min_p:
            kept = min(kept, sum(weight >= sampling.min_p * weights[0] for weight in weights))
        return max(1, kept)

    def _report(self, logits: dict[int, float]) -> dict[int, Logprob]:
        total = math.log(sum(math.exp(value) for value in logits.values()))
        ranked = sorted(logits, key=lambda word: -logits[word])[: self._sampling.logprobs]
        return {word: Logprob(logits[word] - total, rank + 1) for rank, word in enumerate(ranked)}
