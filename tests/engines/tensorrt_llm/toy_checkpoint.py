"""The stand-in's model, and where the stand-in lies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint, read_checkpoint

_HERE = Path(__file__).parent
STANDIN = _HERE / "standin"
MODEL = _HERE / "model"
"""A checkpoint folder without weights: 1,024 ids, two end ids, a context of 512 tokens."""


def toy_checkpoint() -> Checkpoint:
    """The toy model as it is."""
    return read_checkpoint(MODEL)


def unkind_checkpoint(folder: Path, **temperament: Any) -> Checkpoint:
    """The toy model in a folder of its own, served by a stand-in with these faults."""
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    (folder / "standin.json").write_text(json.dumps(temperament))
    return read_checkpoint(folder)
