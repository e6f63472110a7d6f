"""Versions from a Hugging Face repository, at a pinned commit."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from inferwire_server.models.conversion import convert_folder, require_converter
from inferwire_server.models.errors import (
    AccessDenied,
    DownloadFailed,
    ModelError,
    NameTaken,
    NetworkUnreachable,
    SourceCorrupt,
    SourceNotFound,
    UnsupportedModel,
)
from inferwire_server.models.files import require_space, sha256_of, storage_errors
from inferwire_server.models.manifest import Source
from inferwire_server.models.names import name_from
from inferwire_server.models.openvino_source import GRAPH, GRAPH_DATA, publish_openvino_folder
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion

PREFIX = "hf:"
_TEXT_FILES = ("*.json", "*.jinja", "LICENSE")
_REVISION_DIGITS = 12
_TIMEOUT_S = 30
_SPACE_FACTOR = 3
"""Download, conversion and copy of the weights lie side by side for a while."""
_TRANSPORT_ERROR: type[Exception] = vars(hub_errors)["HTTPError"]
"""The HTTP library's base class; which library it is depends on the release."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """`hf:org/name` or `hf:org/name@revision`."""

    repository: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Read what the user typed. Raises SourceNotFound."""
        match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", text)
        if match is None:
            raise SourceNotFound(f"{text!r} names no hub repository", "Write hf:org/name or hf:org/name@revision.")
        return cls(match[1], match[2])


def pull_from_hub(
    reference: HubReference, repository: ModelRepository, environment: Mapping[str, str], progress: ProgressSink
) -> ModelVersion:
    """Download a repository at one commit, prove its files, convert them where needed, and publish."""
    hub = _Hub(reference.repository, environment)
    name = name_from(reference.repository.split("/")[1])
    listing = hub.listing(reference.revision)
    revision = str(listing.sha)
    wanted = _wanted_files(reference.repository, listing)
    with repository.writing(name, progress) as writer, writer.draft() as scratch, storage_errors(scratch):
        if stored := _stored_version(name, reference.repository, revision, repository, progress):
            return stored
        require_space(scratch, _SPACE_FACTOR * sum(file.size or 0 for file in wanted))
        snapshot = scratch / "snapshot"
        for file in wanted:
            hub.download(file, revision, snapshot, progress)
        digests = {file.rfilename: sha256_of(snapshot / file.rfilename, lambda _done: None) for file in wanted}
        ready = (snapshot / GRAPH).is_file()
        source = Source(
            kind="hub",
            location=reference.repository,
            revision=revision,
            sha256=digests,
            processing="" if ready else "converted to f16 OpenVINO",
        )
        graph = snapshot if ready else convert_folder(snapshot, scratch, progress)
        return publish_openvino_folder(
            graph, snapshot, name, revision[:_REVISION_DIGITS], source, _licence(listing), writer, progress
        )


class _Hub:
    """One repository on the hub; every failure comes out as a ModelError."""

    def __init__(self, repository: str, environment: Mapping[str, str]) -> None:
        self._repository = repository
        self._endpoint = environment.get("HF_ENDPOINT")
        self._token = environment.get("HF_TOKEN")

    def listing(self, revision: str | None) -> ModelInfo:
        """The files at a revision, and the commit it stands for."""
        api = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token)
        with self._hub_errors():
            return api.model_info(self._repository, revision=revision, timeout=_TIMEOUT_S, files_metadata=True)

    def download(self, file: RepoSibling, revision: str, folder: Path, progress: ProgressSink) -> None:
        """Fetch one file into a folder and prove it against the listing."""
        with self._hub_errors():
            huggingface_hub.hf_hub_download(
                self._repository,
                file.rfilename,
                revision=revision,
                local_dir=folder,
                endpoint=self._endpoint,
                token=self._token,
                tqdm_class=_bar_class(file, progress),
            )
        if not _matches(folder / file.rfilename, file):
            problem = f"{file.rfilename} of {self._repository} is not the file that the hub lists"
            raise SourceCorrupt(problem, "Pull again; if it stays so, ask whoever runs your mirror of the hub.")

    @contextlib.contextmanager
    def _hub_errors(self) -> Iterator[None]:
        try:
            yield
        except hub_errors.HFValidationError as error:
            raise SourceNotFound(f"{self._repository!r} is no repository name", "Write hf:org/name.") from error
        except hub_errors.RevisionNotFoundError as error:
            raise SourceNotFound(f"{self._repository} has no such revision", "Check what follows the @.") from error
        except hub_errors.GatedRepoError as error:
            advice = "Accept the model's terms on its page, and set HF_TOKEN to your token."
            raise AccessDenied(f"{self._repository} is gated", advice) from error
        except hub_errors.RepositoryNotFoundError as error:
            advice = "Check the spelling; for a private repository set HF_TOKEN."
            raise SourceNotFound(f"the hub shows no repository {self._repository}", advice) from error
        except hub_errors.HfHubHTTPError as error:
            raise self._refused(error) from error
        except (_TRANSPORT_ERROR, hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled) as error:
            where = self._endpoint or "the Hugging Face hub"
            advice = "Check the network, HTTPS_PROXY, HF_ENDPOINT and HF_HUB_OFFLINE; or download the model elsewhere "
            raise NetworkUnreachable(f"{where} cannot be reached", advice + "and pull its folder.") from error

    def _refused(self, error: hub_errors.HfHubHTTPError) -> ModelError:
        status = error.response.status_code
        if status in (401, 403):
            return AccessDenied(f"the hub refused access to {self._repository}", "Set HF_TOKEN to a valid token.")
        return DownloadFailed(f"the hub answered {status} for {self._repository}", "Pull again later.")


def _wanted_files(repository: str, listing: ModelInfo) -> list[RepoSibling]:
    files = {file.rfilename: file for file in listing.siblings or []}
    top = [name for name in files if "/" not in name]
    if GRAPH in files and GRAPH_DATA in files:
        weights = [GRAPH, GRAPH_DATA]
    else:
        weights = [name for name in top if name.endswith(".safetensors")]
        if not weights:
            raise UnsupportedModel(
                f"{repository} has neither an OpenVINO model nor safetensors weights",
                "Pick another repository of the model; GGUF files are pulled from disk, as ./FILE.gguf.",
            )
        require_converter()
    text = [name for name in top if any(fnmatch(name, pattern) for pattern in _TEXT_FILES)]
    return [files[name] for name in sorted({*weights, *text})]


def _stored_version(
    name: str, location: str, revision: str, repository: ModelRepository, progress: ProgressSink
) -> ModelVersion | None:
    for version in repository.versions(name):
        source = version.manifest.source
        if (source.kind, source.location) != ("hub", location):
            raise NameTaken(
                f"the name {name} belongs to a model from {source.location}",
                f"Remove {name} before you pull {PREFIX}{location}.",
            )
        if source.revision == revision:
            try:
                version.verify(progress)
            except ModelError:
                return None
            return version
    return None


def _licence(listing: ModelInfo) -> str:
    return next((tag.removeprefix("license:") for tag in listing.tags or [] if tag.startswith("license:")), "")


def _matches(path: Path, file: RepoSibling) -> bool:
    if file.lfs is not None:
        return sha256_of(path, lambda _done: None) == file.lfs.sha256
    if file.blob_id is None:
        return True
    content = path.read_bytes()
    git_name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return git_name == file.blob_id


def _bar_class(file: RepoSibling, progress: ProgressSink) -> Any:
    """A progress bar class for the hub library that draws nothing and tells `progress`."""
    plain: Any = importlib.import_module("tqdm").tqdm

    def start(bar: Any, *positional: Any, **named: Any) -> None:
        plain.__init__(bar, *positional, **{**named, "disable": True})
        bar.done = int(named.get("initial") or 0)

    def update(bar: Any, count: float | None = 1) -> None:
        bar.done += int(count or 0)
        progress(Progress(Stage.DOWNLOADING, file.rfilename, bar.done, file.size))

    return type("Bar", (plain,), {"__init__": start, "update": update})
