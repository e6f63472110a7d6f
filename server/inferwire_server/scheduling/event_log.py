"""The event log of one generation: one writer, many readers, each with a cursor of its own.

The log keeps each output once, as token ids and pieces of text. A reader that falls behind is given what came since
its cursor as one Delta for each output, so a slow reader costs fewer and larger messages, never more memory.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Sequence

from inferwire_server.domain.errors import ResumeLost, ServiceError
from inferwire_server.domain.generation import (
    Completed,
    Delta,
    Event,
    OutputFinished,
    PromptLogprobs,
    Started,
    TokenLogprobs,
)

MAX_DELTA_TOKENS = 1024
"""A Delta gets no more pieces from here on, which bounds what is on its way to one reader."""


class _OutputLog:
    """What one output has released so far; piece `i` is `texts[i]` and covers tokens up to `ends[i]`."""

    __slots__ = ("ends", "finished", "first_token", "logprobs", "texts", "token_ids")

    def __init__(self, first_token: int) -> None:
        self.first_token = first_token
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.ends: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finished: OutputFinished | None = None


class EventLog:
    """Written by the session, on the serving loop only.

    `first_tokens` gives for each output how many tokens a resumed stream holds already.
    """

    def __init__(self, first_tokens: Sequence[int] = (0,)) -> None:
        self._started: Started | None = None
        self._prompt_logprobs: PromptLogprobs | None = None
        self._outputs = [_OutputLog(first) for first in first_tokens]
        self._outcome: Completed | ServiceError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._end_waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        tokens = "+".join(str(len(output.token_ids)) for output in self._outputs)
        state = "open" if self._outcome is None else type(self._outcome).__name__
        return f"<EventLog {tokens} tokens, {state}>"

    @property
    def started(self) -> Started | None:
        return self._started

    @property
    def outcome(self) -> Completed | ServiceError | None:
        """How it ended; None while it is open."""
        return self._outcome

    def output_tokens(self, output_index: int) -> int:
        """Tokens released of an output, resumed ones included."""
        output = self._outputs[output_index]
        return output.first_token + len(output.token_ids)

    def texts(self) -> list[str]:
        """What each output has released, without what a resumed stream held already."""
        return ["".join(output.texts) for output in self._outputs]

    def start(self, started: Started) -> None:
        """Write the first event."""
        self._started = started
        self._wake()

    def prompt(self, logprobs: PromptLogprobs) -> None:
        """Write the prompt's logprobs."""
        self._prompt_logprobs = logprobs
        self._wake()

    def append(
        self, output_index: int, token_ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        """Write released tokens with exactly their text. No tokens with some text is the tail of the last one."""
        output = self._outputs[output_index]
        output.token_ids += token_ids
        output.texts.append(text)
        output.ends.append(len(output.token_ids))
        output.logprobs += logprobs
        self._wake()

    def finish(self, finished: OutputFinished) -> None:
        """Write the end of one output."""
        self._outputs[finished.output_index].finished = finished
        self._wake()

    def close(self, outcome: Completed | ServiceError) -> None:
        """Write the last event, or the error in its place. Later calls change nothing."""
        if self._outcome is None:
            self._outcome = outcome
            self._wake()
            _wake(self._end_waiters)

    def reader(self) -> LogReader:
        """A reader at the beginning."""
        return LogReader(self)

    def reader_after(self, held: Sequence[Sequence[int]], finished: Sequence[bool]) -> LogReader | None:
        """A reader behind what somebody holds of each output, counted from the generation's first token.

        None when the log cannot be cut there. Raises ResumeLost when it holds other tokens.
        """
        reader = LogReader(self)
        for index, (output, token_ids) in enumerate(zip(self._outputs, held, strict=True)):
            count = len(token_ids) - output.first_token
            if count < 0 or count > len(output.token_ids):
                return None
            if list(token_ids[output.first_token :]) != output.token_ids[:count]:
                raise ResumeLost("the tokens held differ from those generated here", field=f"resume.outputs[{index}]")
            piece = bisect_left(output.ends, count) if count else -1
            if count and (piece == len(output.ends) or output.ends[piece] != count):
                return None
            reader._pieces[index] = piece + 1
            reader._finished[index] = finished[index] and output.finished is not None
        return reader

    @property
    def size_bytes(self) -> int:
        """About what the log keeps in memory."""
        return 512 + sum(
            40 * len(output.token_ids)
            + sum(map(len, output.texts))
            + 90 * len(output.texts)
            + sum(150 * (1 + len(each.top)) for each in output.logprobs)
            for output in self._outputs
        )

    def _wake(self) -> None:
        if self._waiters:
            _wake(self._waiters)


class LogReader:
    """A cursor in an event log."""

    __slots__ = ("_finished", "_log", "_only", "_outcome_seen", "_pieces", "_prompt_seen", "_started_seen")

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._only = log._outputs[0] if len(log._outputs) == 1 else None
        self._started_seen = False
        self._prompt_seen = False
        self._outcome_seen = False
        self._pieces = [0] * len(log._outputs)
        self._finished = [False] * len(log._outputs)

    @property
    def is_exhausted(self) -> bool:
        """Whether the last event has been taken."""
        return self._outcome_seen

    @property
    def has_outcome(self) -> bool:
        """Whether nothing more will be written."""
        return self._log._outcome is not None

    def has_news(self) -> bool:
        """Whether `take` would return anything, or raise."""
        log = self._log
        if log._outcome is not None:
            return not self._outcome_seen
        if log._started is not None and not self._started_seen:
            return True
        if log._prompt_logprobs is not None and not self._prompt_seen:
            return True
        for index, output in enumerate(log._outputs):
            if len(output.ends) > self._pieces[index] or (output.finished is not None and not self._finished[index]):
                return True
        return False

    def take(self) -> list[Event]:
        """What came since the last call, at most one Delta of about MAX_DELTA_TOKENS for each output.

        Raises the error that ended the generation once everything before it has been taken.
        """
        log = self._log
        output = self._only
        has_begun = self._started_seen and (self._prompt_seen or log._prompt_logprobs is None)
        if has_begun and output is not None and output.finished is None and log._outcome is None:
            piece = self._pieces[0]
            if len(output.ends) == piece:
                return []
            delta, self._pieces[0] = _delta(0, output, piece)
            return [delta]
        events: list[Event] = []
        if not self._started_seen and log._started is not None:
            self._started_seen = True
            events.append(log._started)
        if not self._prompt_seen and log._prompt_logprobs is not None:
            self._prompt_seen = True
            events.append(log._prompt_logprobs)
        has_all = True
        for index, output in enumerate(log._outputs):
            piece = self._pieces[index]
            if len(output.ends) > piece:
                delta, self._pieces[index] = _delta(index, output, piece)
                events.append(delta)
            if self._pieces[index] < len(output.ends):
                has_all = False
            elif output.finished is not None and not self._finished[index]:
                self._finished[index] = True
                events.append(output.finished)
        outcome = log._outcome
        if outcome is not None and has_all and not self._outcome_seen:
            if isinstance(outcome, Completed):
                self._outcome_seen = True
                events.append(outcome)
            elif not events:
                self._outcome_seen = True
                raise outcome
        return events

    def news(self) -> Awaitable[None]:
        """Comes with the next write; for a reader that has taken everything."""
        return _woken(self._log._waiters)

    def end(self) -> Awaitable[None]:
        """Comes with the last write; for a log that is open."""
        return _woken(self._log._end_waiters)


async def _woken(waiters: list[asyncio.Future[None]]) -> None:
    waiter = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await waiter
    except asyncio.CancelledError:
        if waiter in waiters:
            waiters.remove(waiter)
        raise


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


def _delta(index: int, output: _OutputLog, piece: int) -> tuple[Delta, int]:
    """The pieces from `piece` on as one Delta, and the first piece that did not fit."""
    texts, ends = output.texts, output.ends
    begin = ends[piece - 1] if piece else 0
    stop = len(ends)
    if ends[-1] - begin > MAX_DELTA_TOKENS:
        stop = max(piece + 1, bisect_right(ends, begin + MAX_DELTA_TOKENS, piece))
    end = ends[stop - 1]
    delta = Delta(
        index,
        output.first_token + begin,
        output.token_ids[begin:end],
        texts[piece] if stop == piece + 1 else "".join(texts[piece:stop]),
        output.logprobs[begin:end] if output.logprobs else (),
    )
    return delta, stop
