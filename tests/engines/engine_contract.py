"""The conformance suite: what every engine promises to the layers above it."""

from __future__ import annotations

from tests.engines.promises.caching import CachingPromises
from tests.engines.promises.cancels import CancelPromises
from tests.engines.promises.capacity import CapacityPromises
from tests.engines.promises.determinism import DeterminismPromises
from tests.engines.promises.lifecycle import LifecyclePromises
from tests.engines.promises.logprobs import LogprobPromises
from tests.engines.promises.resume import ResumePromises
from tests.engines.promises.sampling import SamplingPromises
from tests.engines.promises.stops import StopPromises
from tests.engines.promises.streams import StreamPromises
from tests.engines.promises.structured import StructuredPromises


class EngineContract(
    StreamPromises,
    DeterminismPromises,
    CancelPromises,
    CapacityPromises,
    StopPromises,
    SamplingPromises,
    LogprobPromises,
    CachingPromises,
    StructuredPromises,
    ResumePromises,
    LifecyclePromises,
):
    """Subclass per engine and give what `EngineHarness` asks for; what an engine lacks is skipped by its name."""
