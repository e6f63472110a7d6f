"""The errors that callers catch."""

from __future__ import annotations

import inspect
import pickle

import inferwire.errors
import pytest
from inferwire.errors import (
    AllRegionsDown,
    AttemptReport,
    Code,
    DeadlineExceeded,
    Exhausted,
    FieldViolation,
    InferwireError,
    InvalidRequest,
    ModelMismatch,
    Overloaded,
    PartialOutput,
    Reason,
    ServerFault,
    StreamBroken,
    StreamLost,
    Unavailable,
    error_class,
)
from inferwire.v1 import error_pb2


def drawn(error: type[InferwireError], indent: str = "") -> list[str]:
    """The tree below a class, as the module draws it."""
    lines = []
    children = error.__subclasses__()
    for child in children:
        is_last = child is children[-1]
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{child.__name__}")
        lines += drawn(child, indent + ("    " if is_last else "│   "))
    return lines


def test_the_tree_in_the_docstring_is_the_family() -> None:
    tree = inspect.getdoc(inferwire.errors)

    assert tree is not None
    assert tree.split("\n\n")[1].splitlines() == ["InferwireError", *drawn(InferwireError)]


def test_reasons_are_those_of_the_contract() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name, _ in error_pb2.ErrorReason.items()}

    assert {str(reason) for reason in Reason} == names - {"UNSPECIFIED"}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_class_of_its_own_meaning(reason: Reason) -> None:
    assert error_class(Code.UNKNOWN, reason) not in (InferwireError, StreamBroken)


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (Code.RESOURCE_EXHAUSTED, Reason.OVERLOADED, Overloaded),
        (Code.RESOURCE_EXHAUSTED, "", Exhausted),
        (Code.RESOURCE_EXHAUSTED, "REASON_OF_A_NEWER_SERVER", Exhausted),
        (Code.FAILED_PRECONDITION, Reason.MODEL_MISMATCH, ModelMismatch),
        (Code.FAILED_PRECONDITION, "", InferwireError),
        (Code.UNAVAILABLE, "", Unavailable),
        (Code.DEADLINE_EXCEEDED, "", DeadlineExceeded),
        (Code.INTERNAL, "", ServerFault),
        (Code.OUT_OF_RANGE, "", InvalidRequest),
    ],
)
def test_the_reason_chooses_the_class_and_else_the_code(
    code: Code, reason: str, expected: type[InferwireError]
) -> None:
    assert error_class(code, reason) is expected


def test_an_error_bears_its_classs_code_unless_told_another() -> None:
    assert Overloaded("full").code == "RESOURCE_EXHAUSTED"
    assert Overloaded("full", code=Code.UNAVAILABLE).code is Code.UNAVAILABLE


def test_text_so_far_is_that_of_the_first_output() -> None:
    error = StreamLost("lost", partial_outputs=[PartialOutput(1, "b"), PartialOutput(0, "The")])

    assert error.text_so_far == "The"
    assert StreamLost("lost").text_so_far == ""


def test_errors_survive_pickling_as_task_queues_need() -> None:
    error = StreamLost(
        "lost",
        reason=Reason.ENGINE_DOWN,
        started=True,
        field_violations=[FieldViolation("prompt", "empty")],
        partial_outputs=[PartialOutput(0, "The")],
        events_so_far=3,
        attempts=[AttemptReport("eu", "eu/a", "UNAVAILABLE", "ENGINE_DOWN")],
    )

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here

    assert (type(copy), str(copy), vars(copy)) == (StreamLost, "lost", vars(error))


def test_a_total_outage_names_every_region_and_survives_pickling() -> None:
    error = AllRegionsDown("nowhere to send", regions={"eu": "BREAKER_OPEN", "us": "NOT_SERVING"}, retry_after_s=1.0)

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here

    assert copy.regions == {"eu": "BREAKER_OPEN", "us": "NOT_SERVING"}
    assert (copy.code, copy.retry_after_s) == ("UNAVAILABLE", 1.0)
