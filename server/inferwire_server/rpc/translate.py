"""Protobuf to domain and back. Pure functions; nothing is checked here but what the wire cannot express."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage
from inferwire.v1 import generation_pb2, model_pb2

from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import (
    Completed,
    Delta,
    Event,
    Grammar,
    GrammarKind,
    OutputFinished,
    Priority,
    Progress,
    PromptLogprobs,
    Resume,
    ResumedOutput,
    Sampling,
    Started,
    TokenLogprob,
    TokenLogprobs,
)
from inferwire_server.domain.model import ModelFacts, ModelState
from inferwire_server.domain.request import Conversation, GenerationDraft, Message, Prompt, SamplingDraft
from inferwire_server.rpc.delta_encoding import encoded_delta

_GROUPS = frozenset({"sampling", "stop", "output", "structured_output", "scheduling", "cache", "expected_model"})


def draft(request: generation_pb2.GenerateRequest, *, is_streaming: bool, deadline: float | None) -> GenerationDraft:
    """The request in the domain's words."""
    sampling, stop, output = request.sampling, request.stop, request.output
    scheduling, cache, expected = request.scheduling, request.cache, request.expected_model
    return GenerationDraft(
        model=request.model,
        prompt=prompt_of(request),
        max_output_tokens=request.max_output_tokens if request.HasField("max_output_tokens") else None,
        sampling=_sampling_draft(sampling) if request.HasField("sampling") else SamplingDraft(),
        stop_strings=tuple(stop.strings),
        stop_token_ids=tuple(stop.token_ids),
        min_output_tokens=stop.min_output_tokens,
        ignore_end_of_sequence=stop.ignore_end_of_sequence,
        include_match=stop.include_match,
        count=output.count if output.HasField("count") else None,
        top_logprobs=output.top_logprobs if output.HasField("top_logprobs") else None,
        prompt_top_logprobs=output.prompt_top_logprobs if output.HasField("prompt_top_logprobs") else None,
        skip_special_tokens=output.skip_special_tokens if output.HasField("skip_special_tokens") else True,
        grammar=_grammar(request),
        request_id=request.request_id,
        attempt=request.attempt,
        priority=_priority(scheduling.priority),
        max_queue_time_s=_seconds(scheduling, "max_queue_time", "scheduling.max_queue_time"),
        first_token_target_s=_seconds(scheduling, "first_token_target", "scheduling.first_token_target"),
        detach_grace_s=_seconds(scheduling, "detach_grace", "scheduling.detach_grace"),
        cache_salt=cache.salt,
        bypass_cache=cache.bypass,
        expected_fingerprint=expected.fingerprint,
        expected_tokenizer_digest=expected.tokenizer_digest,
        expected_chat_template_digest=expected.chat_template_digest,
        resume=_resume(request),
        progress_interval_s=progress_interval_s(request),
        is_streaming=is_streaming,
        deadline=deadline,
        set_fields=frozenset(set_fields(request)),
    )


def progress_interval_s(request: generation_pb2.GenerateRequest) -> float | None:
    """How often this reader wants a sign of life; None for never."""
    return _seconds(request, "progress_interval", "progress_interval")


def set_fields(request: generation_pb2.GenerateRequest) -> Iterable[str]:
    """Paths of the fields that are set, as capabilities name them."""
    for descriptor, value in request.ListFields():
        if descriptor.name in _GROUPS:
            for inner, _ in value.ListFields():
                yield f"{descriptor.name}.{inner.name}"
        else:
            yield descriptor.name


def prompt_of(request: generation_pb2.GenerateRequest) -> Prompt | None:
    """The input in the domain's words; None without one."""
    kind = request.WhichOneof("input")
    if kind == "prompt":
        return request.prompt
    if kind == "token_ids":
        return tuple(request.token_ids.ids)
    return conversation(request.chat) if kind == "chat" else None


def conversation(chat: generation_pb2.Chat) -> Conversation:
    """A chat in the domain's words; a message without content is refused by the path of it."""
    for index, message in enumerate(chat.messages):
        if message.WhichOneof("content") is None:
            raise InvalidRequest(f"chat.messages[{index}].content", "required")
    return Conversation(
        messages=tuple(Message(message.role, message.text) for message in chat.messages),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
        template_variables_json=chat.template_variables_json,
    )


def _sampling_draft(sampling: generation_pb2.SamplingOptions) -> SamplingDraft:
    has = sampling.HasField
    return SamplingDraft(
        temperature=sampling.temperature if has("temperature") else None,
        top_p=sampling.top_p if has("top_p") else None,
        top_k=sampling.top_k if has("top_k") else None,
        min_p=sampling.min_p if has("min_p") else None,
        repetition_penalty=sampling.repetition_penalty if has("repetition_penalty") else None,
        presence_penalty=sampling.presence_penalty if has("presence_penalty") else None,
        frequency_penalty=sampling.frequency_penalty if has("frequency_penalty") else None,
        seed=sampling.seed if has("seed") else None,
        logit_bias=tuple((entry.token_id, entry.bias) for entry in sampling.logit_bias),
    )


