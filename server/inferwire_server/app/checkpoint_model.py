"""A Hugging Face checkpoint folder as a served model: the engine reads its weights, the server the files beside."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from inferwire_server.domain.errors import EngineDown
from inferwire_server.domain.model import ModelDefaults, ModelFacts
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint, read_checkpoint
from inferwire_server.engines.tensorrt_llm.llm_arguments import context_tokens
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.models.assembly import TextSide
from inferwire_server.models.chat_roles import chat_roles
from inferwire_server.models.names import name_from
from inferwire_server.models.transformers_folder import TransformersConfig, read_text_side
from inferwire_server.settings import Settings, SettingsError
from inferwire_server.text.tokenizer import Tokenizer

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_VERSION_DIGITS = 12


class CheckpointModel:
    """The folder that the settings name as MODEL, read but not loaded.

    Raises SettingsError, EngineDown or ModelError, which say what to do; bad options come first.
    """

    def __init__(self, settings: Settings) -> None:
        reuse = {"kv_cache_block_reuse": False} if settings.prefix_caching == "off" else {}
        self.options = Options.from_mapping({**reuse, **settings.engine_options})
        folder = Path(settings.model)
        if not folder.is_dir():
            raise SettingsError(
                f"model: there is no folder {settings.model!r}; the TensorRT-LLM engine serves a Hugging Face "
                "checkpoint, a folder with config.json, tokenizer.json and weights: give its path as MODEL"
            )
        self.checkpoint: Checkpoint = read_checkpoint(folder)
        self.text: TextSide = read_text_side(folder, TransformersConfig.read(folder).plain_text_side())
        try:
            self.tokenizer = Tokenizer(self.text.tokenizer.encode())
        except ValueError as error:
            raise SettingsError(f"model: {folder / 'tokenizer.json'}: {error}") from None

    def facts(self) -> ModelFacts:
        """What the server publishes.

        The name follows from the folder's, the version is the beginning of `checkpoint_digest`, and the fingerprint
        is over that digest and the engine's version.
        """
        content = checkpoint_digest(self.checkpoint.folder, self.text)
        engine = _engine_version()
        template = self.text.chat_template
        return ModelFacts(
            name=name_from(self.checkpoint.folder.resolve().name),
            version=content[:_VERSION_DIGITS],
            fingerprint=_digest([content, engine]),
            tokenizer_digest=self.tokenizer.digest,
            chat_template_digest="" if template is None else hashlib.sha256(template.encode()).hexdigest(),
            engine=engine,
            max_context_tokens=context_tokens(self.checkpoint, self.options),
            vocabulary_size=self.checkpoint.vocabulary_size,
            end_token_ids=self.checkpoint.end_token_ids,
            chat_roles=() if template is None else chat_roles(template),
            defaults=ModelDefaults(sampling=self.text.sampling.resolve()),
        )


def checkpoint_digest(folder: Path, text: TextSide) -> str:
    """Digest what decides a checkpoint's behaviour, as lower-case hex sha256.

    It covers the tokenizer and chat template in use, the content of every JSON file of the folder, and the names and
    sizes of its weights. What is in the weights is not covered: reading hundreds of gigabytes would double the time
    to start, so two sets of weights of one architecture can be told apart only by the JSON files beside them.
    """
    facts: list[tuple[str, object]] = [("tokenizer", text.tokenizer), ("chat template", text.chat_template)]
    try:
        for path in sorted(Path(entry) for entry in os.scandir(folder) if entry.is_file()):
            if path.suffix == ".json":
                facts.append((path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
            elif path.suffix in _WEIGHTS:
                facts.append((path.name, path.stat().st_size))
    except OSError as error:
        raise EngineDown(f"engine unavailable: cannot read {error.filename or folder}: {error.strerror}") from None
    return _digest(facts)


def _engine_version() -> str:
    try:
        return f"tensorrt-llm {version('tensorrt-llm')}"
    except PackageNotFoundError:  # importable without an installation, so its version shows only when it is loaded
        return "tensorrt-llm"


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
