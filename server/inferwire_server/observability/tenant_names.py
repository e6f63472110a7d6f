"""Which tenants have a name on the metrics page: those that an operator has listed, and nobody else's word counts."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"


class TenantNames:
    """Maps a tenant to its label."""

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self._listed = frozenset(listed)
        self.labels = (*sorted(self._listed - {OTHER}), OTHER)
        """Every value that the label has."""

    def label(self, tenant: str) -> str:
        """The tenant itself if it is listed."""
        return tenant if tenant in self._listed else OTHER
