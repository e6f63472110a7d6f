"""Every metric that servers and clients can show: what rules and dashboards may name."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from inferwire.metrics import PrometheusObserver
from inferwire.observation import AttemptEnded, BreakerChanged, CallEnded
from inferwire_server.domain.engine import EngineHealth, EngineLoad, EngineState, StepTotals
from inferwire_server.observability.gpus import GpuReading
from inferwire_server.observability.metrics import Metrics
from inferwire_server.observability.server_gauges import Snapshot
from inferwire_server.rpc.status import CODES, REASONS
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

OF_PROMETHEUS = frozenset({"up", "ALERTS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """By the name of a series."""

    labels: dict[str, frozenset[str]]
    edges: dict[str, frozenset[str]]
    """Values of `le` of each histogram's buckets."""


@functools.cache
def declared() -> Declared:
    """From the registries themselves, with everything in them that is absent until it is known."""
    labels: dict[str, frozenset[str]] = {}
    edges: dict[str, frozenset[str]] = {}
    for sample in (*_of_a_server(), *_of_a_client()):
        labels[sample.name] = labels.get(sample.name, frozenset()) | sample.labels.keys()
        if "le" in sample.labels:
            edges[sample.name] = edges.get(sample.name, frozenset()) | {sample.labels["le"]}
    return Declared(labels=labels, edges=edges)


def server_registry() -> CollectorRegistry:
    """A registry as a server's, in which nothing is missing: GPUs, budgets, certificates, a price."""
    metrics = Metrics("model@1", codes=CODES, reasons=REASONS, tenants=("acme",), price_per_hour=3.6)
    metrics.bind_gauges(_snapshot)
    metrics.bind_gpus(
        lambda: [
            GpuReading(gpu=0, memory_used_bytes=6e10, memory_total_bytes=8e10, utilization_ratio=0.9, power_watts=520.0)
        ]
    )
    metrics.bind_budgets(lambda: [("acme", 950, 1000)])
    metrics.security.certificate_expires("server", time.time() + 90 * 86400)
    metrics.security.reload_failed("certificate")
    metrics.quotas.refused("acme", "requests")
    metrics.quotas.warned("acme")
    metrics.calls.method("/inferwire.v1.InferenceService/Generate", "unary").started()
    metrics.generations.output_tokens.inc()
    return metrics.registry


def _of_a_server() -> list[Sample]:
    return [sample for family in server_registry().collect() for sample in family.samples]


def _of_a_client() -> list[Sample]:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    method = "/inferwire.v1.InferenceService/Generate"
    observer.attempt_ended(
        AttemptEnded(
            method=method,
            region="eu",
            endpoint="a:50051",
            number=0,
            is_resume=False,
            code="OK",
            reason="",
            duration_s=1.0,
            first_token_s=0.1,
        )
    )
    observer.call_ended(
        CallEnded(
            method=method,
            code="OK",
            reason="",
            attempts=2,
            resumed_at=(3,),
            longest_resume_s=0.5,
            duration_s=1.0,
            trace_id="",
        )
    )
    observer.breaker_changed(BreakerChanged(region="eu", endpoint="a:50051", state="open"))
    return [sample for family in registry.collect() for sample in family.samples]


def _snapshot() -> Snapshot:
    return Snapshot(
        waiting=1,
        waiting_prompt_tokens=10,
        running=2,
        engine=EngineLoad(
            running=2, kv_utilization=0.5, step_time_s=0.02, batch_size=2, steps=StepTotals(100, 2.0, 250)
        ),
        health=EngineHealth(state=EngineState.READY, last_progress=time.monotonic()),
        is_started=True,
        is_ready=True,
        is_draining=False,
        kv_blocks=1000,
        kv_block_tokens=16,
        tenants={"acme": (1, 2)},
    )
