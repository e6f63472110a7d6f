"""Tenants of one server: their file, read again when it changes, and the ledger of their quotas."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from inferwire_server.domain.caller import Caller
from inferwire_server.observability.faults import record_fault
from inferwire_server.observability.metrics import Metrics
from inferwire_server.security.quota import Quota
from inferwire_server.security.quotas import QuotaLedger
from inferwire_server.security.tenants import ContentPolicy, TenantPolicy, Tenants, load_tenants
from inferwire_server.security.watched_files import WatchedFiles
from inferwire_server.settings import SettingsError

_log = structlog.get_logger("inferwire.security")


class Tenancy:
    """Without a file nobody has limits. Raises SettingsError for a file that cannot be used."""

    def __init__(self, file: Path | None, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watched = None if file is None else self._watch(file)
        self._unlisted = Tenants()
        self.quotas = QuotaLedger(self._quota, self)
        metrics.bind_budgets(lambda: self.quotas.budgets(time.time()))

    def policy(self, tenant: str) -> TenantPolicy:
        """What holds for a tenant now."""
        tenants = self._unlisted if self._watched is None else self._watched.current
        return tenants.policy(tenant)

    def content_policy(self, tenant: str) -> ContentPolicy:
        """What may be written down of what a tenant says."""
        return self.policy(tenant).content

    def largest_output(self, caller: Caller) -> int | None:
        """Most output tokens of one output; None without a limit."""
        return self._quota(caller.tenant).max_output_tokens

    async def follow(self) -> None:
        """Read the file again from time to time, for ever."""
        while self._watched is not None:
            await asyncio.sleep(self._watched.interval_s)
            try:
                if await asyncio.to_thread(self._watched.refresh):
                    self.quotas.reload()
            except Exception as fault:  # noqa: BLE001 the next file still counts
                record_fault(fault)

    def quota_refused(self, tenant: str, limit: str) -> None:
        """From the ledger."""
        self._metrics.quotas.refused(tenant, limit)

    def budget_nearly_spent(self, tenant: str, spent: int, budget: int) -> None:
        """From the ledger."""
        _log.warning("monthly budget nearly spent", tenant=tenant, tokens=spent, budget=budget)
        self._metrics.quotas.warned(tenant)

    def _quota(self, tenant: str) -> Quota:
        return self.policy(tenant).quota

    def _watch(self, file: Path) -> WatchedFiles[Tenants]:
        try:
            return WatchedFiles("tenants", [file], load_tenants, self._metrics.security.reload_failed)
        except OSError as error:
            raise SettingsError(f"tenants: {file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError(f"tenants: {file}: {error}") from None
