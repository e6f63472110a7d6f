"""What is looked at before anything is loaded: the rank of this process, and the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.checkpoint import read_checkpoint
from inferwire_server.engines.tensorrt_llm.launcher import require_leader

CONFIG = {"vocab_size": 100, "max_position_embeddings": 64, "eos_token_id": 1}


@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURM_PROCID": "0"}, {"TLLM_SPAWN_PROXY_PROCESS": "1", "OMPI_COMM_WORLD_RANK": "3"}, {"PMI_RANK": ""}],
    ids=["alone", "rank 0", "started by the launcher", "no number"],
)
def test_the_leader_serves(environment: dict[str, str]) -> None:
    require_leader(environment)


@pytest.mark.parametrize("name", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID"])
def test_no_other_rank_serves(name: str) -> None:
    with pytest.raises(EngineDown, match=f"rank 2 .{name}.*trtllm-llmapi-launch inferwire serve"):
        require_leader({name: "2"})


def folder(path: Path, config: Any, generation: Any = None) -> Path:
    path.joinpath("config.json").write_text(json.dumps(config))
    if generation is not None:
        path.joinpath("generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.mark.parametrize(
    ("generation", "ends"),
    [(None, {1}), ({"eos_token_id": 5}, {5}), ({"eos_token_id": [5, 6]}, {5, 6}), ({"eos_token_id": None}, {1})],
)
def test_end_ids_are_those_of_the_generation_config(tmp_path: Path, generation: Any, ends: set[int]) -> None:
    assert read_checkpoint(folder(tmp_path, CONFIG, generation)).end_token_ids == ends


def test_a_text_model_inside_a_larger_one_is_found(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(folder(tmp_path, {"text_config": CONFIG}))
    assert (checkpoint.vocabulary_size, checkpoint.max_context_tokens) == (100, 64)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({**CONFIG, "vocab_size": None}, "no vocab_size"),
        ({**CONFIG, "max_position_embeddings": 0}, "no max_position_embeddings"),
        ({**CONFIG, "eos_token_id": None}, "no eos_token_id"),
        ([], "no JSON object"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, config: Any, complaint: str) -> None:
    with pytest.raises(EngineDown, match=complaint):
        read_checkpoint(folder(tmp_path, config))


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineDown, match=r"cannot read .*config\.json"):
        read_checkpoint(tmp_path)
