"""Settings come from flags, the environment and a file, in that order, and one line says what is wrong with each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from inferwire_server.settings import Settings, SettingsError, load_settings


def written(folder: Path, text: str) -> Path:
    file = folder / "inferwire.toml"
    file.write_text(text)
    return file


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`inferwire serve` on the scripted engine, to its end."""
    command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", "scripted", "--no-metrics", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=50, check=False
    )


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, 'port = 7000\nregion = "eu"\n[tenant_weights]\na = 2.5\n')
    settings = load_settings({"port": 8000, "region": None}, file)
    assert (settings.port, settings.region, settings.tenant_weights) == (8000, "eu", {"a": 2.5})
    assert settings.metrics_port == Settings.model_fields["metrics_port"].default


def test_a_name_that_is_no_setting_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    file = written(tmp_path, "drain_limits = 3\n")
    with pytest.raises(
        SettingsError, match=r"drain_limits in .*inferwire\.toml: no such setting; did you mean drain_limit"
    ):
        load_settings({}, file)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 70000}, "--port=70000"),
        ({"drain_limit": -1.0}, "--drain-limit"),
        ({"stall_time": float("nan")}, "--stall-time"),
    ],
)
def test_a_bad_flag_is_named_as_it_was_typed(flags: dict[str, float], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_settings(flags)


def test_every_bad_field_has_a_line_of_its_own(tmp_path: Path) -> None:
    file = written(tmp_path, 'port = "x"\nmax_waiting = 0\n[tenant_weights]\na = -1\n')
    with pytest.raises(SettingsError) as caught:
        load_settings({}, file)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any(line.startswith("tenant_weights.a in ") for line in lines)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent\.toml"):
        load_settings({}, tmp_path / "absent.toml")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings({}, written(tmp_path, "port = = 3"))


def test_the_environment_is_read_and_named_when_it_is_wrong() -> None:
    ended = serve(INFERWIRE_PORT="seventy")
    assert ended.returncode == 2
    assert "INFERWIRE_PORT='seventy'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_engine_option_that_is_none_is_refused_with_the_nearest_one() -> None:
    ended = serve(INFERWIRE_ENGINE_OPTIONS='{"max_runing": 3}')
    assert ended.returncode == 2
    assert "did you mean max_running" in ended.stderr


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = serve("--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "choose another by --port" in ended.stderr
    assert "Traceback" not in ended.stderr
