"""What a server knows of a checkpoint folder before it loads anything, and what it says of a folder it cannot serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inferwire_server.app.checkpoint_model import CheckpointModel
from inferwire_server.domain.errors import EngineDown
from inferwire_server.models.errors import ModelError
from inferwire_server.settings import Settings, SettingsError

from tests.checkpoint_folder import write_checkpoint


def model_of(folder: Path, **settings: Any) -> CheckpointModel:
    """The folder as the server reads it."""
    return CheckpointModel(Settings(model=str(folder), **settings))


def edit(folder: Path, name: str, **values: Any) -> None:
    """Lay values over a JSON file of the folder."""
    path = folder / name
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


@pytest.mark.parametrize(
    ("options", "advice"),
    [({"max_batchsize": 4}, "max_batch_size"), ({"sampler": "torh"}, "torch"), ({"max_num_tokens": 4}, "batch_tokens")],
)
def test_a_wrong_option_is_refused_with_a_near_one(options: dict[str, Any], advice: str, tmp_path: Path) -> None:
    with pytest.raises(EngineDown, match=f"did you mean .*{advice}"):
        model_of(tmp_path / "not looked at", engine_options=options)


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [("", "there is no folder"), ("config.json", r"config\.json"), ("tokenizer.json", r"tokenizer\.json")],
)
def test_a_folder_that_is_no_checkpoint_is_named_with_what_it_lacks(
    missing: str, complaint: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path)
    if missing:
        (folder / missing).unlink()
    with pytest.raises((SettingsError, EngineDown, ModelError), match=complaint):
        model_of(folder if missing else tmp_path / "elsewhere")


def test_the_smaller_of_the_model_s_context_and_the_option_is_the_bound(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    for option, bound in ((300, 300), (5000, 512)):
        facts = model_of(folder, engine_options={"max_context_tokens": option}).facts()
        assert facts.max_context_tokens == bound


def test_the_makers_sampling_is_the_default(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    edit(folder, "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9, top_k=20)
    sampling = model_of(folder).facts().defaults.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 20)


def test_a_template_in_the_tokenizer_s_configuration_counts_as_well(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    template = (folder / "chat_template.jinja").read_text()
    with_a_file = model_of(folder).facts()
    (folder / "chat_template.jinja").unlink()
    edit(folder, "tokenizer_config.json", chat_template=template)
    assert model_of(folder).facts().chat_template_digest == with_a_file.chat_template_digest != ""


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "chat_template.jinja").unlink()
    facts = model_of(folder).facts()
    assert (facts.chat_roles, facts.chat_template_digest) == ((), "")


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "chat_template.jinja", "weights.safetensors"])
def test_the_fingerprint_follows_what_decides_the_tokens(change: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "weights.safetensors").write_bytes(b"12345678")
    before, again = model_of(folder).facts(), model_of(folder).facts()
    with (folder / change).open("ab") as file:
        file.write(b"\n")
    after = model_of(folder).facts()
    assert before == again
    assert after.fingerprint != before.fingerprint
    assert after.version != before.version


def test_prefix_caching_off_is_no_reuse_of_blocks(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    assert model_of(folder).options.kv_cache_block_reuse
    assert not model_of(folder, prefix_caching="off").options.kv_cache_block_reuse
