"""Everything that can go wrong with a stored model, as the person at the command line sees it.

ModelError
├── InvalidModelName
├── ModelNotStored
├── ManifestInvalid
├── VerificationFailed
├── UnsupportedModel
├── SourceNotFound
├── SourceCorrupt
├── NameTaken
├── StorageFull
├── StorageUnavailable
├── DownloadFailed
│   ├── PackageNotFound
│   ├── AccessDenied
│   ├── NetworkUnreachable
│   └── DownloaderMissing
├── ConversionFailed
│   └── ConverterMissing
└── DoesNotFit
"""

from __future__ import annotations


class ModelError(Exception):
    """A failure of the model store: what happened, and what to do about it."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}\n{advice}")
        self.problem = problem
        """One sentence, with the file, number or address at fault."""
        self.advice = advice
        """What the reader can do, as an imperative."""


class InvalidModelName(ModelError):
    """A model or version name that cannot be a folder name on every system."""


class ModelNotStored(ModelError):
    """No such model or version in the repository."""


class ManifestInvalid(ModelError):
    """`manifest.json` is absent, unreadable, or written by another release."""


class VerificationFailed(ModelError):
    """A file of the version is missing, changed, or not in the manifest."""


class UnsupportedModel(ModelError):
    """A model that no engine here can run, or whose text side is unknown."""


class SourceNotFound(ModelError):
    """The source names nothing that can be pulled."""


class SourceCorrupt(ModelError):
    """The source's bytes are not the expected ones, or cannot be read."""


class NameTaken(ModelError):
    """The model name belongs to another source already."""


class StorageFull(ModelError):
    """The disk has no room for the model."""


class StorageUnavailable(ModelError):
    """The model folder cannot be read or written."""


class DownloadFailed(ModelError):
    """A download ended without the file."""


class PackageNotFound(DownloadFailed):
    """The package index was reached but does not offer the package."""


class AccessDenied(DownloadFailed):
    """The index or hub refused the credentials, or wants some."""


class NetworkUnreachable(DownloadFailed):
    """The index or hub could not be reached."""


class DownloaderMissing(DownloadFailed):
    """The tool that downloads is not installed."""


class ConversionFailed(ModelError):
    """The weights could not be converted."""


class ConverterMissing(ConversionFailed):
    """The optional packages that convert weights are not installed."""


class DoesNotFit(ModelError):
    """Weights and KV cache need more memory than there is."""
