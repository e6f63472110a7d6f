"""The same request by both calls, in one shape: what holds for the stream holds for the reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from inferwire.v1 import generation_pb2, inference_pb2_grpc


class Serves(Protocol):
    """What has an inference stub."""

    inference: inference_pb2_grpc.InferenceServiceAsyncStub


STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH


@dataclass(slots=True)
class Answer:
    """One output and what came around it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generation_pb2.TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[generation_pb2.TokenLogprobs] = field(default_factory=list)
    started: generation_pb2.Started = field(default_factory=generation_pb2.Started)
    finished: generation_pb2.Finished = field(default_factory=generation_pb2.Finished)
    usage: generation_pb2.Usage = field(default_factory=generation_pb2.Usage)


async def streamed(server: Serves, message: generation_pb2.GenerateRequest) -> Answer:
    """By StreamGenerate."""
    answer = Answer()
    async for event in server.inference.StreamGenerate(message):
        kind = event.WhichOneof("event")
        if kind == "delta":
            answer.text += event.delta.text
            answer.token_ids += event.delta.token_ids
            answer.logprobs += event.delta.logprobs
        elif kind == "prompt_logprobs":
            answer.prompt_logprobs += event.prompt_logprobs.tokens
        elif kind == "started":
            answer.started = event.started
        elif kind == "finished":
            answer.finished = event.finished
        elif kind == "completed":
            answer.usage = event.completed.usage
    return answer


async def replied(server: Serves, message: generation_pb2.GenerateRequest) -> Answer:
    """By Generate."""
    response = await server.inference.Generate(message)
    (output,) = response.outputs
    return Answer(
        text=output.text,
        token_ids=list(output.token_ids),
        logprobs=list(output.logprobs),
        prompt_logprobs=list(response.prompt_logprobs),
        started=response.started,
        finished=output.finished,
        usage=response.usage,
    )


async def answered(server: Serves, message: generation_pb2.GenerateRequest) -> Answer:
    """By both, which must agree in all but the request's own id and the cache."""
    stream, reply = await streamed(server, message), await replied(server, message)
    assert stream.text == reply.text
    assert stream.token_ids == reply.token_ids
    assert stream.logprobs == reply.logprobs
    assert stream.prompt_logprobs == reply.prompt_logprobs
    assert stream.finished == reply.finished
    assert stream.usage.output_tokens == reply.usage.output_tokens
    assert stream.usage.prompt_tokens == reply.usage.prompt_tokens == stream.started.prompt_tokens
    return stream
