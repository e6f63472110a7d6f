"""The scripted engine: deterministic, without weights, with every field of the port; for tests and demonstrations."""

from inferwire_server.engines.scripted.clock import LoopClock, ManualClock, StepClock
from inferwire_server.engines.scripted.engine import ScriptedEngine
from inferwire_server.engines.scripted.model import scripted_model_facts, write_scripted_model
from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.plan_file import PlanFileError, read_plans
from inferwire_server.engines.scripted.plans import Die, Echo, Fail, Freeze, Plan, PlanBook, Refuse

__all__ = [
    "Die",
    "Echo",
    "Fail",
    "Freeze",
    "LoopClock",
    "ManualClock",
    "Plan",
    "PlanBook",
    "PlanFileError",
    "Refuse",
    "ScriptedEngine",
    "ScriptedOptions",
    "StepClock",
    "read_plans",
    "scripted_model_facts",
    "write_scripted_model",
]
