"""What the engine must know of a Hugging Face checkpoint folder before it loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferwire_server.domain.errors import EngineDown


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model folder and its bounds."""

    folder: Path
    vocabulary_size: int
    end_token_ids: frozenset[int]
    """Every end-of-sequence id of the generation config; the engine itself would know only the tokenizer's one."""
    max_context_tokens: int


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read `config.json` and `generation_config.json`. Raises EngineDown naming the file and field at fault."""
    config = _read(folder / "config.json")
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) else config
    generation_file = folder / "generation_config.json"
    generation = _read(generation_file) if generation_file.exists() else {}
    end_ids = _ids(generation.get("eos_token_id")) or _ids(sizes.get("eos_token_id"))
    if not end_ids:
        raise EngineDown(f"engine unavailable: no eos_token_id in generation_config.json or config.json of {folder}")
    return Checkpoint(
        folder=folder,
        vocabulary_size=_positive(sizes, "vocab_size", folder),
        end_token_ids=end_ids,
        max_context_tokens=_positive(sizes, "max_position_embeddings", folder),
    )


def _read(file: Path) -> Mapping[str, object]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EngineDown(f"engine unavailable: cannot read {file}: {error}") from error
    if not isinstance(content, dict):
        raise EngineDown(f"engine unavailable: {file} holds no JSON object")
    return content


def _ids(value: object) -> frozenset[int]:
    candidates = value if isinstance(value, list) else [value]
    return frozenset(item for item in candidates if isinstance(item, int) and not isinstance(item, bool) and item >= 0)


def _positive(sizes: Mapping[str, object], field: str, folder: Path) -> int:
    value = sizes.get(field)
    if not isinstance(value, int) or value < 1:
        raise EngineDown(f"engine unavailable: config.json of {folder} has no {field}")
    return value
