"""A stream that was cut anywhere goes on elsewhere, and what the caller holds in the end equals the uncut run."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import Echo, Plan, PlanBook, ScriptedOptions

from tests.serving import Serving, bad_request, error_info, refusal, request, serving

TOKENS = 64
QUICK = ScriptedOptions(step_base_s=0.001)
CONTROL = range(256, 260)
WIDE = "né 龜𠮷 नमस्ते 👩‍👩‍👧 ďábelské ůž"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "ages"],
    }
)
PREFILLED = generation_pb2.CONTINUATION_PREFILLED


@dataclass
class Held:
    """What a caller has of one output."""

    token_ids: list[int]
    text: str
    finished: Any = None


async def whole(server: Serving, message: generation_pb2.GenerateRequest) -> tuple[list[Held], Any]:
    """Everything that a stream delivers, by output, and its Started."""
    outputs = [Held([], "") for _ in range(message.output.count or 1)]
    started, last = None, None
    async for event in server.inference.StreamGenerate(message):
        kind, last = event.WhichOneof("event"), event
        if kind == "started":
            started = event.started
        elif kind == "delta":
            assert event.delta.token_offset >= len(outputs[event.delta.output_index].token_ids)
            outputs[event.delta.output_index].token_ids += event.delta.token_ids
            outputs[event.delta.output_index].text += event.delta.text
        elif kind == "finished":
            outputs[event.finished.output_index].finished = event.finished
    assert last is not None
    assert last.WhichOneof("event") == "completed"
    return outputs, started


def text_until(token_ids: Sequence[int], uncut: Held) -> str:
    """The text of the first tokens, a byte each: their whole characters, as far as the output has them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(bytes(token_ids))[: len(uncut.text)]


async def continued(
    server: Serving, message: generation_pb2.GenerateRequest, started: Any, cuts: list[list[int]]
) -> Any:
    """Resume with these tokens held of each output."""
    resumed = generation_pb2.GenerateRequest()
    resumed.CopyFrom(message)
    resumed.sampling.seed = started.seed
    resumed.resume.prompt_digest = started.prompt_digest
    for index, token_ids in enumerate(cuts):
        resumed.resume.outputs.add(output_index=index, token_ids=token_ids)
    return await whole(server, resumed)


async def assert_every_cut_continues(message: generation_pb2.GenerateRequest, plans: Any = None) -> list[Held]:
    """Cut all outputs after so many tokens, for every number of them. Returns the uncut run."""
    async with serving(QUICK, plans=plans) as server, serving(QUICK, plans=plans) as elsewhere:
        uncut, started = await whole(server, message)

        async def check(cut: int) -> None:
            cuts = [output.token_ids[:cut] for output in uncut]
            outputs, again = await continued(elsewhere, message, started, cuts)
            assert again.continuation in (PREFILLED, generation_pb2.CONTINUATION_UNSPECIFIED)
            for held, output, expected in zip(cuts, outputs, uncut, strict=True):
                assert held + output.token_ids == expected.token_ids
                assert text_until(held, expected) + output.text == expected.text
                assert output.finished == expected.finished

        longest = max(len(output.token_ids) for output in uncut)
        for first in range(0, longest + 1, 8):
            await asyncio.gather(*[check(cut) for cut in range(first, min(first + 8, longest + 1))])
        return uncut


def message(**fields: Any) -> generation_pb2.GenerateRequest:
    output = {"token_ids": True} | fields.pop("output", {})
    return request(**({"max_output_tokens": TOKENS, "output": output} | fields))


GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 1.5, "seed": 11}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", [1, 3])
async def test_words_cut_at_every_token(sampling: dict[str, float], count: int) -> None:
    await assert_every_cut_continues(message(sampling=sampling, output={"count": count}))


async def test_a_seed_drawn_by_the_server_and_echoed_is_enough() -> None:
    await assert_every_cut_continues(message(sampling={"temperature": 1.0}))


@pytest.mark.parametrize("count", [1, 3])
async def test_a_text_cut_inside_its_characters(count: int) -> None:
    plans = PlanBook(otherwise=Plan(reply=Echo(after="Say: ")))
    await assert_every_cut_continues(message(prompt="Say: " + WIDE, sampling=GREEDY, output={"count": count}), plans)


async def test_random_bytes_cut_at_every_token() -> None:
    hot = {"temperature": 2.0, "seed": 5, "logit_bias": [{"token_id": control, "bias": -100} for control in CONTROL]}
    await assert_every_cut_continues(message(sampling=hot, output={"count": 2}))


@pytest.mark.parametrize("include_match", [False, True])
@pytest.mark.parametrize("stop", ["lighthouse keeper", "é 龜", "👩‍👧", "keeper\n\n"])
async def test_a_text_cut_before_and_inside_a_stop_string(stop: str, include_match: bool) -> None:
    plans = PlanBook(otherwise=Plan(reply=f"The lighthouse{stop[0]} was {stop} and more"))
    stops = {"strings": [stop, "never said"], "include_match": include_match}
    uncut = await assert_every_cut_continues(message(sampling=GREEDY, stop=stops, max_output_tokens=200), plans)
    assert uncut[0].finished.stop_string == stop
    assert uncut[0].text.endswith(f"was {stop}" if include_match else "was ")


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_json_document_cut_inside_its_grammar(sampling: dict[str, float], count: int) -> None:
    structured = message(sampling=sampling, structured_output={"json_schema": SCHEMA}, output={"count": count})
    await assert_every_cut_continues(structured)