def _grammar(request: generation_pb2.GenerateRequest) -> Grammar | None:
    if not request.HasField("structured_output"):
        return None
    structured = request.structured_output
    kind = structured.WhichOneof("format")
    if kind is None:
        raise InvalidRequest("structured_output.format", "exactly one of json_schema, regex, ebnf, choices is required")
    if kind == "choices":
        return Grammar(kind=GrammarKind.CHOICES, texts=tuple(structured.choices.texts))
    return Grammar(kind=GrammarKind(kind), source=getattr(structured, kind))


def _resume(request: generation_pb2.GenerateRequest) -> Resume | None:
    if not request.HasField("resume"):
        return None
    return Resume(
        prompt_digest=request.resume.prompt_digest,
        outputs=tuple(
            ResumedOutput(output_index=o.output_index, token_ids=tuple(o.token_ids), finished=o.finished)
            for o in request.resume.outputs
        ),
    )


def _priority(value: int) -> Priority:
    return Priority(value) if value in (1, 2, 3) else Priority.STANDARD


def _seconds(message: ProtoMessage, name: str, path: str) -> float | None:
    if not message.HasField(name):
        return None
    return seconds(getattr(message, name), path)


def seconds(duration: Duration, path: str) -> float:
    """A duration in seconds; one that protobuf calls malformed is refused by its path."""
    if not -999_999_999 <= duration.nanos <= 999_999_999 or duration.seconds * duration.nanos < 0:
        raise InvalidRequest(path, "malformed duration: seconds and nanos must agree in sign, nanos below one second")
    return duration.seconds + duration.nanos / 1e9


class ResponseWriter:
    """Turns events into stream messages for one reader, as its output options ask.

    `piece_bytes` gives the bytes that a token id stands for, which logprobs carry.
    """

    def __init__(self, output: generation_pb2.OutputOptions, piece_bytes: Callable[[int], bytes]) -> None:
        self._piece_bytes = piece_bytes
        self._with_text = output.text if output.HasField("text") else True
        self._with_ids = output.token_ids

    def encoded(self, event: Event) -> bytes:
        """One stream message as it goes out."""
        if type(event) is Delta and not event.logprobs:
            token_ids = event.token_ids
            return encoded_delta(
                event.output_index,
                event.token_offset,
                len(token_ids),
                event.text if self._with_text else "",
                token_ids if self._with_ids else (),
            )
        return self._message(event).SerializeToString()

    def _message(self, event: Event) -> generation_pb2.StreamGenerateResponse:
        response = generation_pb2.StreamGenerateResponse()
        if isinstance(event, Delta):
            delta = response.delta
            delta.output_index = event.output_index
            delta.token_offset = event.token_offset
            delta.token_count = len(event.token_ids)
            if self._with_text:
                delta.text = event.text
            if self._with_ids:
                delta.token_ids.extend(event.token_ids)
            self._fill_logprobs(delta.logprobs, event.logprobs)
        elif isinstance(event, Started):
            _fill_started(response.started, event)
        elif isinstance(event, OutputFinished):
            _fill_finished(response.finished, event)
        elif isinstance(event, Completed):
            _fill_usage(response.completed.usage, event)
            _fill_timings(response.completed.timings, event)
        elif isinstance(event, Progress):
            _fill_progress(response.progress, event)
        else:
            response.prompt_logprobs.token_offset = event.token_offset
            self._fill_logprobs(response.prompt_logprobs.tokens, event.tokens)
        return response

    def whole(self, events: Iterable[Event]) -> generation_pb2.GenerateResponse:
        """The unary reply made of all events of a generation."""
        response = generation_pb2.GenerateResponse()
        texts: dict[int, list[str]] = {}
        for event in events:
            if isinstance(event, Delta):
                output = _output(response, event.output_index)
                texts.setdefault(event.output_index, []).append(event.text)
                if self._with_ids:
                    output.token_ids.extend(event.token_ids)
                if event.logprobs:
                    self._fill_logprobs(output.logprobs, event.logprobs)
            elif isinstance(event, OutputFinished):
                _fill_finished(_output(response, event.output_index).finished, event)
            elif isinstance(event, Started):
                _fill_started(response.started, event)
            elif isinstance(event, Completed):
                _fill_usage(response.usage, event)
                _fill_timings(response.timings, event)
            elif isinstance(event, PromptLogprobs):
                self._fill_logprobs(response.prompt_logprobs, event.tokens)
        if self._with_text:
            for index, pieces in texts.items():
                response.outputs[index].text = "".join(pieces)
        return response

    def _fill_logprobs(self, target: object, logprobs: Sequence[TokenLogprobs]) -> None:
        for entry in logprobs:
            added = target.add()  # type: ignore[attr-defined]
            self._fill_logprob(added.token, entry.token)
            for candidate in entry.top:
                self._fill_logprob(added.top.add(), candidate)

    def _fill_logprob(self, target: generation_pb2.TokenLogprob, value: TokenLogprob) -> None:
        target.token_id = value.token_id
        target.token_bytes = self._piece_bytes(value.token_id)
        if value.logprob is not None and math.isfinite(value.logprob):
            target.logprob = min(0.0, value.logprob) + 0.0


