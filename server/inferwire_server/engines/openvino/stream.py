"""One request in the engine: turns what the worker says of it into events, and ends exactly once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from inferwire_server.domain.engine import Cancelled, EngineEvent, EngineRequest, EngineSink, Failed, Finished, Tokens
from inferwire_server.domain.errors import InvalidRequest, Overloaded, ResumeLost
from inferwire_server.domain.generation import FinishReason, TokenLogprob, TokenLogprobs
from inferwire_server.engines.openvino.frames import Outcome
from inferwire_server.engines.openvino.resumption import Replay

_log = logging.getLogger(__name__)


class OpenVinoStream:
    """An EngineStream. It may be over while the worker still holds its blocks."""

    __slots__ = ("_condemned", "_end_ids", "_leave", "_replay", "_sink", "is_over", "sequence")

    def __init__(
        self,
        sequence: int,
        request: EngineRequest,
        sink: EngineSink,
        *,
        end_ids: frozenset[int],
        replay: Replay | None,
        leave: Callable[[int], None],
        condemned: Callable[[], InvalidRequest],
    ) -> None:
        """`condemned` is asked for the error when the grammar turns out too costly to follow."""
        self.sequence = sequence
        """Its name between engine and worker."""
        self.is_over = False
        """Whether its last event has been sent or is on its way."""
        self._sink = sink
        self._end_ids = frozenset[int]() if request.ignore_end_of_sequence else end_ids
        self._replay = replay
        self._leave = leave
        self._condemned = condemned

    def cancel(self) -> None:
        """End with Cancelled on the loop's next turn; the worker is told and gives the blocks back when it can."""
        if self.is_over:
            return
        self.is_over = True
        self._leave(self.sequence)
        asyncio.get_running_loop().call_soon(self._tell, Cancelled())

    def deliver(self, token_ids: list[int], logprobs: list[float] | None) -> None:
        """New tokens from the worker."""
        if self.is_over:
            return
        if self._replay is not None and not self._replay.is_complete:
            held = self._replay.swallow(token_ids)
            if held is None:
                self._leave(self.sequence)
                self.end_with(Failed(_resume_lost()))
                return
            token_ids = token_ids[held:]
            logprobs = None if logprobs is None else logprobs[held:]
        if token_ids:
            self._tell(Tokens(token_ids, () if logprobs is None else _logprobs(token_ids, logprobs)))

    def worker_ended(self, outcome: int, ending_id: int | None) -> None:
        """The worker let the sequence go."""
        if outcome == Outcome.TOO_COSTLY:
            self.end_with(Failed(self._condemned()))
        elif self._replay is not None and not self._replay.is_complete:
            self.end_with(Failed(_resume_lost()))
        elif outcome == Outcome.LENGTH:
            self.end_with(Finished(reason=FinishReason.LENGTH))
        elif outcome == Outcome.STOPPED and ending_id in self._end_ids:
            self.end_with(Finished(reason=FinishReason.STOP, end_token_id=ending_id))
        elif outcome == Outcome.STOPPED:
            self.end_with(Finished(reason=FinishReason.STOP, stop_token_id=ending_id))
        elif outcome == Outcome.OUT_OF_BLOCKS:
            self.end_with(Failed(Overloaded("the engine's cache is full; ask for fewer tokens", started=True)))
        else:
            self.end_with(Failed(RuntimeError(f"the worker ended sequence {self.sequence} with outcome {outcome}")))

    def end_with(self, event: EngineEvent) -> None:
        """Send the last event, unless there has been one."""
        if not self.is_over:
            self.is_over = True
            self._tell(event)

    def _tell(self, event: EngineEvent) -> None:
        try:
            self._sink(event)
        except Exception:  # noqa: BLE001 - one reader's fault must not become every stream's
            _log.exception("a sink failed")


def _logprobs(token_ids: Sequence[int], logprobs: Sequence[float]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(TokenLogprob(token_id, min(logprob, 0.0) + 0.0 if math.isfinite(logprob) else None))
        for token_id, logprob in zip(token_ids, logprobs, strict=True)
    ]


def _resume_lost() -> ResumeLost:
    message = "the engine could not produce the tokens again that were delivered before; start the request over"
    return ResumeLost(message, started=True)
