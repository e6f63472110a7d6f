"""The pipeline and the sequences in it, in the worker process."""

from __future__ import annotations

import sys
import time

import numpy as np
import openvino  # type: ignore[import-untyped]
import openvino_genai  # type: ignore[import-untyped]
from openvino_genai import GenerationFinishReason, GenerationStatus

from inferwire_server.engines.openvino.frames import Add, Load, Outcome, Step
from inferwire_server.engines.openvino.prefix_guard import TokenIds, may_share_unfinished_block


class _Sequence:
    """A request in the pipeline."""

    __slots__ = ("ending", "handle", "is_unwanted", "unread_prompt", "wants_logprobs", "watched_ids")

    def __init__(self, handle: openvino_genai.GenerationHandle, add: Add, prompt: TokenIds) -> None:
        self.handle = handle
        self.unread_prompt: TokenIds | None = prompt
        """None from the first token on."""
        self.is_unwanted = False
        """Cancelled, but the pipeline has not been told yet."""
        self.wants_logprobs = add.settings["logprobs"] > 0
        self.watched_ids = add.watched_ids
        self.ending: tuple[Outcome, int | None] | None = None
        """What to report when the next step has freed its blocks."""


class Batch:
    """The pipeline, the sequences in it, and those that must wait for a prompt like theirs to be read first."""

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline, load: Load) -> None:
        self._pipeline = pipeline
        self._block_tokens = load.block_tokens
        self._prefix_caching = load.prefix_caching
        self._waiting: dict[int, tuple[Add, TokenIds]] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._never_ran: list[tuple[int, int, int | None]] = []
        """Ends to report of sequences that the pipeline has not seen."""

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._sequences and not self._waiting and not self._never_ran

    def add(self, add: Add) -> None:
        """Take a request; it enters the pipeline with the next step, or a later one."""
        self._waiting[add.sequence] = (add, np.frombuffer(add.prompt, dtype=np.int64))

    def cancel(self, sequence: int) -> None:
        """Take a request out with the next step, but never in the middle of its prompt.

        The pipeline registers a block as whole when the first chunk that touches it is scheduled. Dropped before the
        rest is computed, it would serve garbage to the next prompt that begins alike.
        """
        if self._waiting.pop(sequence, None) is not None:
            self._never_ran.append((sequence, Outcome.CANCELLED.value, None))
            return
        running = self._sequences.get(sequence)
        if running is None or running.ending is not None:
            return
        if self._prefix_caching and running.unread_prompt is not None:
            running.is_unwanted = True
        else:
            _drop(running, (Outcome.CANCELLED, None))

    def step(self) -> Step:
        """Advance every request by a token or a chunk of its prompt."""
        self._admit()
        started = time.perf_counter()
        if self._sequences:
            self._pipeline.step()
        seconds = time.perf_counter() - started
        tokens: list[tuple[int, list[int], list[float] | None]] = []
        ends, self._never_ran = self._never_ran, []
        for number, running in list(self._sequences.items()):
            end = running.ending
            if end is None:
                ids, logprobs, end = _read(running)
                if ids:
                    running.unread_prompt = None
                    if not running.is_unwanted:
                        tokens.append((number, ids, logprobs))
                    elif end is None:
                        _drop(running, (Outcome.CANCELLED, None))
            if end is not None:
                outcome, ending_id = end
                ends.append((number, outcome.value, ending_id))
                del self._sequences[number]
        return Step(seconds, self._pipeline.get_metrics().cache_usage / 100, tokens, ends)

    def _admit(self) -> None:
        """Let those in that share no unfinished block with a prompt that is being read or that waits before them."""
        unread = [each.unread_prompt for each in self._sequences.values() if each.unread_prompt is not None]
        for number, (add, prompt) in list(self._waiting.items()):
            has_to_wait = self._prefix_caching and any(
                may_share_unfinished_block(prompt, other, self._block_tokens) for other in unread
            )
            unread.append(prompt)
            if not has_to_wait:
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
