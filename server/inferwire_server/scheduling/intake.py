"""From a draft to a resolved generation: model found, everything checked, defaults filled in, prompt tokenised."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.engine import Capabilities, Engine, EngineState
from inferwire_server.domain.errors import InvalidRequest, ModelNotFound
from inferwire_server.domain.generation import Generation, Resume, Sampling, Scheduling, Stop
from inferwire_server.domain.model import ModelFacts, ModelState
from inferwire_server.domain.request import Conversation, GenerationDraft
from inferwire_server.scheduling.generation_names import prompt_digest
from inferwire_server.scheduling.lifecycle import Lifecycle, ServerState
from inferwire_server.scheduling.validation import check_draft, check_has_chat
from inferwire_server.text.grammar import check_grammar
from inferwire_server.text.pool import TextPool
from inferwire_server.text.prompt import PromptEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """What Tokenize answers."""

    model: str
    token_ids: Sequence[int]
    tokenizer_digest: str


class Intake:
    """One served model. `draw_seed` gives a uint32 for requests that name none, `largest_output` the most tokens that a
    caller who names no number is given."""

    def __init__(
        self,
        facts: ModelFacts,
        engine: Engine,
        encoder: PromptEncoder,
        pool: TextPool,
        lifecycle: Lifecycle,
        *,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(32),
        largest_output: Callable[[Caller], int | None] = lambda _: None,
    ) -> None:
        self.facts = facts
        self._engine = engine
        self._encoder = encoder
        self._pool = pool
        self._lifecycle = lifecycle
        self._draw_seed = draw_seed
        self._largest_output = largest_output
        self._names = {facts.name, facts.qualified_name, *facts.aliases}

    @property
    def capabilities(self) -> Capabilities:
        """Of the engine; valid once it has started."""
        self._lifecycle.check_started()
        return self._engine.capabilities

    def model_state(self) -> ModelState:
        """Whether the model can be used now."""
        if self._lifecycle.state is ServerState.STARTING:
            return ModelState.LOADING
        is_up = self._engine.health().state in (EngineState.READY, EngineState.DEGRADED)
        return ModelState.READY if is_up and self._lifecycle.state is ServerState.SERVING else ModelState.UNAVAILABLE

    def check_model(self, name: str) -> None:
        """Raise InvalidRequest for no name and ModelNotFound for an unknown one."""
        if not name:
            raise InvalidRequest("model", f"required; this server has {self.facts.qualified_name}")
        if name not in self._names:
            raise ModelNotFound(f"no such model here; this server has {self.facts.qualified_name}", field="model")

    async def resolve(self, draft: GenerationDraft, caller: Caller) -> Generation:
        """Raises what is wrong with the draft, first things first."""
        self.check_model(draft.model)
        facts, capabilities = self.facts, self.capabilities
        check_draft(draft, facts, capabilities)
        if draft.grammar is not None:
            await self._pool.run(partial(check_grammar, draft.grammar), holds_lock=True, deadline=draft.deadline)
            await self._engine.check(draft.grammar)
        token_ids = await self._prompt_tokens(draft)
        resume = self._checked_resume(draft, token_ids)
        sampling = self._sampling(draft)
        room = facts.max_context_tokens - len(token_ids)
        wanted = self._default_output(caller) if draft.max_output_tokens is None else draft.max_output_tokens
        if draft.max_output_tokens is not None and wanted > room:
            raise InvalidRequest(
                "max_output_tokens",
                f"at most {room} beside a prompt of {len(token_ids)} tokens in a context of {facts.max_context_tokens}",
                limit=room,
                actual=wanted,
            )
        max_output_tokens = min(wanted, room)
        if draft.min_output_tokens > max_output_tokens:
            raise InvalidRequest("stop.min_output_tokens", f"at most {max_output_tokens}, as many as there can be")
        return Generation(
            request_id=draft.request_id or secrets.token_hex(12),
            attempt=draft.attempt,
            model=facts.qualified_name,
            prompt_token_ids=tuple(token_ids),
            max_output_tokens=max_output_tokens,
            sampling=sampling,
            stop=Stop(
                strings=draft.stop_strings,
                token_ids=frozenset(draft.stop_token_ids),
                min_output_tokens=draft.min_output_tokens,
                ignore_end_of_sequence=draft.ignore_end_of_sequence,
                include_match=draft.include_match,
            ),
            count=draft.count or 1,
            grammar=draft.grammar,
            top_logprobs=draft.top_logprobs,
            prompt_top_logprobs=draft.prompt_top_logprobs,
            skip_special_tokens=draft.skip_special_tokens,
            scheduling=Scheduling(
                priority=draft.priority,
                max_queue_time_s=draft.max_queue_time_s,
                first_token_target_s=draft.first_token_target_s,
                detach_grace_s=draft.detach_grace_s or 0.0,
            ),
            cache_salt=draft.cache_salt,
            bypass_cache=draft.bypass_cache,
            resume=resume,
            deadline=draft.deadline,
        )

    async def tokenize(
        self, model: str, prompt: str | Conversation | None, *, add_special_tokens: bool | None, deadline: float | None
    ) -> TokenizedPrompt:
        """The ids that a generation of the same input would be given."""
        self.check_model(model)
        if prompt is None:
            raise InvalidRequest("input", "exactly one of prompt, chat is required")
        if isinstance(prompt, Conversation):
            if add_special_tokens is not None:
                raise InvalidRequest("add_special_tokens", "a chat template decides by itself; leave it out")
            check_has_chat(self.facts)
        ids = await self._encoder.encode(
            prompt,
            max_tokens=self.facts.max_context_tokens,
            add_special_tokens=True if add_special_tokens is None else add_special_tokens,
            deadline=deadline,
        )
        return TokenizedPrompt(
            model=self.facts.qualified_name, token_ids=ids, tokenizer_digest=self.facts.tokenizer_digest
        )

    async def detokenize(
        self, model: str, token_ids: tuple[int, ...], *, skip_special_tokens: bool, deadline: float | None
    ) -> str:
        """The text of ids. Raises InvalidRequest for an id outside the vocabulary."""
        self.check_model(model)
        return await self._encoder.decode(token_ids, skip_special_tokens=skip_special_tokens, deadline=deadline)

    async def _prompt_tokens(self, draft: GenerationDraft) -> Sequence[int]:
        limit = self.facts.max_context_tokens - 1
        prompt = draft.prompt
        if isinstance(prompt, (str, Conversation)):
            return await self._encoder.encode(prompt, max_tokens=limit, deadline=draft.deadline)
        ids = prompt or ()
        if len(ids) > limit:
            raise InvalidRequest(
                "token_ids.ids", f"at most {limit} fit, with one token of output", limit=limit, actual=len(ids)
            )
        return ids

    def _default_output(self, caller: Caller) -> int:
        default, largest = self.facts.defaults.max_output_tokens, self._largest_output(caller)
        return default if largest is None else min(default, largest)

    def _sampling(self, draft: GenerationDraft) -> Sampling:
        given, default = draft.sampling, self._default_sampling
        temperature = _chosen(given.temperature, default.temperature)
        seed = given.seed
        if seed is None:
            seed = self._draw_seed() if "sampling.seed" in self.capabilities.request_fields else 0
        return Sampling(
            temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
            top_p=_chosen(given.top_p, default.top_p),
            top_k=default.top_k if given.top_k is None else given.top_k,
            min_p=_chosen(given.min_p, default.min_p),
            repetition_penalty=_chosen(given.repetition_penalty, default.repetition_penalty),
            presence_penalty=_chosen(given.presence_penalty, default.presence_penalty),
            frequency_penalty=_chosen(given.frequency_penalty, default.frequency_penalty),
            seed=seed,
            logit_bias=tuple(sorted(given.logit_bias)),
        )

    @cached_property
    def _default_sampling(self) -> Sampling:
        """The model's defaults where the engine honours the field. For after the engine's start."""
        default, neutral = self.facts.defaults.sampling, Sampling()
        names = [path.removeprefix("sampling.") for path in self.capabilities.request_fields if "sampling." in path]
        taken = {name: getattr(default, name) for name in names if name not in ("seed", "logit_bias")}
        return replace(neutral, **taken)

    def _checked_resume(self, draft: GenerationDraft, token_ids: Sequence[int]) -> Resume | None:
        if draft.resume is None:
            return None
        if draft.resume.prompt_digest != prompt_digest(token_ids):
            raise InvalidRequest(
                "resume.prompt_digest", "this prompt, rendered here, is not the one of the interrupted stream"
            )
        limit = draft.max_output_tokens or self.facts.max_context_tokens - len(token_ids)
        for index, output in enumerate(draft.resume.outputs):
            if len(output.token_ids) > limit:
                raise InvalidRequest(
                    f"resume.outputs[{index}].token_ids",
                    f"more than the {limit} tokens an output may have",
                    limit=limit,
                    actual=len(output.token_ids),
                )
        return draft.resume


def _chosen(given: float | None, default: float) -> float:
    return default if given is None else given + 0.0


_GREEDY_BELOW = 1e-5
"""Smaller temperatures divide logits beyond what a float can hold; their limit is greedy."""
