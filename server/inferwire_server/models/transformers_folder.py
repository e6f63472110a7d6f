"""What the JSON files beside transformers weights say: configuration, tokenizer, chat template, sampling."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import tokenizers

from inferwire_server.models.assembly import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER, TextSide
from inferwire_server.models.errors import SourceCorrupt, UnsupportedModel
from inferwire_server.models.manifest import Architecture, DefaultSampling

CONFIG = "config.json"
_EXPORT_AGAIN = "Export the model again with optimum-intel, which writes this file, and pull the folder."


@dataclasses.dataclass(frozen=True, slots=True)
class TransformersConfig:
    """`config.json`; of a model with several parts, the text part."""

    values: dict[str, Any]
    path: Path

    @classmethod
    def read(cls, folder: Path) -> TransformersConfig:
        """Read a folder's configuration. Raises SourceCorrupt."""
        path = folder / CONFIG
        if not path.is_file():
            raise SourceCorrupt(f"{folder} has no {CONFIG}", _EXPORT_AGAIN)
        values = read_json(path)
        text_part = values.get("text_config")
        return cls({**values, **text_part} if isinstance(text_part, dict) else values, path)

    def integer(self, *keys: str) -> int:
        """The first of several spellings that is present. Raises SourceCorrupt."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, int):
                return value
        raise SourceCorrupt(f"{self.path} lacks {keys[0]}", _EXPORT_AGAIN)

    def architecture(self, parameters: int) -> Architecture:
        """The facts that size the model's memory."""
        heads = self.integer("num_attention_heads", "n_head")
        head_size = self.values.get("head_dim") or self.integer("hidden_size", "n_embd") // heads
        return Architecture(
            family=str(self.values.get("model_type", "")),
            layers=self.integer("num_hidden_layers", "n_layer"),
            attention_heads=heads,
            kv_heads=self.values.get("num_key_value_heads") or heads,
            key_size=head_size,
            value_size=head_size,
            parameters=parameters,
        )

    @property
    def context_tokens(self) -> int:
        return self.integer("max_position_embeddings", "n_positions", "max_seq_len")

    @property
    def vocabulary_size(self) -> int:
        return self.integer("vocab_size")

    def plain_text_side(self) -> TextSide:
        """The text side as far as the configuration alone tells."""
        return TextSide(
            tokenizer="",
            chat_template=None,
            beginning_token_id=None,
            adds_beginning_token=False,
            end_token_ids=_ids(self.values.get("eos_token_id")),
            sampling=DefaultSampling(),
        )


def read_text_side(folder: Path, base: TextSide) -> TextSide:
    """Lay what a folder's tokenizer, template and generation files say over `base`.

    Raises SourceCorrupt, or UnsupportedModel when no end-of-sequence id is known.
    """
    tokenizer, beginning = _tokenizer(folder)
    generation = _optional_json(folder / GENERATION_CONFIG)
    template = _chat_template(folder)
    text = dataclasses.replace(
        base,
        tokenizer=tokenizer,
        beginning_token_id=base.beginning_token_id if beginning is None else beginning,
        adds_beginning_token=beginning is not None,
        chat_template=base.chat_template if template is None else template,
        end_token_ids=_ids(generation.get("eos_token_id")) or base.end_token_ids,
        sampling=_sampling(generation) if generation else base.sampling,
    )
    if not text.end_token_ids:
        advice = f"Add eos_token_id to {GENERATION_CONFIG}, and pull the folder."
        raise UnsupportedModel(f"{folder} states no end-of-sequence id", advice)
    return text


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises SourceCorrupt."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise SourceCorrupt(f"{path} is not JSON: {error}", "Fetch or export the file again.") from error
    if not isinstance(value, dict):
        raise SourceCorrupt(f"{path} is not a JSON object", "Fetch or export the file again.")
    return value


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _tokenizer(folder: Path) -> tuple[str, int | None]:
    """The file's text, and the id that encoding puts first, if it does."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise SourceCorrupt(
            f"{folder} has no {TOKENIZER}", "Put the model's fast tokenizer file there, and pull again."
        )
    try:
        text = path.read_text(encoding="utf-8")
        loaded = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise SourceCorrupt(f"{path} does not load: {error}", "Fetch or export the file again.") from error
    plain = loaded.encode("a", add_special_tokens=False).ids
    full = loaded.encode("a", add_special_tokens=True).ids
    return text, full[0] if full and full[:1] != plain[:1] else None


def _chat_template(folder: Path) -> str | None:
    if (folder / CHAT_TEMPLATE).is_file():
        return (folder / CHAT_TEMPLATE).read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        stated = _optional_json(folder / name).get("chat_template")
        if isinstance(stated, list):
            stated = {entry.get("name"): entry.get("template") for entry in stated}.get("default")
        if isinstance(stated, str):
            return stated
    return None


def _sampling(generation: dict[str, Any]) -> DefaultSampling:
    if generation.get("do_sample") is False:
        return DefaultSampling()
    fields = {entry.name for entry in dataclasses.fields(DefaultSampling)}
    return DefaultSampling(**{key: value for key, value in generation.items() if key in fields})


def _ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list) else ()
