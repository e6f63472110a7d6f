"""The child process that owns the pipeline: one thread, one loop, one frame per step. Only it imports openvino.

Started as `python -m inferwire_server.engines.openvino.worker FD PARENT`: the inherited end of a socket pair, and the
process to die with.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import openvino  # type: ignore[import-untyped]
import openvino_genai  # type: ignore[import-untyped]
from openvino_genai import GenerationStatus

from inferwire_server.engines.openvino.batch import COMPANION_BLOCKS, Batch
from inferwire_server.engines.openvino.channel import Channel, leave, open_channel
from inferwire_server.engines.openvino.decode_watch import DecodeWatch
from inferwire_server.engines.openvino.frames import Add, Cancel, Fault, Frame, Heartbeat, Load, Quit, Ready
from inferwire_server.engines.openvino.vigilance import HEARTBEAT_S
from inferwire_server.engines.openvino.weights_file import openable

_TRIAL_OUTPUT_TOKENS = 4


def _load(load: Load) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    if load.kv_blocks:
        scheduler.num_kv_blocks = load.kv_blocks
    else:
        scheduler.cache_size = load.kv_gib
    scheduler.max_num_seqs = load.max_running + load.is_exact
    scheduler.max_num_batched_tokens = load.max_batched_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = load.prefix_caching
    with openable(Path(load.model_path)) as path:
        return openvino_genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", load.properties)


def _try_out(pipeline: openvino_genai.ContinuousBatchingPipeline, load: Load) -> tuple[Ready, DecodeWatch]:
    """Run one full prompt chunk and a few tokens: how long steps take, and how many blocks the cache has."""
    length = min(load.max_batched_tokens, load.max_context_tokens - _TRIAL_OUTPUT_TOKENS)
    if load.kv_blocks:
        length = min(length, (load.kv_blocks - 2) * load.block_tokens)
    prompt = np.arange(length, dtype=np.int64).reshape(1, -1) % load.vocabulary_size
    config = openvino_genai.GenerationConfig(max_new_tokens=_TRIAL_OUTPUT_TOKENS, ignore_eos=True, do_sample=False)
    handle = pipeline.add_request(0, openvino.Tensor(prompt), config)
    step_times: list[float] = []
    used_s: list[float] = []
    usage_percent = 0.0
    while handle.get_status() == GenerationStatus.RUNNING:
        started, used_before_s = time.perf_counter(), time.process_time()
        pipeline.step()
        step_times.append(time.perf_counter() - started)
        used_s.append(time.process_time() - used_before_s)
        usage_percent = usage_percent or pipeline.get_metrics().cache_usage
    blocks_in_use = -(-length // load.block_tokens)
    kv_blocks = load.kv_blocks or round(blocks_in_use * 100 / usage_percent)
    usable = kv_blocks - COMPANION_BLOCKS if load.is_exact else kv_blocks
    ready = Ready(usable, pipeline.get_metrics().cache_size_in_bytes, step_times)
    return ready, DecodeWatch(used_s[-1], used_s[0])


def _warm_grammars(pipeline: openvino_genai.ContinuousBatchingPipeline) -> None:
    """Compile a grammar, so that the compiler's own start is not paid inside a step with other streams."""
    config = openvino_genai.GenerationConfig(max_new_tokens=1, do_sample=False)
    config.structured_output_config = openvino_genai.StructuredOutputConfig(regex="a")
    handle = pipeline.add_request(0, openvino.Tensor(np.zeros((1, 1), np.int64)), config)
    while handle.get_status() == GenerationStatus.RUNNING:
        pipeline.step()


def _set_up(channel: Channel) -> Batch:
    (load,) = channel.receive(None)
    if not isinstance(load, Load):
        raise TypeError(f"expected Load first, not {type(load).__name__}")
    pipeline = _load(load)
    if load.has_grammars:
        _warm_grammars(pipeline)
    ready, decode_watch = _try_out(pipeline, load)
    channel.send(ready)
    return Batch(pipeline, load, decode_watch)


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
        leave(1)


def _obey(frame: Frame, batch: Batch) -> None:
    if isinstance(frame, Add):
        batch.add(frame)
    elif isinstance(frame, Cancel):
        batch.cancel(frame.sequence)
    elif isinstance(frame, Quit):
        leave(0)


if __name__ == "__main__":
    _serve(open_channel())
