"""The audit trail: a record of every call, written by a thread of its own, so that no caller waits for a disk.

A record that cannot be written is counted and the log says so; nothing is lost in silence. What was said is in no
record, unless the tenant's policy says so, and then only after its redactions.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import structlog

from inferwire_server.domain.request import Conversation, Prompt
from inferwire_server.security.audit_files import AuditFiles
from inferwire_server.security.tenants import ContentPolicy

_log = structlog.get_logger("inferwire.audit")
_MOST_WAITING = 10_000
_MOST_WAITING_CHARACTERS = 64 * 1024 * 1024
_BATCH = 500
_PAUSE_S = 0.1
"""Between two batches: to be woken for each record would cost more than all else of it."""
_LONGEST_SILENCE_S = 3600.0
"""After which the writer looks whether a new day has begun."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """What was said in a call."""

    policy: ContentPolicy
    prompt: Prompt | None
    outputs: tuple[str, ...]

    @property
    def characters(self) -> int:
        """About."""
        return sum(map(len, self.outputs)) + (len(self.prompt) if isinstance(self.prompt, (str, tuple)) else 4096)


_Entry = tuple[float, Fields, Content | None]


class AuditObserver(Protocol):
    """Counts records. Each is called by one thread only."""

    def written(self, count: int) -> None: ...

    def overflowed(self) -> None:
        """One was dropped because too many wait."""

    def failed(self, count: int) -> None:
        """They could not be written."""


class AuditTrail:
    """`put` from the serving loop; `close` when nothing more comes."""

    def __init__(
        self,
        files: AuditFiles,
        observer: AuditObserver,
        *,
        most_waiting: int = _MOST_WAITING,
        most_waiting_characters: int = _MOST_WAITING_CHARACTERS,
    ) -> None:
        self._files = files
        self._observer = observer
        self._most_waiting = most_waiting
        self._most_waiting_characters = most_waiting_characters
        self._waiting: SimpleQueue[_Entry | None] = SimpleQueue()
        self._characters_put = 0
        self._characters_taken = 0
        self._overflows = 0
        self._overflows_told = 0
        self._is_failing = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def put(self, fields: Fields, content: Content | None = None) -> None:
        """Have a record written, or count it as dropped. Never blocks."""
        characters = 0 if content is None else content.characters
        waiting_characters = self._characters_put - self._characters_taken
        if (
            self._waiting.qsize() >= self._most_waiting
            or waiting_characters + characters > self._most_waiting_characters
        ):
            self._overflows += 1
            self._observer.overflowed()
            return
        self._characters_put += characters
        self._waiting.put((time.time(), fields, content))

    def close(self, within_s: float = 5.0) -> None:
        """Write what waits, in that time. Blocks."""
        self._waiting.put(None)
        self._is_closing.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            _log.error("audit records lost", reason="the end came before the disk took them")

    def _run(self) -> None:
        is_open = True
        while is_open:
            self._files.turn(time.time())
            batch = self._next_batch()
            if batch and batch[-1] is None:
                is_open = False
            self._write([entry for entry in batch if entry is not None])
            self._is_closing.wait(_PAUSE_S)
        self._files.close()

    def _next_batch(self) -> list[_Entry | None]:
        """Whatever waits, once anything does; None is the last entry. Empty after a long silence."""
        batch: list[_Entry | None] = []
        with suppress(Empty):
            batch.append(self._waiting.get(timeout=_LONGEST_SILENCE_S))
            while batch[-1] is not None and len(batch) < _BATCH:
                batch.append(self._waiting.get_nowait())
        return batch

    def _write(self, batch: list[_Entry]) -> None:
        if not batch:
            return
        self._characters_taken += sum(0 if content is None else content.characters for _, _, content in batch)
        try:
            self._files.write(b"".join([_line(*entry) for entry in batch]), time.time())
        except Exception as fault:  # noqa: BLE001 the next batch must be written all the same
            self._observer.failed(len(batch))
            if not self._is_failing:
                self._is_failing = True
                reason = fault.strerror if isinstance(fault, OSError) else type(fault).__name__
                _log.error("audit records lost", reason=reason)
            return
        self._observer.written(len(batch))
        if self._is_failing:
            self._is_failing = False
            _log.warning("audit records are written again")
        if self._overflows != self._overflows_told:
            overflows = self._overflows
            _log.error("audit records lost", reason="too many waited", count=overflows - self._overflows_told)
            self._overflows_told = overflows


def _line(wall: float, fields: Fields, content: Content | None) -> bytes:
    record = {"time": datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds"), **fields}
    if content is not None:
        record |= _content_fields(content)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _content_fields(content: Content) -> Fields:
    policy, fields = content.policy, Fields()
    try:
        if policy.keeps_prompt and content.prompt is not None:
            fields["prompt"] = _redacted_prompt(policy, content.prompt)
        if policy.keeps_output:
            fields["outputs"] = [_redacted(policy, text) for text in content.outputs]
    except (Exception, SystemExit):  # noqa: BLE001 whatever a redaction trips over, what it was to hide is not written
        return {"content_omitted": "a redaction failed"}
    return fields


def _redacted_prompt(policy: ContentPolicy, prompt: Prompt) -> object:
    if isinstance(prompt, str):
        return _redacted(policy, prompt)
    if isinstance(prompt, Conversation):
        return [{"role": message.role, "text": _redacted(policy, message.text)} for message in prompt.messages]
    if policy.redactions:
        raise ValueError("token ids cannot be redacted")
    return list(prompt)


def _redacted(policy: ContentPolicy, text: str) -> str:
    for redact in policy.redactions:
        text = redact(text)
    if not isinstance(text, str):
        raise TypeError("a redaction gives back a text")
    return text
