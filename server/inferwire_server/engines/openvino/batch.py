"""The pipeline and the sequences in it, in the worker process.

With prefix caching on, OpenVINO GenAI 2026.4 mixes requests up, however empty its cache is:

- It also restores blocks that are filled in part, and while a prompt is being read it writes behind the restored part
  without a copy. Two prompts that continue the same cached text at the same time overwrite each other's keys and
  values, and both go on with the mixture. A sequence that already generates is safe: it copies a shared block first.
- It registers a block as whole when the first chunk of a prompt that touches it is scheduled. A sequence dropped
  before it has read the rest leaves a block that serves garbage to the next prompt that begins alike.

So prompts that begin alike are read one after the other (which also lets the later ones find the cached prefix), and
nothing is dropped in the middle of its prompt.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt
import openvino  # type: ignore[import-untyped]
import openvino_genai  # type: ignore[import-untyped]
from openvino_genai import GenerationFinishReason, GenerationStatus

from inferwire_server.engines.openvino.decode_watch import DecodeWatch
from inferwire_server.engines.openvino.frames import Add, Load, Outcome, Step

TokenIds = npt.NDArray[np.int64]

_COMPANION = 0
"""Sequence number that the parent does not use."""
_COMPANION_TOKENS = 31
COMPANION_BLOCKS = 2
"""One that it fills, and one to spare like every other sequence."""


class _Sequence:
    """A request in the pipeline."""

    __slots__ = (
        *("ending", "handle", "has_grammar", "is_unwanted", "prompt"),
        *("steps_with_tokens", "wants_logprobs", "watched_ids"),
    )

    def __init__(self, handle: openvino_genai.GenerationHandle, add: Add, prompt: TokenIds) -> None:
        self.handle = handle
        self.prompt = prompt
        self.has_grammar = add.grammar is not None
        self.steps_with_tokens = 0
        self.is_unwanted = False
        """Cancelled, but the pipeline has not been told yet."""
        self.wants_logprobs = add.settings["logprobs"] > 0
        self.watched_ids = add.watched_ids
        self.ending: tuple[Outcome, int | None] | None = None
        """What to report when the next step has freed its blocks."""

    @property
    def is_reading(self) -> bool:
        """Whether its prompt is not read to the end yet."""
        return self.steps_with_tokens == 0


class Batch:
    """The pipeline, the sequences in it, and those that wait for a prompt like theirs to be read first."""

    def __init__(
        self, pipeline: openvino_genai.ContinuousBatchingPipeline, load: Load, decode_watch: DecodeWatch
    ) -> None:
        self._pipeline = pipeline
        self._prefix_caching = load.prefix_caching
        self._is_exact = load.is_exact
        self._decode_watch = decode_watch
        self._waiting: dict[int, tuple[Add, TokenIds]] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._never_ran: list[tuple[int, int, int | None]] = []
        """Ends to report of sequences that the pipeline has not seen."""

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return self._sequences.keys() <= {_COMPANION} and not self._waiting and not self._never_ran

    def add(self, add: Add) -> None:
        """Take a request; it enters the pipeline with the next step, or a later one."""
        self._waiting[add.sequence] = (add, np.frombuffer(add.prompt, dtype=np.int64))

    def cancel(self, sequence: int) -> None:
        """Take a request out with the next step; with prefix caching, not before its prompt is read."""
        if self._waiting.pop(sequence, None) is not None:
            self._never_ran.append((sequence, Outcome.CANCELLED.value, None))
            return
        running = self._sequences.get(sequence)
        if running is None or running.ending is not None:
            return
        if self._prefix_caching and running.is_reading:
            running.is_unwanted = True
        else:
            _drop(running, (Outcome.CANCELLED, None))

    def step(self) -> Step:
        """Advance every request by a token or a chunk of its prompt."""
        if self._is_exact and _COMPANION not in self._sequences:
            self.add(_companion())
        self._admit()
        started = time.perf_counter()
        if self._sequences:
            self._watched_step()
        seconds = time.perf_counter() - started
        tokens: list[tuple[int, list[int], list[float] | None]] = []
        ends, self._never_ran = self._never_ran, []
        for number, running in list(self._sequences.items()):
            end = running.ending
            if end is None:
                ids, logprobs, end = _read(running)
                if ids:
                    running.steps_with_tokens += 1
                    if running.is_unwanted and end is None:
                        _drop(running, (Outcome.CANCELLED, None))
                    elif number != _COMPANION:
                        tokens.append((number, ids, logprobs))
            if end is not None:
                del self._sequences[number]
                if number != _COMPANION:
                    outcome, ending_id = end
                    ends.append((number, outcome.value, ending_id))
        return Step(seconds, self._pipeline.get_metrics().cache_usage / 100, tokens, ends)

    def _watched_step(self) -> None:
        reads_prompts = any(each.is_reading for each in self._sequences.values())
        followed = [
            each for each in self._sequences.values() if each.has_grammar and not (each.is_reading or each.ending)
        ]
        used_before_s = time.process_time()
        self._pipeline.step()
        used_s = time.process_time() - used_before_s
        if self._decode_watch.is_held_up(used_s, follows_grammars=bool(followed), reads_prompts=reads_prompts):
            # Which one it is cannot be told; what a grammar costs grows with the text behind it.
            _drop(max(followed, key=lambda each: each.steps_with_tokens), (Outcome.TOO_COSTLY, None))

    def _admit(self) -> None:
        """Let those in that begin unlike every prompt that is being read."""
        sequences = self._sequences.values()
        beginnings = {int(each.prompt[0]) for each in sequences if each.is_reading}
        just_read = [each.prompt for each in sequences if each.steps_with_tokens == 1] if self._is_exact else []
        for number, (add, prompt) in list(self._waiting.items()):
            beginning = int(prompt[0])
            has_to_wait = beginning in beginnings or any(_leaves_one_token(prompt, other) for other in just_read)
            beginnings.add(beginning)
            if not (has_to_wait and self._prefix_caching):
                del self._waiting[number]
                self._enter(add, prompt)

    def _enter(self, add: Add, prompt: TokenIds) -> None:
        try:
            config = openvino_genai.GenerationConfig(**add.settings)
            if add.grammar is not None:
                keyword, source = add.grammar
                config.structured_output_config = openvino_genai.StructuredOutputConfig(**{keyword: source})
            handle = self._pipeline.add_request(add.sequence, openvino.Tensor(prompt.reshape(1, -1)), config)
        except (RuntimeError, TypeError) as error:
            sys.stderr.write(f"sequence {add.sequence} refused by the pipeline: {error}\n")
            self._never_ran.append((add.sequence, Outcome.REFUSED.value, None))
        else:
            self._sequences[add.sequence] = _Sequence(handle, add, prompt)


def _leaves_one_token(prompt: TokenIds, other: TokenIds) -> bool:
    """Whether a prompt would find all of itself but the last token in the cache, were another one's end still there.

    A single token is read by another kernel than several, and differs in the last bits. A step later the other
    sequence has gone on, its last block is no longer the end of its prompt, and several tokens are read again.
    """
    return len(prompt) - len(other) in (0, 1) and bool(np.array_equal(prompt[: len(other)], other))


def _companion() -> Add:
    """A sequence that nobody reads.

    Products of a matrix with a single row are computed by another kernel than those with several, and differ in the
    last bits; any two other numbers of rows agree. A sampled token that lies on such a bit would depend on whether
    the sequence was alone, so no sequence of the exact profile ever is.
    """
    settings = {"max_new_tokens": _COMPANION_TOKENS, "ignore_eos": True, "do_sample": False, "logprobs": 0}
    return Add(_COMPANION, np.zeros(1, np.int64).tobytes(), settings, None, frozenset())


def _drop(running: _Sequence, ending: tuple[Outcome, int | None]) -> None:
    running.handle.cancel()
    running.ending = ending


def _read(running: _Sequence) -> tuple[list[int], list[float] | None, tuple[Outcome, int | None] | None]:
    """New ids, their logprobs, and the end of a sequence whose blocks are free already."""
    handle = running.handle
    ids: list[int] = []
    logprobs: list[float] = []
    reason = GenerationFinishReason.NONE
    while handle.can_read():
        for output in handle.read().values():
            ids += output.generated_ids
            logprobs += output.generated_log_probs
            reason = output.finish_reason
    end: tuple[Outcome, int | None] | None = None
    if reason == GenerationFinishReason.STOP:
        end = (Outcome.STOPPED, ids.pop())
    elif reason == GenerationFinishReason.LENGTH:
        end = (Outcome.LENGTH, None)
    elif not ids and handle.get_status() == GenerationStatus.IGNORED:
        end = (Outcome.OUT_OF_BLOCKS, None)
    stop_at = next((index for index, token_id in enumerate(ids) if token_id in running.watched_ids), None)
    if stop_at is not None:
        stopped = (Outcome.STOPPED, ids[stop_at])
        del ids[stop_at:]
        if end is None:
            _drop(running, stopped)
        else:
            end = stopped
    return ids, logprobs[: len(ids)] if running.wants_logprobs else None, end
