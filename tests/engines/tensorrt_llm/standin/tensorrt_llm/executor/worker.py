"""The executor and its worker: a thread that runs the batch step by step and pushes responses to the readers' loop."""

# ruff: noqa: TID252 - importable under its own name only while a test runs

from __future__ import annotations

import itertools
import json
import queue
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..sampling_params import SamplingParams
from ..temperament import (
    ACKNOWLEDGES_LATE,
    FAILS,
    FAILS_AT_ONCE,
    NEVER_ACKNOWLEDGES,
    Record,
    Temperament,
)
from ..toy_model import ToyModel
from .result import AsyncQueue, GenerationResult, IterationResult, Response, notify_many
from .utils import RequestError

_LATE_STEPS = 40


@dataclass(slots=True)
class Settings:
    """What of the LLM's arguments the worker heeds."""

    max_batch_size: int
    max_seq_len: int
    tokens_per_block: int
    reuses_blocks: bool
    extends_sampling: bool
    has_statistics: bool
    has_events: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the worker."""

    result: GenerationResult
    model: ToyModel
    max_tokens: int
    salt: str | None
    mark: int
    cached_tokens: int = 0
    aborted_at: int | None = None
    has_hidden_stop: bool = False
    """Its stop id has been shown; the end comes with the next response."""


class GenerationExecutor:
    """Proxy and worker in one; `_` names as recorded."""

    def __init__(self, temperament: Temperament, settings: Settings, record: Record) -> None:
        self.doing_shutdown = False
        self.mpi_futures: list[Future[None]] = [Future()]
        self._temperament = temperament
        self._settings = settings
        self._record = record
        self._ids = itertools.count(2)
        self._submissions: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
        self._aborts: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._results: dict[int, GenerationResult] = {}
        self._prefixes: set[tuple[str | None, int]] = set()
        self._draws = random.Random(42)
        self._step = 0
        self._iteration_result: IterationResult | None = None
        self._events_result: IterationResult | None = None
        self._event_ids = itertools.count()
        self._work = threading.Event()
        self._stop = threading.Event()
        self._fatal: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="standin-worker", daemon=True)
        self._thread.start()

    # --- the proxy's side ----------------------------------------------------------------------------------------

    def is_shutdown(self) -> bool:
        return self.doing_shutdown

    def submit(self, prompt: list[int], sampling: SamplingParams, salt: str | None) -> GenerationResult:
        self._open_statistics()
        result = GenerationResult(next(self._ids), prompt, sampling, self, self._handle_error)
        limit = self._settings.max_seq_len - len(prompt)
        model = ToyModel(prompt, sampling, draws=self._draws, extends_sampling=self._settings.extends_sampling)
        wanted = limit if sampling.max_tokens is None else min(sampling.max_tokens, limit)  # clamped without a word
        self._results[result.request_id] = result
        self._record.submitted += 1
        self._record.live += 1
        self._record.live_salts[str(salt)] += 1
        self._record.seen_salts.add(str(salt))
        self._record.submitting_threads.add(threading.get_ident())
        self._submissions.put(Sequence(result, model, wanted, salt, prompt[0]))
        self._work.set()
        return result

    def abort_request(self, request_id: int) -> None:
        self._record.aborts[request_id] += 1
        self._aborts.put(request_id)
        self._work.set()

    def aget_stats(self, timeout: float | None) -> IterationResult | _Empty:
        if self._iteration_result is None:
            return _Empty()
        self._iteration_result.set_timeout(timeout)
        return self._iteration_result

    def aget_kv_events(self, timeout: float | None) -> IterationResult:
        assert self._events_result is not None, "no request has been submitted yet"
        self._events_result.set_timeout(timeout)
        return self._events_result

    def shutdown(self) -> None:
        self.doing_shutdown = True
        if self._temperament.shutdown_hangs or self._fatal is not None:
            threading.Event().wait()
        self._stop.set()
        self._work.set()
        self._thread.join()

    def _open_statistics(self) -> None:
        if self._iteration_result is None:
            self._iteration_result = IterationResult()
            self._events_result = IterationResult()
            return
        assert self._events_result is not None
        self._iteration_result.mark_undone()
        self._events_result.mark_undone()

    def _handle_error(self, error: str | None) -> None:
        """On the reader's thread: a request's error is raised, any other shuts the engine down there first."""
        if error is not None:
            raise RequestError(error)
        if self._fatal is None:
            threading.Event().wait()
        self.shutdown()
        raise RuntimeError("unreachable")

    # --- the worker's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._work.wait(0.05)
            self._admit()
            if not self._active:
                self._work.clear()
                if self._submissions.empty() and self._aborts.empty():
                    continue
                self._work.set()
                continue
            time.sleep(self._temperament.step_s)
            if not self._one_step():
                return

    def _admit(self) -> None:
        while not self._submissions.empty():
            self._waiting.append(self._submissions.get())
        while self._waiting and len(self._active) < self._settings.max_batch_size:
            self._active.append(self._waiting.popleft())
            self._prefill(self._active[-1])
        self._record.waiting_peak = max(self._record.waiting_peak, len(self._waiting))
        while not self._aborts.empty():
            request_id = self._aborts.get()
            for sequence in (*self._active, *self._waiting):
                if sequence.result.request_id == request_id and sequence.aborted_at is None:
                    sequence.aborted_at = self._step

    def _prefill(self, sequence: Sequence) -> None:
        if not self._settings.reuses_blocks:
            return
        prompt, size = sequence.result.prompt_token_ids, self._settings.tokens_per_block
        blocks = [hash(tuple(prompt[:end])) for end in range(size, len(prompt), size)]
        known = itertools.takewhile(lambda block: (sequence.salt, block) in self._prefixes, blocks)
        sequence.cached_tokens = sum(1 for _ in known) * size
        new = [block for block in blocks if (sequence.salt, block) not in self._prefixes]
        self._prefixes.update((sequence.salt, block) for block in new)
        if new and self._settings.has_events and self._events_result is not None:
            event = {"event_id": next(self._event_ids), "data": {"type": "stored", "blocks": []}}
            self._events_result.aqueue.put(json.dumps([event]))
            notify_many([self._events_result.aqueue])

    def _one_step(self) -> bool:
        self._step += 1
        temperament = self._temperament
        if self._step == temperament.worker_dies_at_step:
            self.mpi_futures[0].set_exception(RuntimeError("worker ended"))
            return False
        if self._step in (temperament.fatal_at_step, temperament.reader_stuck_at_step):
            self._break(is_admitted=self._step == temperament.fatal_at_step)
            return False
        silent_from = temperament.worker_silent_at_step
        if silent_from is not None and self._step >= silent_from:
            return True
        self._publish([(s.result.aqueue, answer) for s in tuple(self._active) for answer in self._advance(s)])
        return True

    def _break(self, *, is_admitted: bool) -> None:
        self._fatal = RuntimeError("CUDA error") if is_admitted else None
        queues = [result.aqueue for result in self._results.values() if result.aqueue is not None]
        for waiting in queues:
            waiting.put(RuntimeError("CUDA error"))
        notify_many(queues)

    def _advance(self, sequence: Sequence) -> list[Response]:
        request_id = sequence.result.request_id
        if sequence.aborted_at is not None:
            return self._answer_abort(sequence)
        if (sequence.mark == FAILS and sequence.model.produced >= 3) or sequence.mark == FAILS_AT_ONCE:
            self._drop(sequence)
            return [Response(request_id, error="the worker could not run this request: secret text")]
        if sequence.has_hidden_stop:
            self._drop(sequence)
            return [Response(request_id, finish="STOP_WORDS", cached_tokens=sequence.cached_tokens)]
        return [self._generate(sequence)]

    def _answer_abort(self, sequence: Sequence) -> list[Response]:
        assert sequence.aborted_at is not None
        if not self._temperament.acknowledges_aborts or sequence.mark == NEVER_ACKNOWLEDGES:
            self._drop(sequence)
            return []
        if sequence.mark == ACKNOWLEDGES_LATE and self._step < sequence.aborted_at + _LATE_STEPS:
            return []
        self._drop(sequence)
        return [Response(sequence.result.request_id, finish="CANCELLED", cached_tokens=sequence.cached_tokens)]

    def _generate(self, sequence: Sequence) -> Response:
        sampling = sequence.result.sampling_params
        sizes = self._temperament.tokens_per_step
        tokens: list[int] = []
        logprobs: list[Any] = []
        finish = None
        for _ in range(sizes[(self._step + sequence.result.request_id) % len(sizes)]):
            token, entry = sequence.model.next()
            tokens.append(token)
            if entry is not None:
                logprobs.append(entry)
            finish = self._finish_of(sequence, sampling, token)
            if finish is not None:
                break
        if finish == "STOP_WORDS" and sequence.result.request_id % 2:
            sequence.has_hidden_stop, finish = True, None  # shown now, cut off with the next response
        if finish is not None:
            self._drop(sequence)
        return Response(
            sequence.result.request_id,
            index=self._step % sampling.n,  # of several outputs, one has news at a time
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish=finish,
            cached_tokens=sequence.cached_tokens,
        )

    def _finish_of(self, sequence: Sequence, sampling: SamplingParams, token: int) -> str | None:
        if not sampling.ignore_eos and token == sampling.end_id:
            return "END_ID"
        if sequence.model.produced >= sequence.max_tokens:
            return "LENGTH"
        return "STOP_WORDS" if token in (sampling.stop_token_ids or ()) else None

    def _drop(self, sequence: Sequence) -> None:
        self._active.remove(sequence)
        self._results.pop(sequence.result.request_id)
        self._record.live -= 1
        self._record.finished += 1
        self._record.live_salts[str(sequence.salt)] -= 1
        if not self._record.live_salts[str(sequence.salt)]:
            del self._record.live_salts[str(sequence.salt)]

    def _publish(self, responses: list[tuple[AsyncQueue | None, Response]]) -> None:
        queues: list[AsyncQueue] = []
        for waiting, response in responses:
            if waiting is not None:
                waiting.put(response)
                queues.append(waiting)
        if self._settings.has_statistics and self._iteration_result is not None:
            for item in (self._statistics(), *self._temperament.statistics):
                self._iteration_result.aqueue.put(json.dumps(item))
            queues.append(self._iteration_result.aqueue)
        notify_many(queues)

    def _statistics(self) -> dict[str, Any]:
        used = sum(self._blocks(sequence) for sequence in self._active)
        total = self._temperament.kv_blocks
        return {
            "iter": self._step,
            "iterLatencyMS": self._temperament.step_s * 1000,
            "numActiveRequests": len(self._active),
            "numQueuedRequests": len(self._waiting),
            "kvCacheStats": {
                "maxNumBlocks": total,
                "usedNumBlocks": used,
                "freeNumBlocks": total - used,
                "tokensPerBlock": self._settings.tokens_per_block,
            },
            "inflightBatchingStats": {"numScheduledRequests": len(self._active)},
        }

    def _blocks(self, sequence: Sequence) -> int:
        tokens = len(sequence.result.prompt_token_ids) + sequence.model.produced
        return -(-tokens // self._settings.tokens_per_block)


class _Empty:
    """What statistics are before the first request."""

    def __aiter__(self) -> _Empty:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration
