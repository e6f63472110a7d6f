"""The streams that run together, and the arithmetic of one step."""

from __future__ import annotations

from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.stream import ScriptedStream


class Batch:
    """Live streams in order of arrival. A stream prefills first and then decodes, one token a step."""

    def __init__(self, options: ScriptedOptions) -> None:
        self._options = options
        self._live: dict[str, ScriptedStream] = {}
        self._prefilling: dict[str, ScriptedStream] = {}
        self._decoding: dict[str, ScriptedStream] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def streams(self) -> list[ScriptedStream]:
        return list(self._live.values())

    def add(self, stream: ScriptedStream) -> None:
        self._live[stream.request.id] = self._prefilling[stream.request.id] = stream

    def remove(self, stream: ScriptedStream) -> None:
        for members in (self._live, self._prefilling, self._decoding):
            members.pop(stream.request.id, None)

    def start_decoding(self, stream: ScriptedStream) -> None:
        self._decoding[stream.request.id] = self._prefilling.pop(stream.request.id)

    def compose(self) -> tuple[list[ScriptedStream], list[ScriptedStream], float]:
        """Choose a step: streams that prefill a chunk, streams that decode, and the seconds that it takes."""
        options = self._options
        budget = options.prefill_chunk_tokens
        prefilling = []
        for stream in self._prefilling.values():
            if not budget:
                break
            stream.chunk = min(budget, stream.prefill_left)
            budget -= stream.chunk
            prefilling.append(stream)
        decoding = list(self._decoding.values())
        running = len(prefilling) + len(decoding)
        chunk = options.prefill_chunk_tokens - budget
        duration = options.step_base_s + options.step_per_running_s * running + chunk / options.prefill_tokens_per_s
        return prefilling, decoding, duration
