"""The audit trail of one server, if its settings ask for one."""

from __future__ import annotations

from inferwire_server.security.audit import AuditObserver, AuditTrail
from inferwire_server.security.audit_files import AuditFiles
from inferwire_server.settings import Settings, SettingsError


def open_trail(settings: Settings, observer: AuditObserver) -> AuditTrail | None:
    """None without a folder. Raises SettingsError for one that cannot be used."""
    if settings.audit_dir is None:
        return None
    try:
        files = AuditFiles(settings.audit_dir, retention_days=settings.audit_retention_days)
    except OSError as error:
        raise SettingsError(f"audit_dir: {settings.audit_dir} cannot be used: {error.strerror}") from None
    return AuditTrail(files, observer)
