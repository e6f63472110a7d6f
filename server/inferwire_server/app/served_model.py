"""Which model and engine a process serves, decided from the settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from inferwire_server.app.engine_choice import engine_name, require_engine
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.model import ModelFacts
from inferwire_server.models.memory import available_memory, kv_block_bytes, memory_need, require_fit
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import EngineIdentity, ModelVersion
from inferwire_server.settings import Settings, SettingsError
from inferwire_server.text.chat import ChatTemplate
from inferwire_server.text.pool import TextPool
from inferwire_server.text.prompt import PromptEncoder
from inferwire_server.text.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model on one engine, not loaded yet."""

    facts: ModelFacts
    tokenizer: Tokenizer
    encoder: PromptEncoder
    pool: TextPool
    """Threads for texts; closed with the server."""
    engine: Engine
    verify: Callable[[], None]
    """Proves the files against their manifest; slow, so not for the serving loop."""


def choose_model(settings: Settings) -> ServedModel:
    """Raises SettingsError, EngineDown or a ModelError that says what to do."""
    require_engine(settings)
    name = engine_name(settings)
    if name == "scripted":
        return _scripted(settings)
    if name == "openvino":
        return _openvino(settings)
    return _tensorrt_llm(settings)


def _scripted(settings: Settings) -> ServedModel:
    """Options are those of ScriptedOptions, and `plans`: a file that says what to answer."""
    from inferwire_server.engines.scripted import PlanFileError, ScriptedEngine, ScriptedOptions, read_plans

    given = dict(settings.engine_options)
    plan_file = given.pop("plans", None)
    options = _options(ScriptedOptions, given)
    try:
        plans = None if plan_file is None else read_plans(Path(plan_file))
    except PlanFileError as error:
        raise SettingsError(f"engine_options.plans: {error}") from None
    return scripted_model(ScriptedEngine(options, plans=plans), options.max_context_tokens)


def scripted_model(engine: Engine, max_context_tokens: int) -> ServedModel:
    """The scripted model's text around an engine that takes its ids."""
    from inferwire_server.engines.scripted.model import CHAT_TEMPLATE, scripted_model_facts, tokenizer_json

    tokenizer = Tokenizer(tokenizer_json().encode())
    facts = scripted_model_facts(max_context_tokens)
    pool = TextPool()
    return ServedModel(
        facts=facts,
        tokenizer=tokenizer,
        encoder=PromptEncoder(tokenizer, ChatTemplate(CHAT_TEMPLATE, tokenizer, roles=facts.chat_roles), pool),
        pool=pool,
        engine=engine,
        verify=_nothing_to_verify,
    )


def _openvino(settings: Settings) -> ServedModel:
    from inferwire_server.engines.openvino.engine import OpenVinoEngine
    from inferwire_server.engines.openvino.options import OpenVinoOptions, Profile

    stored = _stored(settings)
    identity = EngineIdentity("openvino-genai", version("openvino-genai"), settings.profile)
    facts = stored.facts(engine=identity)
    options = _options(
        OpenVinoOptions,
        {
            "prefix_caching": settings.prefix_caching != "off",
            **settings.engine_options,
            "model_path": stored.weights_path,
            "vocabulary_size": facts.vocabulary_size,
            "max_context_tokens": facts.max_context_tokens,
            "end_token_ids": facts.end_token_ids,
            "profile": Profile(settings.profile),
        },
    )
    tokenizer = Tokenizer.load(stored.tokenizer_path)
    manifest = stored.manifest
    template = _template(
        stored.chat_template, tokenizer, facts.chat_roles, manifest.beginning_token_id, manifest.end_token_ids
    )
    pool = TextPool()
    return ServedModel(
        facts=facts,
        tokenizer=tokenizer,
        encoder=PromptEncoder(tokenizer, template, pool),
        pool=pool,
        engine=OpenVinoEngine(options),
        verify=lambda: _verify_fitting(stored, settings.profile, options.kv_blocks, options.kv_gib),
    )


def _verify_fitting(stored: ModelVersion, profile: str, kv_blocks: int | None, kv_gib: int) -> None:
    """Refuse what does not fit into memory before anything is loaded, then prove the files."""
    blocks = kv_blocks or (kv_gib << 30) // kv_block_bytes(stored.manifest, profile)
    require_fit(stored.manifest, memory_need(stored.manifest, profile=profile, kv_blocks=blocks), available_memory())
    stored.verify()


def _template(
    source: str | None, tokenizer: Tokenizer, roles: Sequence[str], beginning_id: int | None, end_ids: Iterable[int]
) -> ChatTemplate | None:
    if source is None:
        return None
    end_id = min(end_ids, default=None)
    named = {"bos_token": beginning_id, "eos_token": end_id}
    special = {name: tokenizer.piece_bytes(number).decode() for name, number in named.items() if number is not None}
    return ChatTemplate(source, tokenizer, roles=roles, special_tokens=special)


def _stored(settings: Settings) -> ModelVersion:
    return ModelRepository(settings.models_dir).resolve(settings.model, prefer=settings.profile)


def _options(kind: type[T], given: dict[str, Any]) -> T:
    """Build an engine's options, naming what is wrong as the operator wrote it."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(
                f"engine_options.{name}: no such option" + (f"; did you mean {near[0]}?" if near else "")
            )
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"engine_options: {error}") from None


def _nothing_to_verify() -> None:
    return None


def _tensorrt_llm(settings: Settings) -> ServedModel:
    from inferwire_server.app.checkpoint_model import CheckpointModel
    from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine

    model = CheckpointModel(settings)
    facts, text = model.facts(), model.text
    template = _template(
        text.chat_template, model.tokenizer, facts.chat_roles, text.beginning_token_id, facts.end_token_ids
    )
    pool = TextPool()
    return ServedModel(
        facts=facts,
        tokenizer=model.tokenizer,
        encoder=PromptEncoder(model.tokenizer, template, pool),
        pool=pool,
        engine=TensorRTEngine(model.checkpoint, model.options),
        verify=_nothing_to_verify,
    )