async def test_penalties_and_stop_ids_count_what_is_held() -> None:
    sampling = {"temperature": 1.2, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.4}
    stop = {"token_ids": [ord("z")], "min_output_tokens": 20}
    await assert_every_cut_continues(message(sampling=sampling, stop=stop))


async def test_a_finished_output_stays_finished_and_the_others_go_on() -> None:
    several = message(sampling=SAMPLED, output={"count": 3})
    async with serving(QUICK) as server, serving(QUICK) as elsewhere:
        uncut, started = await whole(server, several)
        several.resume.prompt_digest = started.prompt_digest
        several.resume.outputs.add(output_index=0, token_ids=uncut[0].token_ids, finished=True)
        several.resume.outputs.add(output_index=2, token_ids=uncut[2].token_ids[:30])
        events = [event async for event in elsewhere.inference.StreamGenerate(several)]
    assert {event.finished.output_index for event in events if event.HasField("finished")} == {1, 2}
    assert not any(event.delta.output_index == 0 for event in events if event.HasField("delta"))
    usage = events[-1].completed.usage
    assert (usage.output_tokens, usage.resumed_tokens) == (3 * TOKENS, TOKENS + 30)


async def test_everything_held_and_finished_is_completed_without_the_engine() -> None:
    async with serving(QUICK) as server, serving(QUICK) as elsewhere:
        uncut, started = await whole(server, message(sampling=GREEDY))
        held = message(sampling=GREEDY)
        held.resume.prompt_digest = started.prompt_digest
        held.resume.outputs.add(token_ids=uncut[0].token_ids, finished=True)
        kinds = [event.WhichOneof("event") async for event in elsewhere.inference.StreamGenerate(held)]
        assert kinds == ["started", "completed"]
        assert elsewhere.sample("inferwire_output_tokens_total") == 0


async def test_offsets_count_what_is_held() -> None:
    async with serving(QUICK) as server, serving(QUICK) as elsewhere:
        uncut, started = await whole(server, message(sampling=GREEDY))
        resumed = message(sampling=GREEDY)
        resumed.resume.prompt_digest = started.prompt_digest
        resumed.resume.outputs.add(token_ids=uncut[0].token_ids[:40])
        deltas = [event.delta async for event in elsewhere.inference.StreamGenerate(resumed) if event.HasField("delta")]
    assert deltas[0].token_offset == 40
    assert sum(delta.token_count for delta in deltas) == TOKENS - 40


async def test_another_prompt_s_digest_is_refused_by_its_field() -> None:
    async with serving(QUICK) as server:
        resume = {"prompt_digest": b"\0" * 32, "outputs": [{"token_ids": [65]}]}
        error = await refusal(server.inference.StreamGenerate(message(resume=resume)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_request(error).field_violations[0].field == "resume.prompt_digest"


@pytest.mark.parametrize(
    ("outputs", "field"),
    [
        ([{"output_index": 1}], "resume.outputs[0].output_index"),
        ([{}, {}], "resume.outputs[1].output_index"),
        ([{"token_ids": [260]}], "resume.outputs[0].token_ids[0]"),
        ([{"token_ids": [65] * (TOKENS + 1)}], "resume.outputs[0].token_ids"),
    ],
)
async def test_what_cannot_be_held_is_refused_by_its_path(outputs: list[dict[str, Any]], field: str) -> None:
    async with serving(QUICK) as server:
        _, started = await whole(server, message())
        resume = {"prompt_digest": started.prompt_digest, "outputs": outputs}
        error = await refusal(server.inference.StreamGenerate(message(resume=resume)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_request(error).field_violations[0].field == field


async def test_tokens_that_the_grammar_forbids_are_refused() -> None:
    async with serving(QUICK) as server:
        structured = message(structured_output={"regex": "a+"})
        _, started = await whole(server, structured)
        structured.resume.prompt_digest = started.prompt_digest
        structured.resume.outputs.add(token_ids=list(b"ab"))
        error = await refusal(server.inference.StreamGenerate(structured))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info(error).metadata["field"] == "resume.outputs"


async def test_a_resumed_stream_of_a_running_generation_is_cut_where_its_reader_was() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005)) as server:
        grace = {"scheduling": {"detach_grace": {"seconds": 60}}, "request_id": "job-1", "sampling": SAMPLED}
        stream: Any = server.inference.StreamGenerate(message(**grace))
        started = (await stream.read()).started
        held = [token_id for _ in range(5) for token_id in (await stream.read()).delta.token_ids]
        stream.cancel()
        resumed = message(**grace)
        resumed.resume.prompt_digest = started.prompt_digest
        resumed.resume.outputs.add(token_ids=held)
        outputs, again = await whole_from(server, resumed, len(held))
        alone = await server.inference.Generate(message(sampling=SAMPLED))
        assert held + outputs == list(alone.outputs[0].token_ids)
        assert again.continuation == generation_pb2.CONTINUATION_ATTACHED


async def whole_from(server: Serving, resumed: generation_pb2.GenerateRequest, offset: int) -> tuple[list[int], Any]:
    """The ids of a single resumed output, which follow each other from an offset on."""
    token_ids: list[int] = []
    started = None
    async for event in server.inference.StreamGenerate(resumed):
        if event.HasField("started"):
            started = event.started
        elif event.HasField("delta"):
            assert event.delta.token_offset == offset + len(token_ids)
            token_ids += event.delta.token_ids
    return token_ids, started
