"""The child process that compiles grammars for the probe, on a model of one layer with the real tokeniser."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import gguf
import numpy as np
import numpy.typing as npt
import openvino  # type: ignore[import-untyped]
import openvino_genai  # type: ignore[import-untyped]
from openvino_genai import GenerationStatus

from inferwire_server.engines.openvino.channel import Channel, leave, open_channel
from inferwire_server.engines.openvino.frames import Fault, Probe, ProbeLoad, ProbeReady, Quit, Verdict

_HIDDEN = 64
_WALK_TOKENS = 48
_ENOUGH_S = 0.35
"""A walk that has used so much processor time goes no further; a usual grammar takes 0.07 s."""
_PROPERTIES = {
    "INFERENCE_NUM_THREADS": 1,
    # With one thread, OpenVINO 2026.4 dies of a division by zero on F16 weights in its default bf16.
    "INFERENCE_PRECISION_HINT": "f32",
}


def write_probe_model(model: Path, probe: Path) -> None:
    """Write a model of one layer with the tokeniser of another GGUF file; it always likes the shortest token best."""
    fields = gguf.GGUFReader(model).fields
    embedding = _short_tokens_first(fields)
    vocabulary_size = len(embedding)
    unfinished = probe.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(_HIDDEN)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for key, field in fields.items():
        if key.startswith("tokenizer.ggml."):
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    writer.add_tensor("token_embd.weight", embedding)
    for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{norm}.weight", np.ones(_HIDDEN, np.float32))
    for matrix in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{matrix}.weight", np.zeros((_HIDDEN, _HIDDEN), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(probe)


def _short_tokens_first(fields: Mapping[str, gguf.ReaderField]) -> npt.NDArray[np.float16]:
    # Every row points the same way, so the state of the model does too, and a logit is its row's length. Short tokens
    # make the longest way through a grammar; control tokens, among them those that would end it, come last.
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    embedding = np.zeros((len(tokens), _HIDDEN), np.float16)
    embedding[:, 0] = [
        0.25 if kind == gguf.TokenType.CONTROL else 1 + 1 / max(1, len(token))
        for token, kind in zip(tokens, types, strict=True)
    ]
    return embedding


class Compiler:
    """A pipeline that is replaced when a grammar has broken it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(path), _scheduler(), "CPU", _PROPERTIES)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._probes = 0
        self._is_broken = False

    def judge(self, probe: Probe) -> Verdict:
        """Compile a grammar and walk along it: what is quickly compiled may still be ever slower to follow."""
        self._probes += 1
        begun = time.process_time()
        compile_s = used_s = 0.0
        try:
            config = openvino_genai.GenerationConfig(max_new_tokens=_WALK_TOKENS, do_sample=False)
            config.structured_output_config = openvino_genai.StructuredOutputConfig(**{probe.keyword: probe.source})
            prompt = openvino.Tensor(np.zeros((1, 1), np.int64))
            handle = self._pipeline.add_request(self._probes, prompt, config)
            while handle.get_status() == GenerationStatus.RUNNING and used_s - compile_s <= _ENOUGH_S:
                self._pipeline.step()
                used_s = time.process_time() - begun
                compile_s = compile_s or used_s
        except RuntimeError:
            self._is_broken = True
            return Verdict(is_compiled=False, compile_s=time.process_time() - begun, follow_s=0.0)
        self._is_broken = handle.get_status() == GenerationStatus.RUNNING
        return Verdict(is_compiled=True, compile_s=compile_s, follow_s=used_s - compile_s)

    def recover(self) -> None:
        """Be ready for the next grammar."""
        if self._is_broken:
            # Twenty times as fast with the tokeniser that is there.
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(self._path), self._tokenizer, _scheduler(), "CPU", **_PROPERTIES
            )
            self._is_broken = False


def _scheduler() -> openvino_genai.SchedulerConfig:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 8
    scheduler.max_num_batched_tokens = 32
    scheduler.enable_prefix_caching = False
    return scheduler


def _serve(channel: Channel) -> NoReturn:
    try:
        compiler = _set_up(channel)
        while True:
            for frame in channel.receive(None):
                if isinstance(frame, Quit):
                    leave(0)
                if isinstance(frame, Probe):
                    channel.send(compiler.judge(frame))
                    compiler.recover()
                    channel.send(ProbeReady())
    except Exception as error:  # noqa: BLE001 - the parent starts another
        channel.send(Fault("probe", f"{type(error).__name__}: {error}"))
        leave(1)


def _set_up(channel: Channel) -> Compiler:
    (load,) = channel.receive(None)
    if not isinstance(load, ProbeLoad):
        raise TypeError(f"expected ProbeLoad first, not {type(load).__name__}")
    probe = Path(load.probe_path)
    if not probe.exists():
        write_probe_model(Path(load.model_path), probe)
    compiler = Compiler(probe)
    if not compiler.judge(Probe("regex", "a")).is_compiled:
        raise RuntimeError("the compiler refuses the simplest grammar")
    channel.send(ProbeReady())
    return compiler


if __name__ == "__main__":
    _serve(open_channel())
