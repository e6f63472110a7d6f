"""Many requests through a small cache: each answer is its solo answer, whatever shares, leaves or is cancelled.

The prompts grow out of a few texts that are cut and continued at random, so that they share prefixes of every length,
whole blocks and parts of blocks. Run `python -m tests.engines.openvino.soak --requests 2000` for the long version.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferwire_server.domain.engine import Cancelled, Engine, EngineStream
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.openvino.options import OpenVinoOptions, Profile

from tests.engines.event_recorder import EventRecorder
from tests.engines.openvino.byte_model import VOCABULARY_SIZE
from tests.engines.openvino.engines import byte_model_options, model_options, running
from tests.engines.openvino.random_model import write_random_model
from tests.engines.openvino.requests import GREEDY, a_request, run, until
from tests.real_model import NAME, pull_real_model

SMALL = {"kv_blocks": 24, "max_batched_tokens": 64}
"""Room for about five requests, and prompts are read in several chunks."""
HANG_S = 300.0
"""No single wait is longer: the real model may share its cores with much else."""


@dataclass(frozen=True)
class Question:
    """What decides an answer."""

    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass
class Report:
    """How a soak went."""

    compared: int = 0
    wrong: list[Question] = field(default_factory=list)
    cancelled: int = 0
    tokens: int = 0
    most_blocks_reserved: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.compared} answers compared with their solo runs, {len(self.wrong)} differ; "
            f"{self.cancelled} cancelled; {self.tokens} tokens in {self.seconds:.0f} s; "
            f"at most {self.most_blocks_reserved} blocks reserved"
        )


def questions(texts: Sequence[Sequence[int]], count: int, draw: random.Random) -> list[Question]:
    """Prompts that are prefixes of the texts, some of them continued by a piece of another."""
    found = []
    for _ in range(count):
        text, other = draw.choice(texts), draw.choice(texts)
        start = draw.randrange(len(other))
        continuation = other[start : start + draw.choice([0, 0, 3, 12, 40])]
        prompt = (*text[: draw.randint(1, len(text))], *continuation)
        # Among few tokens, so that no draw lands on a boundary that moves in its last bits.
        sampled = Sampling(temperature=1.0, top_k=5, seed=draw.randrange(2**32))
        sampling = draw.choice([GREEDY, GREEDY, sampled])
        found.append(Question(prompt, sampling))
    return found


async def solo_answers(engine: Engine, asked: Sequence[Question], longest: int) -> dict[Question, list[int]]:
    """One after the other, each alone in the engine."""
    answers = {}
    for question in asked:
        request = a_request(question.prompt, longest, sampling=question.sampling, ignore_end_of_sequence=True)
        answers[question] = (await run(engine, request, HANG_S)).token_ids
    return answers


class Soak:
    """Keeps an engine as full as it allows, and compares what comes out."""

    def __init__(self, engine: Engine, answers: dict[Question, list[int]], draw: random.Random) -> None:
        self._engine = engine
        self._answers = answers
        self._asked = list(answers)
        self._draw = draw
        self.report = Report()

    async def run(self, requests: int) -> Report:
        """Submit so many requests, and wait for the end of all."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(requests):
                question = self._draw.choice(self._asked)
                limit = self._draw.randint(1, len(self._answers[question]))
                cancel_after = self._draw.randrange(limit + 1) if self._draw.random() < 0.3 else None
                await self._submit(group, question, limit, cancel_after)
        self.report.seconds = time.monotonic() - started
        return self.report

    async def _submit(self, group: asyncio.TaskGroup, question: Question, limit: int, cancel_after: int | None) -> None:
        request = a_request(question.prompt, limit, sampling=question.sampling, ignore_end_of_sequence=True)
        # Mostly at once, so that prompts are read together; sometimes only when others have got on.
        if self._draw.random() < 0.2:
            await asyncio.sleep(self._draw.random() * (self._engine.load().step_time_s or 0.0) * 3)
        await until(lambda: self._engine.room_for([request]), HANG_S)
        recorder = EventRecorder()
        stream = self._engine.submit(request, recorder)
        blocks = self._engine.load().kv_blocks_reserved or 0
        self.report.most_blocks_reserved = max(self.report.most_blocks_reserved, blocks)
        group.create_task(self._judge(question, limit, stream, recorder, cancel_after))

    async def _judge(
        self, question: Question, limit: int, stream: EngineStream, recorder: EventRecorder, cancel_after: int | None
    ) -> None:
        if cancel_after is not None:
            await recorder.until_tokens(cancel_after, HANG_S)
            stream.cancel()
        await recorder.until_ended(HANG_S)
        expected = self._answers[question][:limit]
        self.report.tokens += len(recorder.token_ids)
        if isinstance(recorder.terminal, Cancelled):
            self.report.cancelled += 1
            is_right = recorder.token_ids == expected[: len(recorder.token_ids)]
        else:
            self.report.compared += 1
            is_right = bool(recorder.finished) and recorder.token_ids == expected
        if not is_right:
            self.report.wrong.append(question)


def random_texts(draw: random.Random) -> list[list[int]]:
    """Texts for a model that knows bytes."""
    return [[draw.randrange(3, VOCABULARY_SIZE) for _ in range(150)] for _ in range(3)]


def real_texts(draw: random.Random) -> list[list[int]]:
    """Texts for the real model: any ids will do, behind a beginning that all have in common."""
    return [[1, 9690, 198, *(draw.randrange(17, 40_000) for _ in range(90))] for _ in range(3)]


async def main() -> int:
    """Soak one model, print the figures, and fail when an answer is not the solo answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=60, help="different prompts and seeds")
    parser.add_argument("--model", choices=["smollm2", "random"], default="smollm2")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        texts, solo, small = _set_up(arguments.model, Path(folder), draw)
        async with running(solo) as engine:
            answers = await solo_answers(engine, questions(texts, arguments.questions, draw), 24)
        async with running(small) as engine:
            report = await Soak(engine, answers, draw).run(arguments.requests)
    sys.stdout.write(f"{arguments.model}, {SMALL['kv_blocks']} blocks: {report}\n")
    return 1 if report.wrong else 0


def _set_up(model: str, folder: Path, draw: random.Random) -> tuple[list[list[int]], OpenVinoOptions, OpenVinoOptions]:
    if model == "random":
        path = write_random_model(folder / "random.gguf")
        solo = byte_model_options(path, prefix_caching=False)
        return random_texts(draw), solo, byte_model_options(path, **SMALL)
    version = pull_real_model().resolve(NAME, prefer="exact")
    solo = model_options(version, Profile.EXACT, kv_blocks=100, prefix_caching=False)
    return real_texts(draw), solo, model_options(version, Profile.EXACT, **SMALL)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
