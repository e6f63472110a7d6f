"""What the serving process and the worker say to each other.

A frame is a four-byte big-endian length and a tuple in `marshal` form: the two ends are the same interpreter and the
same release, a frame holds numbers, strings and lists only, and this is the cheapest form that needs no copy of
every token into objects. Nothing from outside the machine is ever decoded here.
"""

from __future__ import annotations

import enum
import marshal
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 64 * 2**20


class FrameError(Exception):
    """The byte stream is not made of frames."""


class Outcome(enum.IntEnum):
    """Why a sequence left the batch."""

    STOPPED = 1
    """An end or stop id; it comes with the outcome and not with the tokens."""
    LENGTH = 2
    CANCELLED = 3
    OUT_OF_BLOCKS = 4
    """The cache could not hold it; reservation exists to make this impossible."""
    REFUSED = 5
    """The pipeline did not accept its settings."""
    TOO_COSTLY = 6
    """Following its grammar held up the whole batch."""


class Load(NamedTuple):
    """To the worker, once and first: what to load."""

    model_path: str
    properties: dict[str, str | int]
    kv_blocks: int
    """0 leaves it to `kv_gib`."""
    kv_gib: int
    block_tokens: int
    max_running: int
    max_batched_tokens: int
    prefix_caching: bool
    is_exact: bool
    """Whether the last bits matter too."""
    has_grammars: bool
    vocabulary_size: int
    max_context_tokens: int


class Add(NamedTuple):
    """To the worker: a sequence joins the batch."""

    sequence: int
    prompt: bytes
    """Token ids as native int64."""
    settings: dict[str, Any]
    """Keyword arguments of GenerationConfig."""
    grammar: tuple[str, str] | None
    """Keyword and source for StructuredOutputConfig."""
    watched_ids: frozenset[int]
    """Ids that end the output and that the pipeline is not told of."""


class ProbeLoad(NamedTuple):
    """To the grammar probe, once and first: the model whose tokeniser counts, and where the probe's own model lies."""

    model_path: str
    probe_path: str
    """Written when it is not there."""


class Probe(NamedTuple):
    """To the grammar probe: compile this."""

    keyword: str
    source: str


class ProbeReady(NamedTuple):
    """From the grammar probe: the next grammar may come."""


class Verdict(NamedTuple):
    """From the grammar probe. Times are processor time, all threads together."""

    is_compiled: bool
    compile_s: float
    follow_s: float
    """Of a walk along the grammar, given up when it has taken too long."""


class Cancel(NamedTuple):
    """To the worker: a sequence leaves the batch; unknown ones are ignored."""

    sequence: int


class Quit(NamedTuple):
    """To the worker: exit now."""


class Ready(NamedTuple):
    """From the worker, once: loaded and tried."""

    kv_blocks: int
    """Those of the cache, less what the companion may hold."""
    kv_bytes: int
    step_times: list[float]
    """Seconds of the trial's steps, a full prompt chunk among them."""


class Step(NamedTuple):
    """From the worker: all that one step of the batch brought."""

    seconds: float
    kv_usage: float
    """0 to 1."""
    tokens: list[tuple[int, list[int], list[float] | None]]
    """Sequence, new ids, their logprobs when asked for."""
    ends: list[tuple[int, int, int | None]]
    """Sequence, outcome, and the id that ended it when STOPPED. Its blocks are free."""


class Heartbeat(NamedTuple):
    """From an idle worker."""


class Fault(NamedTuple):
    """From a worker that is about to exit."""

    stage: str
    text: str


Frame = Load | Add | Cancel | Quit | Ready | Step | Heartbeat | Fault | ProbeLoad | Probe | ProbeReady | Verdict
_KINDS: tuple[Any, ...] = (
    *(Load, Add, Cancel, Quit, Ready, Step, Heartbeat, Fault),
    *(ProbeLoad, Probe, ProbeReady, Verdict),
)
_TAGS = {kind: tag for tag, kind in enumerate(_KINDS)}


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    body = marshal.dumps((_TAGS[type(frame)], *frame))
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into frames, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes and yield the frames they complete. Raises FrameError on anything else."""
        self._pending += data
        start = 0
        try:
            while len(self._pending) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._pending, start)
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length} bytes")
                end = start + _LENGTH.size + length
                if len(self._pending) < end:
                    break
                body = bytes(self._pending[start + _LENGTH.size : end])
                start = end
                yield _decode(body)
        finally:
            del self._pending[:start]


def _decode(body: bytes) -> Frame:
    try:
        tag, *fields = marshal.loads(body)  # noqa: S302 - both ends are ours, see above
        frame: Frame = _KINDS[tag](*fields)
    except (ValueError, TypeError, EOFError, IndexError) as error:
        raise FrameError("an unreadable frame") from error
    return frame
