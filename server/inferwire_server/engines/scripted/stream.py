"""One request in the batch: from its prefill to its one terminal event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferwire_server.domain.engine import EngineRequest, EngineSink, Finished, PrefillProgress, PromptTokens, Tokens
from inferwire_server.domain.generation import FinishReason, TokenLogprob, TokenLogprobs
from inferwire_server.engines.scripted.kv_cache import Allocation
from inferwire_server.engines.scripted.plans import Mishap, Plan, Refuse
from inferwire_server.engines.scripted.sampler import Sampler
from inferwire_server.engines.scripted.token_model import TokenModel
from inferwire_server.engines.scripted.vocabulary import END_TOKEN_IDS

_PROMPT_MODEL = TokenModel(b"prompt")
_WINDOW_TOKENS = 64


class StreamHost(Protocol):
    """What a stream asks of its engine."""

    def finish(self, stream: ScriptedStream, terminal: Finished) -> None:
        """Take it out of the batch, then tell its sink."""

    def meet(self, stream: ScriptedStream, mishap: Mishap) -> None:
        """Let a planned mishap happen."""

    def request_cancel(self, stream: ScriptedStream) -> None:
        """End it soon as cancelled, unless it has ended."""


class ScriptedStream:
    """Implements EngineStream. `position` counts the output's tokens, resumed ones included."""

    def __init__(
        self,
        request: EngineRequest,
        sink: EngineSink,
        *,
        host: StreamHost,
        plan: Plan,
        sampler: Sampler,
        allocation: Allocation,
    ) -> None:
        self.request = request
        self.sink = sink
        self.allocation = allocation
        self.cached_tokens = min(allocation.cached_tokens, len(request.prompt_token_ids))
        self.is_live = True
        self.is_cancelling = False
        self.prefill_left = len(request.prompt_token_ids) + len(request.resumed_token_ids) - allocation.cached_tokens
        self.chunk = 0
        """Tokens to prefill in the present step."""
        self.position = len(request.resumed_token_ids)
        self.ready_at = 0.0
        """Clock time before which the plan keeps it silent."""
        self._host = host
        self._plan = plan
        self._sampler = sampler
        self._limit = self.position + request.max_output_tokens
        self._mishap_at = _mishap_position(plan.mishap, self.position)
        self._output: list[int] = list(request.resumed_token_ids)
        self._run: Sequence[int] = ()
        self._run_start = self.position
        self.run_end = self.position
        """The position up to which tokens are prepared."""
        self._is_timed = plan.token_delay_s > 0.0
        self._is_plain = request.top_logprobs is None and not self._is_timed

    def cancel(self) -> None:
        """Ask for an end; idempotent."""
        self._host.request_cancel(self)

    @property
    def computed_tokens(self) -> int:
        """Prompt and output tokens whose KV is there: not the latest output token."""
        if self.prefill_left:
            return len(self.request.prompt_token_ids) + len(self.request.resumed_token_ids) - self.prefill_left
        return len(self.request.prompt_token_ids) + max(len(self.request.resumed_token_ids), self.position - 1)

    def computed_token_ids(self) -> list[int]:
        """The tokens that `computed_tokens` counts."""
        self._settle_run()
        return [*self.request.prompt_token_ids, *self._output][: self.computed_tokens]

    def count_chunk(self) -> None:
        """The chunk of the present step has been computed."""
        self.prefill_left -= self.chunk
        self.chunk = 0

    def report_prefill(self) -> None:
        """Tell how far the prompt has been computed."""
        self.sink(PrefillProgress(min(self.computed_tokens, len(self.request.prompt_token_ids))))

    def start_output(self, now: float) -> None:
        """The prompt is computed: from now on `advance` produces tokens."""
        if self.request.prompt_top_logprobs is not None:
            self.sink(PromptTokens(_prompt_logprobs(self.request.prompt_token_ids, self.request.prompt_top_logprobs)))
        self.ready_at = now + self._plan.first_token_delay_s

    def send_prepared(self) -> None:
        """Send the next token of the present run; only while `position` is below `run_end`."""
        position = self.position
        self.position = position + 1
        self.sink(Tokens((self._run[position - self._run_start],)))

    def advance(self, now: float) -> None:
        """Produce a token that may be the last, or delayed, or come with logprobs, or not come at all.

        Raises GrammarViolated.
        """
        if now < self.ready_at:
            return
        position = self.position
        if position == self._mishap_at and self._plan.mishap is not None:
            self._mishap_at = -1
            self._host.meet(self, self._plan.mishap)
            return
        self._settle_run()
        token_id = self._sampler.choose(position)
        if token_id in self.request.stop_token_ids:
            self._finish(FinishReason.STOP, stop_token_id=token_id)
        elif token_id in END_TOKEN_IDS:
            self._finish(FinishReason.STOP, end_token_id=token_id)
        else:
            self._emit(position, token_id, now)

    def _emit(self, position: int, token_id: int, now: float) -> None:
        self._sampler.accept((token_id,))
        self._output.append(token_id)
        self.position = position + 1
        self._run_start = self.run_end = self.position
        if self._is_timed:
            self.ready_at = now + self._plan.token_delay_s
        elif self._is_plain:
            self._begin_run()
        self.sink(Tokens((token_id,), self._logprobs(position, token_id)))
        if self.position == self._limit and self.is_live:
            self._finish(FinishReason.LENGTH)

    def _begin_run(self) -> None:
        """Prepare tokens that need no care; the output's last one always does."""
        longest = min(_WINDOW_TOKENS, self._limit - 1 - self.position)
        if self._mishap_at > self.position:
            longest = min(longest, self._mishap_at - self.position)
        if longest > 0:
            self._run = self._sampler.run_from(self.position, longest)
            self.run_end = self._run_start + len(self._run)

    def _settle_run(self) -> None:
        """Move what was sent of the present run to the output."""
        self._output += self._run[: self.position - self._run_start]
        self._run = ()
        self._run_start = self.run_end = self.position

    def _logprobs(self, position: int, token_id: int) -> tuple[TokenLogprobs, ...]:
        num_top = self.request.top_logprobs
        return () if num_top is None else (self._sampler.logprobs(position, token_id, num_top),)

    def _finish(
        self, reason: FinishReason, *, end_token_id: int | None = None, stop_token_id: int | None = None
    ) -> None:
        self._host.finish(
            self,
            Finished(
                reason=reason,
                end_token_id=end_token_id,
                stop_token_id=stop_token_id,
                cached_tokens=self.cached_tokens,
            ),
        )


def _mishap_position(mishap: Mishap | None, resumed: int) -> int:
    """The output position at which it happens; a continuation does not meet again what interrupted the output."""
    if mishap is None or isinstance(mishap, Refuse):
        return -1
    return mishap.after if resumed == 0 or mishap.after > resumed else -1


def _prompt_logprobs(prompt: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Nothing comes before the first token, so it has no probability."""
    first = TokenLogprobs(TokenLogprob(prompt[0], None))
    rest = (_PROMPT_MODEL.logprobs(index, token_id, num_top) for index, token_id in enumerate(prompt[1:], 1))
    return (first, *rest)
