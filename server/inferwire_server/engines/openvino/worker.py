"""The child process that owns the pipeline: one thread, one loop, one frame per step. Only it imports openvino.

Started as `python -m inferwire_server.engines.openvino.worker FD PARENT`: the inherited end of a socket pair, and the
process to die with.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

import numpy as np
import openvino  # type: ignore[import-untyped]
import openvino_genai  # type: ignore[import-untyped]
from openvino_genai import GenerationStatus

from inferwire_server.engines.openvino.batch import COMPANION_BLOCKS, Batch
from inferwire_server.engines.openvino.frames import (
    Add,
    Cancel,
    Fault,
    Frame,
    FrameReader,
    Heartbeat,
    Load,
    Quit,
    Ready,
    encode,
)
from inferwire_server.engines.openvino.vigilance import HEARTBEAT_S

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 20
_TRIAL_OUTPUT_TOKENS = 4


class Channel:
    """The worker's end of the socket pair. The other end's closing ends the process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[Frame]:
        """Frames that are there or come within the time; None waits for the first."""
        found: list[Frame] = []
        while not found and self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            data = self._end.recv(_READ_BYTES)
            if not data:
                _exit(0)
            found.extend(self._reader.feed(data))
        return found

    def send(self, frame: Frame) -> None:
        """Hand a frame over; waits while the parent does not read."""
        try:
            self._end.sendall(encode(frame))
        except (BrokenPipeError, ConnectionResetError):
            _exit(0)


def _load(load: Load) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    if load.kv_blocks:
        scheduler.num_kv_blocks = load.kv_blocks
    else:
        scheduler.cache_size = load.kv_gib
    scheduler.max_num_seqs = load.max_running + load.has_companion
    scheduler.max_num_batched_tokens = load.max_batched_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = load.prefix_caching
    return openvino_genai.ContinuousBatchingPipeline(load.model_path, scheduler, "CPU", load.properties)


def _try_out(pipeline: openvino_genai.ContinuousBatchingPipeline, load: Load) -> Ready:
    """Run one full prompt chunk and a few tokens: how long steps take, and how many blocks the cache has."""
    length = min(load.max_batched_tokens, load.max_context_tokens - _TRIAL_OUTPUT_TOKENS)
    if load.kv_blocks:
        length = min(length, (load.kv_blocks - 2) * load.block_tokens)
    prompt = np.arange(length, dtype=np.int64).reshape(1, -1) % load.vocabulary_size
    config = openvino_genai.GenerationConfig(max_new_tokens=_TRIAL_OUTPUT_TOKENS, ignore_eos=True, do_sample=False)
    handle = pipeline.add_request(0, openvino.Tensor(prompt), config)
    step_times: list[float] = []
    usage_percent = 0.0
    while handle.get_status() == GenerationStatus.RUNNING:
        started = time.perf_counter()
        pipeline.step()
        step_times.append(time.perf_counter() - started)
        usage_percent = usage_percent or pipeline.get_metrics().cache_usage
    blocks_in_use = -(-length // load.block_tokens)
    kv_blocks = load.kv_blocks or round(blocks_in_use * 100 / usage_percent)
    usable = kv_blocks - COMPANION_BLOCKS if load.has_companion else kv_blocks
    return Ready(usable, pipeline.get_metrics().cache_size_in_bytes, step_times)


def _set_up(channel: Channel) -> Batch:
    (load,) = channel.receive(None)
    if not isinstance(load, Load):
        raise TypeError(f"expected Load first, not {type(load).__name__}")
    pipeline = _load(load)
    channel.send(_try_out(pipeline, load))
    return Batch(pipeline, load)


def _serve(channel: Channel) -> NoReturn:
    stage = "load"
    try:
        batch = _set_up(channel)
        stage = "step"
        while True:
            for frame in channel.receive(HEARTBEAT_S if batch.is_idle else 0):
                _obey(frame, batch)
            channel.send(Heartbeat() if batch.is_idle else batch.step())
    except Exception as error:  # noqa: BLE001 - after any failure of the pipeline every later step would fail too
        channel.send(Fault(stage, f"{type(error).__name__}: {error}"))
        _exit(1)


def _obey(frame: Frame, batch: Batch) -> None:
    if isinstance(frame, Add):
        batch.add(frame)
    elif isinstance(frame, Cancel):
        batch.cancel(frame.sequence)
    elif isinstance(frame, Quit):
        _exit(0)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _exit(0)


def _exit(status: int) -> NoReturn:
    # Nothing here outlives the process, and tearing a pipeline down in mid-request may hang.
    sys.stderr.flush()
    os._exit(status)


def main() -> NoReturn:
    """Serve until told to quit, or until the parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptor, parent = map(int, sys.argv[1:])
    _die_with(parent)
    _serve(Channel(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