def _output(response: generation_pb2.GenerateResponse, index: int) -> generation_pb2.Output:
    while len(response.outputs) <= index:
        response.outputs.add()
    return response.outputs[index]


def _fill_started(target: generation_pb2.Started, event: Started) -> None:
    target.request_id = event.request_id
    target.model = event.model
    target.model_fingerprint = event.model_fingerprint
    target.prompt_tokens = event.prompt_tokens
    target.prompt_digest = event.prompt_digest
    target.max_output_tokens = event.max_output_tokens
    if event.seed is not None:
        target.seed = event.seed
    target.continuation = generation_pb2.Continuation.ValueType(event.continuation)


def _fill_finished(target: generation_pb2.Finished, event: OutputFinished) -> None:
    target.output_index = event.output_index
    target.reason = generation_pb2.FinishReason.ValueType(event.reason)
    if event.end_token_id is not None:
        target.end_token_id = event.end_token_id
    elif event.stop_string is not None:
        target.stop_string = event.stop_string
    elif event.stop_token_id is not None:
        target.stop_token_id = event.stop_token_id
    target.output_tokens = event.output_tokens


def _fill_usage(target: generation_pb2.Usage, event: Completed) -> None:
    target.prompt_tokens = event.usage.prompt_tokens
    target.output_tokens = event.usage.output_tokens
    target.resumed_tokens = event.usage.resumed_tokens
    if event.usage.cached_tokens is not None:
        target.cached_tokens = event.usage.cached_tokens


def _fill_timings(target: generation_pb2.Timings, event: Completed) -> None:
    timings = event.timings
    _fill_duration(target.queue_time, timings.queue_time_s)
    _fill_duration(target.first_token_time, timings.first_token_time_s)
    _fill_duration(target.total_time, timings.total_time_s)


def _fill_duration(target: Duration, value_s: float | None) -> None:
    if value_s is not None:
        target.FromNanoseconds(round(value_s * 1e9))


def _fill_progress(target: generation_pb2.Progress, event: Progress) -> None:
    target.stage = generation_pb2.Stage.ValueType(event.stage)
    if event.queue_position is not None:
        target.queue_position = event.queue_position
    if event.estimated_wait_s is not None:
        _fill_duration(target.estimated_wait, event.estimated_wait_s)
    if event.prompt_tokens_done is not None:
        target.prompt_tokens_done = event.prompt_tokens_done


def model(
    facts: ModelFacts,
    capabilities: Capabilities,
    state: ModelState,
    *,
    request_fields: Iterable[str],
    max_output_count: int,
) -> model_pb2.Model:
    """A served model as the contract describes it."""
    message = model_pb2.Model(
        name=facts.qualified_name,
        aliases=facts.aliases,
        fingerprint=facts.fingerprint,
        tokenizer_digest=facts.tokenizer_digest,
        chat_template_digest=facts.chat_template_digest,
        state=model_pb2.ModelState.ValueType(state),
        engine=facts.engine,
        chat_roles=facts.chat_roles,
    )
    message.limits.max_context_tokens = facts.max_context_tokens
    message.limits.max_output_tokens = facts.max_context_tokens - 1
    message.limits.max_output_count = max_output_count
    message.limits.max_top_logprobs = capabilities.max_top_logprobs
    message.limits.vocabulary_size = facts.vocabulary_size
    message.capabilities.request_fields.extend(sorted(request_fields))
    message.capabilities.resume_guarantee = model_pb2.ResumeGuarantee.ValueType(capabilities.resume_guarantee)
    message.capabilities.reports_cached_tokens = capabilities.reports_cached_tokens
    message.capabilities.batch_invariant = capabilities.batch_invariant
    message.defaults.max_output_tokens = facts.defaults.max_output_tokens
    _fill_sampling(message.defaults.sampling, facts.defaults.sampling)
    return message


def _fill_sampling(target: generation_pb2.SamplingOptions, sampling: Sampling) -> None:
    target.temperature = sampling.temperature
    target.top_p = sampling.top_p
    target.top_k = sampling.top_k
    target.min_p = sampling.min_p
    target.repetition_penalty = sampling.repetition_penalty
    target.presence_penalty = sampling.presence_penalty
    target.frequency_penalty = sampling.frequency_penalty
