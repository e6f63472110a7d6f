"""A field is honoured or refused by its name, never ignored: all of them, whatever the contract grows to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from inferwire.v1 import model_pb2
from inferwire_server.app.served_model import ServedModel
from inferwire_server.domain.engine import Capabilities, ResumeGuarantee
from inferwire_server.domain.limits import LAYER_FIELDS
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedEngine, ScriptedOptions
from inferwire_server.text.chat import ChatTemplate
from inferwire_server.text.pool import TextPool
from inferwire_server.text.prompt import PromptEncoder

from tests.contract.request_fields import EFFECTS, PROMISES, SAMPLES, Effect, capability_of, leaf_paths
from tests.serving import MODEL, bad_request, error_info, refusal, request, retry_hint_ms, serving

ROOT = Path(__file__).parents[2]
QUICK = ScriptedOptions(step_base_s=0.001)
CONTROL_ID = 258
PLANS = PlanBook((("short", Plan(reply="hello")), ("control", Plan(reply=(104, CONTROL_ID, 105)))))
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
    "{{ mood }}{{ add_generation_prompt }}"
)
"""Shows everything that a chat can say."""


class BareEngine(ScriptedEngine):
    """Honours nothing beyond a prompt and a length."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities,
            request_fields=frozenset(),
            resume_guarantee=ResumeGuarantee.NONE,
            reports_cached_tokens=False,
            prefix_caching=False,
        )


def without_chat(model: ServedModel) -> ServedModel:
    return replace(model, facts=replace(model.facts, chat_roles=(), chat_template_digest=""))


def with_talkative_template(model: ServedModel) -> ServedModel:
    return replace(model, encoder=PromptEncoder(model.tokenizer, ChatTemplate(TEMPLATE, model.tokenizer), TextPool()))


def test_every_field_of_the_contract_has_a_proof_and_only_one() -> None:
    paths = set(leaf_paths())
    assert EFFECTS.keys() | PROMISES.keys() == paths
    assert not EFFECTS.keys() & PROMISES.keys()


@pytest.mark.parametrize("path", sorted(PROMISES))
def test_the_promise_that_proves_a_field_exists(path: str) -> None:
    file, _, name = PROMISES[path].partition("::")
    assert re.search(rf"^async def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EFFECTS))
async def test_a_field_that_is_honoured_changes_the_answer(path: str) -> None:
    effect: Effect = EFFECTS[path]
    async with serving(QUICK, plans=PLANS, adapt=with_talkative_template) as server:
        fields: list[dict[str, Any]] = [{"sampling": {"seed": 1}, "max_output_tokens": 48} | effect.one]
        fields.append({"sampling": {"seed": 1}, "max_output_tokens": 48} | effect.other)
        one, other = [effect.observe(await server.inference.Generate(request(**each))) for each in fields]
    assert one != other


def test_there_is_a_sample_of_every_field_that_an_engine_may_lack() -> None:
    optional = {capability_of(path) for path in leaf_paths()} - (LAYER_FIELDS - {"chat"})
    assert SAMPLES.keys() == optional


@pytest.mark.parametrize("path", sorted(SAMPLES))
async def test_an_engine_that_lacks_a_field_refuses_it_by_its_path(path: str) -> None:
    async with serving(engine=BareEngine(QUICK), adapt=without_chat) as server:
        model = (await server.models.GetModel(model_pb2.GetModelRequest(model=MODEL))).model
        assert path not in model.capabilities.request_fields
        for call in (server.inference.Generate, server.inference.StreamGenerate):
            error = await refusal(call(request(**SAMPLES[path])))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNIMPLEMENTED, "CAPABILITY_ABSENT")
            assert error_info(error).metadata["field"] == path
            assert retry_hint_ms(error) is None
        assert (await server.inference.Generate(request())).usage.output_tokens == 16


@pytest.mark.parametrize("path", sorted(SAMPLES.keys() - {"resume"}))
async def test_an_engine_that_has_a_field_takes_it(path: str) -> None:
    async with serving(QUICK) as server:
        assert (await server.inference.Generate(request(**SAMPLES[path]))).outputs


@pytest.mark.parametrize("path", ["resume", "progress_interval"])
async def test_what_only_a_stream_has_is_refused_elsewhere_as_the_caller_s_fault(path: str) -> None:
    samples = SAMPLES | {"progress_interval": {"progress_interval": {"seconds": 1}}}
    async with serving(QUICK) as server:
        error = await refusal(server.inference.Generate(request(**samples[path])))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert bad_request(error).field_violations[0].field == path


async def test_capabilities_publish_exactly_what_is_honoured() -> None:
    every = {capability_of(path) for path in leaf_paths()}
    async with serving(QUICK) as server, serving(engine=BareEngine(QUICK), adapt=without_chat) as bare:
        full = (await server.models.GetModel(model_pb2.GetModelRequest(model=MODEL))).model.capabilities
        least = (await bare.models.GetModel(model_pb2.GetModelRequest(model=MODEL))).model.capabilities
    assert set(full.request_fields) == every
    assert set(least.request_fields) == every - SAMPLES.keys()
    assert full.resume_guarantee == model_pb2.RESUME_GUARANTEE_EXACT
    assert least.resume_guarantee == model_pb2.RESUME_GUARANTEE_UNSPECIFIED
