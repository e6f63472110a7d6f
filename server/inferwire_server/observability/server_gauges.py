"""What the server is like now, as gauges: one snapshot for each scrape. What is unknown is absent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferwire_server.domain.engine import EngineHealth, EngineLoad, EngineState
from inferwire_server.observability.tenant_names import TenantNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read on the serving loop."""

    waiting: int
    waiting_prompt_tokens: int
    running: int
    engine: EngineLoad
    health: EngineHealth
    is_started: bool
    is_ready: bool
    is_draining: bool
    kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    tenants: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Waiting and running generations of each tenant that has any."""
    read_at: float = field(default_factory=time.monotonic)


class ServerGauges(Collector):
    """All of them bear the model's name; `inferwire_engine_<name>` is what only one kind of engine reports."""

    def __init__(self, model: str, tenants: TenantNames, read: Callable[[], Snapshot]) -> None:
        self._model = model
        self._tenants = tenants
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, in the scraping thread."""
        now = self._read()
        engine, health = now.engine, now.health
        silence = None if health.last_progress is None else max(0.0, now.read_at - health.last_progress)
        is_up = health.state in (EngineState.READY, EngineState.DEGRADED)
        for name, text, value in (
            ("waiting_generations", "Generations waiting for the engine.", now.waiting),
            ("running_generations", "Generations on the engine.", now.running),
            ("waiting_prompt_tokens", "Prompt tokens waiting for the engine.", now.waiting_prompt_tokens),
            ("kv_cache_usage_ratio", "Share of KV cache blocks in use, 0 to 1.", engine.kv_utilization),
            ("kv_cache_blocks", "KV cache blocks of the engine.", now.kv_blocks),
            ("kv_cache_block_tokens", "Tokens in a KV cache block.", now.kv_block_tokens),
            ("batch_size", "Sequences in the latest engine step.", engine.batch_size),
            ("step_seconds", "Duration of the latest engine step.", engine.step_time_s),
            ("started", "1 once the model has been warm.", now.is_started),
            ("ready", "1 when readiness is SERVING.", now.is_ready),
            ("draining", "1 from the beginning of a drain.", now.is_draining),
            ("engine_up", "1 when the engine is ready or slow, 0 when it is starting or dead.", is_up),
            ("engine_silence_seconds", "Since the engine's latest step or idle heartbeat.", silence),
        ):
            if value is not None:
                yield self._gauge(name, text, value)
        yield self._counter("engine_restarts", "Engine restarts since the process started.", health.restarts)
        if engine.steps is not None:
            yield self._counter("steps", "Steps of the engine.", engine.steps.steps)
            yield self._counter("steps_seconds", "Duration of all steps together.", engine.steps.seconds)
            yield self._counter("steps_sequences", "Sequences in all steps together.", engine.steps.sequences)
        yield from self._tenant_gauges(now.tenants)
        for name, value in sorted(engine.extra.items()):
            yield self._gauge(f"engine_{name}", "Reported by the engine.", value)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"inferwire_{name}", text, labels=("model",))
        family.add_metric((self._model,), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"inferwire_{name}", text, labels=("model",))
        family.add_metric((self._model,), value)
        return family

    def _tenant_gauges(self, tenants: Mapping[str, tuple[int, int]]) -> Iterator[Metric]:
        totals = dict.fromkeys(self._tenants.labels, (0, 0))
        for tenant, (waiting, running) in tenants.items():
            label = self._tenants.label(tenant)
            totals[label] = totals[label][0] + waiting, totals[label][1] + running
        for place, name in enumerate(("waiting", "running")):
            text = f"{name.capitalize()} generations by tenant."
            family = GaugeMetricFamily(f"inferwire_tenant_{name}_generations", text, labels=("model", "tenant"))
            for label, counts in totals.items():
                family.add_metric((self._model, label), counts[place])
            yield family


class TrtllmGauges(Collector):
    """The gauges of the Gateway API Inference Extension's model server contract, as TensorRT-LLM's server names them.

    https://github.com/kubernetes-sigs/gateway-api-inference-extension, docs/proposals/003-model-server-protocol
    """

    def __init__(self, model: str, read: Callable[[], Snapshot]) -> None:
        self._model = model
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape of the alias page."""
        now = self._read()
        for name, text, value in (
            ("num_requests_waiting", "Requests waiting for the engine.", now.waiting),
            ("num_requests_running", "Requests on the engine.", now.running),
            ("kv_cache_utilization", "Share of KV cache blocks in use, 0 to 1.", now.engine.kv_utilization),
            ("kv_cache_tokens_per_block", "Tokens in a KV cache block.", now.kv_block_tokens),
            ("kv_cache_max_blocks", "KV cache blocks of the engine.", now.kv_blocks),
        ):
            if value is not None:
                family = GaugeMetricFamily(f"trtllm_{name}", text, labels=("model_name",))
                family.add_metric((self._model,), value)
                yield family
