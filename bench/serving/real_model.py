"""The real model for measurements: where it is, what is asked of it, and an engine or a server that has it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from inferwire.v1 import generation_pb2
from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.options import OpenVinoOptions
from inferwire_server.models.errors import ModelError
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import EngineIdentity, ModelVersion
from inferwire_server.settings import Settings
from inferwire_server.text.tokenizer import Tokenizer

from bench.serving.processes import ServerProcess, inferwire_server

NAME = "smollm2-135m-instruct"
_WORDS = ("sea", "stone", "river", "light", "morning", "road", "bread", "winter", "paper", "garden", "bird", "house")


@dataclass(frozen=True, slots=True)
class RealModel:
    """A stored version and its tokenizer."""

    stored: ModelVersion
    tokenizer: Tokenizer

    def prompts(self, seed: int) -> Iterator[str]:
        """Endlessly many of no common beginning, for `prompt` to cut to a length."""
        rng = random.Random(seed)
        while True:
            yield " ".join(rng.choice(_WORDS) + str(rng.randrange(100)) for _ in range(1000))

    def prompt(self, seed: int, tokens: int) -> str:
        """A text of at most so many tokens, and hardly fewer; other seeds begin otherwise."""
        text = next(self.prompts(seed))
        low, high = 1, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(self.ids(text[:middle])) <= tokens else (low, middle - 1)
        return text[:low]

    def ids(self, text: str) -> list[int]:
        """As the server tokenises a prompt."""
        return self.tokenizer.encode(text, add_special_tokens=True)

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[OpenVinoEngine]:
        """The CPU engine alone, `fast`, in a child of this process."""
        facts = self.stored.facts(engine=EngineIdentity("openvino-genai", "bench", "fast"))
        engine = OpenVinoEngine(
            OpenVinoOptions(
                model_path=self.stored.weights_path,
                vocabulary_size=facts.vocabulary_size,
                max_context_tokens=facts.max_context_tokens,
                end_token_ids=facts.end_token_ids,
            )
        )
        await engine.start()
        try:
            yield engine
        finally:
            await engine.shutdown(1.0)


def find() -> RealModel | ModelError:
    """The model, or why there is none and what to do."""
    try:
        stored = ModelRepository(Settings().models_dir).resolve(NAME)
    except ModelError as error:
        return error
    return RealModel(stored, Tokenizer.load(stored.tokenizer_path))


def serving(*, is_awaited: bool = True) -> contextlib.AbstractAsyncContextManager[ServerProcess]:
    """`inferwire serve` with the model, as a user starts it."""
    return inferwire_server(NAME, "--engine", "openvino", is_awaited=is_awaited)


def request(prompt: str, output_tokens: int) -> generation_pb2.GenerateRequest:
    """Greedy, and never shorter than asked for."""
    message = generation_pb2.GenerateRequest(model=NAME, prompt=prompt, max_output_tokens=output_tokens)
    message.sampling.temperature = 0.0
    message.stop.ignore_end_of_sequence = True
    return message


async def count_tokens(stub: Any, message: generation_pb2.GenerateRequest) -> int:
    """Stream it to its end; how many tokens came."""
    tokens = 0
    async for event in stub.StreamGenerate(message):
        tokens += event.delta.token_count
    return tokens


async def first_token_s(stub: Any, message: generation_pb2.GenerateRequest) -> float:
    """Seconds from the call to the first token; the rest is read too."""
    began = time.monotonic()
    first = 0.0
    async for event in stub.StreamGenerate(message):
        if event.delta.token_count and not first:
            first = time.monotonic() - began
    return first
