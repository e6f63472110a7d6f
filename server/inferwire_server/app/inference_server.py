"""The composition root: builds one server around one model, starts it, drains it, stops it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

import structlog

from inferwire_server.app.auditing import open_trail
from inferwire_server.app.security import Security
from inferwire_server.app.served_model import ServedModel
from inferwire_server.app.tenancy import Tenancy
from inferwire_server.domain.errors import Draining, EngineDown
from inferwire_server.domain.generation import Generation
from inferwire_server.observability.gpus import GpuReader, GpuSampler
from inferwire_server.observability.loop_reading import LoopReading
from inferwire_server.observability.metrics import Metrics
from inferwire_server.observability.metrics_page import MetricsPage
from inferwire_server.observability.server_gauges import Snapshot
from inferwire_server.rpc.auditing import CallAudit
from inferwire_server.rpc.health import Health
from inferwire_server.rpc.inference import InferenceServicer
from inferwire_server.rpc.interceptors import CallInterceptor
from inferwire_server.rpc.listening import CannotListen, listen, listening_address
from inferwire_server.rpc.models import ModelServicer
from inferwire_server.rpc.operations import OperationsServicer
from inferwire_server.rpc.server import SERVICES, Servicers, build_health_server, build_server
from inferwire_server.rpc.server_info import ServerInfo
from inferwire_server.rpc.status import CODES, REASONS
from inferwire_server.scheduling.admission import Admission
from inferwire_server.scheduling.admission_policy import AdmissionPolicy, Bounds
from inferwire_server.scheduling.cache_sharing import SoleTenant
from inferwire_server.scheduling.canary import Canary
from inferwire_server.scheduling.drain_rate import DrainRate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.intake import Intake
from inferwire_server.scheduling.lifecycle import RESTART_HINT_S, Lifecycle
from inferwire_server.scheduling.load_report import LoadReporter
from inferwire_server.scheduling.session import Session
from inferwire_server.scheduling.sessions import SessionBounds, Sessions
from inferwire_server.security.exposure import network_host
from inferwire_server.settings import Settings
from inferwire_server.text.output import OutputText
from inferwire_server.text.stop_matcher import StopStrings

_log = structlog.get_logger("inferwire.server")
_RELEASE_GRACE_S = 5.0
_FLUSH_GRACE_S = 0.5
_WARM_UP_TIMEOUT_S = 120.0
_QUIET_S = 0.05
_LONGEST_UNREST_S = 0.3


class ServerError(Exception):
    """The server cannot run; the message says what to do."""


class InferenceServer:
    """`await start()`, then `await until_stopped()`; `drain()` begins the end."""

    def __init__(self, settings: Settings, model: ServedModel) -> None:
        engine = model.engine
        self.settings = settings
        self.model = model
        self.port = 0
        """The port in use, once started."""
        self.health_port: int | None = None
        """The same of the port for health alone; None without one."""
        self.failure = ""
        """Why it ends by itself: an engine that cannot come back; empty when it does not."""
        self.lifecycle = Lifecycle(engine.health)
        self.metrics = Metrics(
            model.facts.qualified_name,
            codes=CODES,
            reasons=REASONS,
            tenants=settings.metrics_tenants,
            price_per_hour=settings.price_per_hour,
        )
        self._tenancy = Tenancy(settings.tenants, self.metrics)
        self._queue: FairQueue[Session] = FairQueue(weights=settings.tenant_weights)
        reporter = LoadReporter(engine, self._queue)
        self._admission = Admission(
            engine,
            self.lifecycle,
            self._queue,
            reporter,
            self._make_policy,
            self._tenancy.quotas,
            max_queue_time_s=settings.max_queue_time,
            refuse_late=settings.refuse_late,
            sole_tenant=None if settings.prefix_caching == "shared" else SoleTenant(),
        )
        self.intake = Intake(
            model.facts,
            engine,
            model.encoder,
            model.pool,
            self.lifecycle,
            largest_output=self._tenancy.largest_output,
        )
        self.sessions = Sessions(
            self.intake,
            self._admission,
            self.metrics.generations,
            self._make_text,
            SessionBounds(
                stall_time_s=settings.stall_time,
                replay_time_s=settings.replay_time,
                replay_bytes=settings.replay_bytes,
            ),
        )
        engine.subscribe(self._look_for_loss)
        self.health = Health(SERVICES)
        self.lifecycle.subscribe(lambda: self.health.ready(self.lifecycle.is_ready))
        self._snapshots = LoopReading(self._snapshot)
        self.metrics.bind_gauges(self._snapshots)
        self._gpus = GpuSampler(GpuReader())
        self.metrics.bind_gpus(lambda: self._gpus.latest)
        self._canary = Canary(
            engine,
            self.lifecycle,
            prompt_token_ids=model.tokenizer.encode("a"),
            interval_s=settings.canary_interval,
            timeout_s=settings.canary_timeout,
            observe=self.metrics.canary,
        )
        self._security = Security(settings, self.metrics.security, (model.facts.name, model.facts.qualified_name))
        self._audit_trail = open_trail(settings, self.metrics.audit)
        self._interceptor = CallInterceptor(self._security.doorkeeper, self.metrics.calls, self._audit())
        self._server = build_server(
            Servicers(
                inference=InferenceServicer(
                    self.intake, self.sessions, self._info(), reporter, model.tokenizer.piece_bytes
                ),
                models=ModelServicer(self.intake),
                operations=OperationsServicer(
                    self.sessions,
                    self.lifecycle,
                    engine,
                    reporter,
                    started_at=time.time(),
                    is_insecure=self._security.is_insecure,
                    drain=self.drain,
                ),
                health=self.health,
            ),
            [self._interceptor],
            max_request_bytes=settings.max_request_bytes,
            max_response_bytes=settings.max_response_bytes,
            min_ping_interval_s=settings.min_ping_interval,
            with_reflection=settings.reflection,
        )
        self._health_server = None
        if settings.health_port is not None:
            # Of its own: an interceptor keeps handlers by method, and this port has health's alone.
            of_health = CallInterceptor(self._security.doorkeeper, self.metrics.calls)
            self._health_server = build_health_server(self.health, [of_health])
        self._metrics_page: MetricsPage | None = None
        self._background: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._is_in_haste = False
        self._stopped = asyncio.Event()

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return listening_address(self.settings.host, self.port)

    @property
    def metrics_port(self) -> int | None:
        """None when the page is off."""
        return self._metrics_page.port if self._metrics_page else None

    async def start(self) -> None:
        """Listen, then load and warm the model: health tells which. Raises ServerError or what the engine raises."""
        self._listen()
        await self._server.start()
        if self._health_server is not None:
            await self._health_server.start()
        _log.info(
            "listening",
            address=self.address,
            metrics_port=self.metrics_port,
            health_port=self.health_port,
            model=self.model.facts.qualified_name,
        )
        self._background += self._security.begin()
        self._background.append(asyncio.create_task(self._tenancy.follow(), name="tenants"))
        self._background.append(asyncio.create_task(self._sweep(), name="sweep"))
        await asyncio.to_thread(self.model.verify)
        await self.model.engine.start()
        await self._canary.probe(_WARM_UP_TIMEOUT_S)
        self.health.started()
        self.lifecycle.warm()
        self._background.append(asyncio.create_task(self._canary.run(), name="canary"))
        _log.info("ready", engine=self.model.facts.engine, fingerprint=self.model.facts.fingerprint[:12])

    def drain(self, limit_s: float | None = None) -> None:
        """Begin to stop: not ready at once, refusing after the settle time, running work ends within the limit.

        Again: only a shorter limit changes anything.
        """
        limit_s = self.settings.drain_limit if limit_s is None else limit_s
        deadline = asyncio.get_running_loop().time() + limit_s
        if self._draining is None:
            _log.info("draining", running=self.sessions.num_live, limit_s=limit_s)
            settle_s = min(self.settings.drain_settle, limit_s)
            self.lifecycle.drain(settle_s=settle_s, now=time.monotonic())
            self._limit = asyncio.timeout_at(deadline)
            self._draining = asyncio.create_task(self._drain(self._limit, settle_s), name="drain")
        elif self._limit is not None and deadline < (self._limit.when() or deadline):
            self._limit.reschedule(deadline)

    def _look_for_loss(self) -> None:
        """An engine that is gone for good takes the process with it; whoever started the process replaces it."""
        health = self.model.engine.health()
        if not health.is_final or self.failure:
            return
        self.failure = health.reason
        _log.critical("engine lost", reason=health.reason)
        self.health.alive(False)
        self.sessions.end_all(lambda: EngineDown("the engine has died", retry_after_s=RESTART_HINT_S))
        self.drain(0.0)

    @property
    def is_draining(self) -> bool:
        return self._draining is not None

    async def until_stopped(self) -> None:
        """Return when a drain is complete. Raises what went wrong in it."""
        await self._stopped.wait()
        if self._draining is not None:
            await self._draining

    async def close(self) -> None:
        """Stop at once: running work ends with DRAINING."""
        self._is_in_haste = True
        self.drain(0.0)
        await self.until_stopped()

    def _listen(self) -> None:
        settings = self.settings
        beside = network_host(settings.host)
        try:
            self.port = listen(self._server, settings.host, settings.port, self._security.credentials())
            if self._health_server is not None and settings.health_port is not None:
                self.health_port = listen(self._health_server, beside, settings.health_port, None)
        except CannotListen as error:
            raise ServerError(f"cannot listen on {error}") from None
        if settings.metrics_enabled:
            self._snapshots.attach()
            alias = self.metrics.alias_registry if settings.metrics_alias else None
            try:
                self._metrics_page = MetricsPage.serve(self.metrics.registry, beside, settings.metrics_port, alias)
            except OSError as error:
                raise ServerError(
                    f"cannot serve metrics on {beside}:{settings.metrics_port}: {error.strerror}; "
                    "choose another by --metrics-port"
                ) from None
            self._gpus.start()

    async def _drain(self, limit: asyncio.Timeout, settle_s: float) -> None:
        with suppress(TimeoutError):
            async with limit:
                await asyncio.sleep(settle_s)
                await self.sessions.until_idle()
        self._limit = None
        self.sessions.end_all(lambda: Draining("the drain limit was reached", retry_after_s=0.0))
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_GRACE_S):
                await self.sessions.until_idle()
                await self.sessions.until_read()
        for task in self._background:
            task.cancel()
        self.health.close()
        try:
            await self._until_calls_cease()
            await asyncio.gather(self._server.stop(_FLUSH_GRACE_S), self._close_health(), self._close_metrics())
            await self.model.engine.shutdown(_FLUSH_GRACE_S)
            self.model.pool.close()
            _log.info("stopped")
        finally:
            if self._audit_trail is not None:
                await asyncio.to_thread(self._audit_trail.close)
            self._stopped.set()

    async def _until_calls_cease(self) -> None:
        """Go on refusing for a moment: a call that meets a closing gRPC server ends CANCELLED, without our hint."""
        if self._is_in_haste:
            return
        give_up_at = time.monotonic() + _LONGEST_UNREST_S
        while (now := time.monotonic()) < min(give_up_at, self._interceptor.latest_call_at + _QUIET_S):  # noqa: ASYNC110
            await asyncio.sleep(min(give_up_at, self._interceptor.latest_call_at + _QUIET_S) - now)

    async def _close_health(self) -> None:
        if self._health_server is not None:
            await self._health_server.stop(_FLUSH_GRACE_S)

    async def _close_metrics(self) -> None:
        self._gpus.stop()
        if self._metrics_page is not None:
            await asyncio.to_thread(self._metrics_page.close)

    async def _sweep(self) -> None:
        interval_s = max(0.05, min(1.0, self.settings.stall_time / 4))
        while True:
            await asyncio.sleep(interval_s)
            self.sessions.sweep()

    def _audit(self) -> CallAudit | None:
        if self._audit_trail is None:
            return None
        return CallAudit(self._audit_trail, self._tenancy.content_policy, model=self.model.facts.qualified_name)

    def _make_policy(self, drain_rate: DrainRate) -> AdmissionPolicy:
        capabilities = self.model.engine.capabilities
        bounds = Bounds(
            waiting_requests=self.settings.max_waiting,
            waiting_prompt_tokens=max(self.settings.max_waiting_tokens, capabilities.max_context_tokens),
        )
        return AdmissionPolicy(capabilities, bounds, drain_rate)

    def _make_text(self, generation: Generation, prior_token_ids: Sequence[int]) -> OutputText:
        stop = generation.stop
        return OutputText(
            self.model.tokenizer.decoder(skip_special_tokens=generation.skip_special_tokens),
            StopStrings(stop.strings) if stop.strings else None,
            include_match=stop.include_match,
            min_output_tokens=stop.min_output_tokens,
            prior_token_ids=prior_token_ids,
        )

    def _snapshot(self) -> Snapshot:
        engine, health = self.model.engine, self.model.engine.health()
        is_started = self.health.has_started
        capabilities = engine.capabilities if is_started else None
        return Snapshot(
            waiting=self._queue.waiting,
            waiting_prompt_tokens=self._queue.waiting_prompt_tokens,
            running=self._queue.running,
            engine=engine.load(),
            health=health,
            is_started=is_started,
            is_ready=self.lifecycle.is_ready,
            is_draining=self.is_draining,
            kv_blocks=capabilities.kv_blocks if capabilities else None,
            kv_block_tokens=capabilities.kv_block_tokens if capabilities else None,
            tenants={view.tenant: (view.waiting, view.running) for view in self._queue.tenants()},
        )

    def _info(self) -> ServerInfo:
        return ServerInfo(
            server_version=version("inferwire"),
            server_id=secrets.token_hex(8),
            region=self.settings.region,
            max_message_bytes=self.settings.max_request_bytes,
            min_ping_interval_s=self.settings.min_ping_interval,
        )
