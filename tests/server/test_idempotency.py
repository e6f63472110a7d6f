"""A request id names one generation: duplicates share it, later attempts take it over, readers may come back for it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import Serving, error_info, refusal, request, rest_of, retry_hint_ms, serving

FRESH = generation_pb2.CONTINUATION_UNSPECIFIED
ATTACHED = generation_pb2.CONTINUATION_ATTACHED
REPLAYED = generation_pb2.CONTINUATION_REPLAYED
STEADY = ScriptedOptions(step_base_s=0.005)


def named(**fields: Any) -> generation_pb2.GenerateRequest:
    """A request with an id and token ids in its answer."""
    return request(**({"request_id": "job-1", "output": {"token_ids": True}} | fields))


async def collected(stream: Any) -> tuple[int, list[int], str]:
    """How a whole stream continues, its ids and its text."""
    events = [event async for event in stream]
    assert events[-1].WhichOneof("event") == "completed"
    started = next(event.started for event in events if event.HasField("started"))
    ids = [token_id for event in events for token_id in event.delta.token_ids]
    return started.continuation, ids, "".join(event.delta.text for event in events)


async def begun(server: Serving, message: generation_pb2.GenerateRequest, tokens: int) -> tuple[Any, list[int]]:
    """A stream of which at least so many tokens have been read, and they."""
    stream: Any = server.inference.StreamGenerate(message)
    held: list[int] = []
    while len(held) < tokens:
        held += (await stream.read()).delta.token_ids
    return stream, held


async def ended(stream: Any) -> None:
    """Read a stream to its end; again, nothing happens."""
    async for _ in rest_of(stream):
        pass
    assert await stream.code() is grpc.StatusCode.OK


async def test_two_hundred_parallel_duplicates_are_one_generation_with_one_answer() -> None:
    async with serving(STEADY) as server:
        streams = [collected(server.inference.StreamGenerate(named())) for _ in range(100)]
        answers = [server.inference.Generate(named()) for _ in range(100)]
        async with asyncio.timeout(50):
            read = await asyncio.gather(*streams)
            replies = [await answer for answer in answers]
        assert {text for _, _, text in read} | {reply.outputs[0].text for reply in replies} == {read[0][2]}
        assert {tuple(ids) for _, ids, _ in read} == {tuple(replies[0].outputs[0].token_ids)}
        continuations = [how for how, _, _ in read] + [reply.started.continuation for reply in replies]
        assert continuations.count(FRESH) == 1
        assert server.outcomes() == {"ok": 1}
        assert server.sample("inferwire_prompt_tokens_total") == replies[0].usage.prompt_tokens


async def test_other_content_under_the_same_id_conflicts_while_it_runs_and_after() -> None:
    changes: list[dict[str, Any]] = [
        {"prompt": "another story"},
        {"max_output_tokens": 17},
        {"sampling": {"temperature": 0.5}},
        {"sampling": {"seed": 12345}},
        {"stop": {"strings": ["x"]}},
        {"output": {"count": 2}},
        {"output": {"skip_special_tokens": False}},
        {"cache": {"salt": "s"}},
        {"structured_output": {"regex": "a+"}},
    ]
    async with serving(STEADY) as server:
        message = named(sampling={"seed": 1})
        stream, _ = await begun(server, message, 1)
        for _ in range(2):
            for change in changes:
                error = await refusal(server.inference.Generate(named(**({"sampling": {"seed": 1}} | change))))
                assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ALREADY_EXISTS, "KEY_CONFLICT")
                assert retry_hint_ms(error) is None
            await ended(stream)


async def test_what_is_not_content_does_not_conflict() -> None:
    async with serving(STEADY) as server:
        first = await server.inference.Generate(named(sampling={"seed": 7}))
        fingerprint = first.started.model_fingerprint
        others: list[dict[str, Any]] = [
            {"output": {"text": False}},
            {"output": {"token_ids": False}},
            {"scheduling": {"priority": "PRIORITY_INTERACTIVE"}},
            {"expected_model": {"fingerprint": fingerprint}},
            {"sampling": {}},
            {"model": "scripted@1"},
            {"attempt": 1},
        ]
        for change in others:
            again = await server.inference.Generate(named(**({"sampling": {"seed": 7}} | change)))
            assert (again.started.continuation, again.started.seed) == (REPLAYED, 7)
        assert server.outcomes() == {"ok": 1}


async def test_the_same_id_of_another_tenant_is_another_generation() -> None:
    async with serving(STEADY) as server:
        replies = [
            await server.inference.Generate(named(), metadata=(("x-inferwire-tenant", tenant),)) for tenant in "ab"
        ]
        assert [reply.started.continuation for reply in replies] == [FRESH, FRESH]
        error = await refusal(server.inference.Generate(named(prompt="x"), metadata=(("x-inferwire-tenant", "b"),)))
        assert error_info(error).reason == "KEY_CONFLICT"


async def test_a_higher_attempt_takes_over_and_the_older_reader_is_fenced() -> None:
    async with serving(STEADY) as server:
        older, held = await begun(server, named(max_output_tokens=300), 5)
        newer = asyncio.create_task(collected(server.inference.StreamGenerate(named(max_output_tokens=300, attempt=1))))
        error = await refusal(rest_of(older))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ABORTED, "FENCED")
        assert (error_info(error).metadata["started"], retry_hint_ms(error)) == ("true", None)
        how, ids, _ = await newer
        assert (how, ids[: len(held)], len(ids)) == (ATTACHED, held, 300)
        assert server.outcomes() == {"ok": 1}


async def test_a_lower_attempt_is_refused_while_it_runs_and_after() -> None:
    async with serving(STEADY) as server:
        stream, _ = await begun(server, named(attempt=2), 1)
        for _ in range(2):
            error = await refusal(server.inference.Generate(named(attempt=1)))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ABORTED, "FENCED")
            assert (error_info(error).metadata["started"], retry_hint_ms(error)) == ("false", None)
            await ended(stream)


async def test_attempts_that_arrive_together_leave_one_reader_and_no_fault() -> None:
    async with serving(STEADY) as server:
        calls = [
            server.inference.StreamGenerate(named(max_output_tokens=300, attempt=attempt)) for attempt in range(30)
        ]
        async with asyncio.timeout(50):
            results = await asyncio.gather(*[collected(call) for call in calls], return_exceptions=True)
        whole = [result for result in results if isinstance(result, tuple)]
        fenced = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(whole) == 1
        assert {error_info(error).reason for error in fenced} == {"FENCED"}
        assert server.outcomes()["ok"] == 1


async def test_a_finished_generation_is_replayed_whole_or_from_where_a_reader_was() -> None:
    async with serving(STEADY) as server:
        first = await server.inference.Generate(named())
        ids = list(first.outputs[0].token_ids)
        assert await collected(server.inference.StreamGenerate(named())) == (REPLAYED, ids, first.outputs[0].text)
        resume = {"prompt_digest": first.started.prompt_digest, "outputs": [{"token_ids": ids[:6]}]}
        how, rest, text = await collected(server.inference.StreamGenerate(named(resume=resume)))
        assert (how, rest, text) == (REPLAYED, ids[6:], first.outputs[0].text[6:])
        assert server.outcomes() == {"ok": 1}


async def test_a_reader_that_leaves_without_a_grace_ends_the_generation_at_once() -> None:
    async with serving(STEADY) as server:
        stream, _ = await begun(server, named(max_output_tokens=4000), 2)
        stream.cancel()
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"cancelled": 1}


async def test_within_the_grace_a_reader_comes_back_and_nothing_is_lost_or_doubled() -> None:
    async with serving(STEADY) as server:
        message = named(max_output_tokens=80, scheduling={"detach_grace": {"seconds": 60}}, sampling={"seed": 3})
        alone = await server.inference.Generate(named(request_id="alone", max_output_tokens=80, sampling={"seed": 3}))
        stream, held = await begun(server, message, 10)
        stream.cancel()
        await until(lambda: server.calls_under_way == 0)
        message.resume.prompt_digest = alone.started.prompt_digest
        message.resume.outputs.add(token_ids=held)
        how, rest, _ = await collected(server.inference.StreamGenerate(message))
        assert how in (ATTACHED, REPLAYED)
        assert held + rest == list(alone.outputs[0].token_ids)
        assert server.outcomes() == {"ok": 2}


async def test_what_nobody_came_back_for_within_the_grace_ends() -> None:
    async with serving(STEADY) as server:
        grace = {"detach_grace": {"nanos": 2 * 10**8}}
        stream, _ = await begun(server, named(max_output_tokens=4000, scheduling=grace), 2)
        stream.cancel()
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"cancelled": 1}


async def test_what_was_completed_within_the_grace_can_be_read_after_all() -> None:
    async with serving(STEADY) as server:
        message = named(max_output_tokens=20, scheduling={"detach_grace": {"seconds": 60}})
        stream, _ = await begun(server, message, 2)
        stream.cancel()
        await until(lambda: server.outcomes().get("ok") == 1)
        assert (await collected(server.inference.StreamGenerate(message)))[0] == REPLAYED


async def test_a_generation_with_a_grace_outlives_its_reader_s_deadline() -> None:
    async with serving(STEADY) as server:
        message = named(max_output_tokens=300, scheduling={"detach_grace": {"seconds": 60}})
        error = await refusal(server.inference.Generate(message, timeout=0.6))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        how, ids, _ = await collected(server.inference.StreamGenerate(message))
        assert (how in (ATTACHED, REPLAYED), len(ids)) == (True, 300)
        assert server.outcomes() == {"ok": 1}


async def test_a_second_reader_with_more_time_keeps_the_generation_beyond_the_first_one_s_deadline() -> None:
    async with serving(STEADY) as server:
        message = named(max_output_tokens=400)
        first = asyncio.create_task(refusal(server.inference.Generate(message, timeout=1.0)))
        await until(lambda: server.engine.load().running == 1)
        how, ids, _ = await collected(server.inference.StreamGenerate(message))
        assert (how, len(ids)) == (ATTACHED, 400)
        assert (await first).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.outcomes() == {"ok": 1}


async def test_a_failed_generation_is_not_replayed_but_run_again() -> None:
    async with serving(STEADY) as server:
        stream, _ = await begun(server, named(), 1)
        server.engine.die("a test wants it")
        assert error_info(await refusal(rest_of(stream))).reason == "ENGINE_DOWN"
        server.engine.recover()
        await until(lambda: server.server.lifecycle.is_ready)
        how, ids, _ = await collected(server.inference.StreamGenerate(named()))
        assert (how, len(ids)) == (FRESH, 16)


async def test_replays_end_after_their_time() -> None:
    async with serving(STEADY, replay_time=0.2) as server:
        await server.inference.Generate(named())
        await until(lambda: server.server.sessions.num_replayable == 0)
        assert (await server.inference.Generate(named())).started.continuation == FRESH


async def test_replays_are_bounded_in_bytes_and_the_oldest_go_first() -> None:
    async with serving(ScriptedOptions(step_base_s=0.001), replay_bytes=10_000) as server:
        for number in range(30):
            await server.inference.Generate(named(request_id=f"job-{number}"))
        sessions = server.server.sessions
        assert 1 <= sessions.num_replayable < 30
        assert sessions.replayable_bytes <= 10_000
        newest = await server.inference.Generate(named(request_id="job-29"))
        assert newest.started.continuation == REPLAYED
        oldest = await server.inference.Generate(named(request_id="job-0"))
        assert oldest.started.continuation == FRESH


async def test_resuming_with_other_tokens_than_were_generated_here_is_lost() -> None:
    async with serving(STEADY) as server:
        first = await server.inference.Generate(named())
        wrong = [*first.outputs[0].token_ids[:4], first.outputs[0].token_ids[4] ^ 1]
        resume = {"prompt_digest": first.started.prompt_digest, "outputs": [{"token_ids": wrong}]}
        error = await refusal(server.inference.StreamGenerate(named(resume=resume)))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ABORTED, "RESUME_LOST")
        assert retry_hint_ms(error) is None
