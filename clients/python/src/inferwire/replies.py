"""What generations come back as."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from inferwire.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class Output:
    """One complete output."""

    text: str
    token_ids: tuple[int, ...]
    """Empty unless asked for."""
    finish_reason: str
    """`stop` or `length`."""
    stop_string: str | None
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete generation. Times are seconds on the server; None is unknown."""

    outputs: tuple[Output, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    request_id: str
    model: str
    seed: int | None
    queue_time_s: float | None
    first_token_time_s: float | None
    total_time_s: float | None

    @property
    def text(self) -> str:
        """Of the first output."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def finish_reason(self) -> str:
        """Of the first output."""
        return self.outputs[0].finish_reason if self.outputs else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one output and exactly their text."""

    text: str
    output_index: int = 0
    token_ids: tuple[int, ...] = ()
    """Empty unless asked for."""
    token_count: int = 0


def reply_of(response: generation_pb2.GenerateResponse) -> Reply:
    """From the contract's message."""
    usage, timings, started = response.usage, response.timings, response.started
    return Reply(
        outputs=tuple(_output(output) for output in response.outputs),
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens if usage.HasField("cached_tokens") else None,
        request_id=started.request_id,
        model=started.model,
        seed=started.seed if started.HasField("seed") else None,
        queue_time_s=_seconds(timings.queue_time) if timings.HasField("queue_time") else None,
        first_token_time_s=_seconds(timings.first_token_time) if timings.HasField("first_token_time") else None,
        total_time_s=_seconds(timings.total_time) if timings.HasField("total_time") else None,
    )


class Collector:
    """Puts a stream's events together into the response that unary would have given."""

    def __init__(self) -> None:
        self.response = generation_pb2.GenerateResponse()
        self.is_complete = False
        self._texts: list[list[str]] = []

    def add(self, event: generation_pb2.StreamGenerateResponse) -> None:
        """Take the next event."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            output = self._output(event.delta.output_index)
            self._texts[event.delta.output_index].append(event.delta.text)
            output.token_ids.extend(event.delta.token_ids)
            output.logprobs.extend(event.delta.logprobs)
        elif kind == "started":
            self.response.started.CopyFrom(event.started)
        elif kind == "finished":
            self._output(event.finished.output_index).finished.CopyFrom(event.finished)
        elif kind == "prompt_logprobs":
            self.response.prompt_logprobs.extend(event.prompt_logprobs.tokens)
        elif kind == "completed":
            self.response.usage.CopyFrom(event.completed.usage)
            self.response.timings.CopyFrom(event.completed.timings)
            self.is_complete = True

    def text(self, output_index: int = 0) -> str:
        """Of one output, so far."""
        return "".join(self._texts[output_index]) if output_index < len(self._texts) else ""

    def reply(self) -> Reply:
        """Everything so far."""
        for output, pieces in zip(self.response.outputs, self._texts, strict=True):
            output.text = "".join(pieces)
        return reply_of(self.response)

    def _output(self, index: int) -> generation_pb2.Output:
        while len(self._texts) <= index:
            self.response.outputs.add()
            self._texts.append([])
        return self.response.outputs[index]


def _output(output: generation_pb2.Output) -> Output:
    finished = output.finished
    return Output(
        text=output.text,
        token_ids=tuple(output.token_ids),
        finish_reason=generation_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower(),
        stop_string=finished.stop_string if finished.HasField("stop_string") else None,
        output_tokens=finished.output_tokens,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
