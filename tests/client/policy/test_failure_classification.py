"""What a status means before anything is decided."""

from __future__ import annotations

import pytest
from inferwire.errors import Code, LocalReason, Reason
from inferwire.policy.failure import Failure, FailureKind, Pushback, read_pushback, status_failure


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses"),
        (Code.UNAVAILABLE, "Socket closed"),
        (Code.UNAVAILABLE, "upstream connect error or disconnect/reset before headers"),
        (Code.INTERNAL, "Received RST_STREAM with error code 2"),
        (Code.CANCELLED, "Received RST_STREAM with error code 8"),
        (Code.CANCELLED, ""),
        (Code.UNKNOWN, "Stream removed"),
    ],
)
def test_transport_losses_are_recognised_direct_and_through_a_proxy(code: Code, details: str) -> None:
    assert status_failure(code, details=details).kind is FailureKind.CONNECTION


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (Code.INTERNAL, "something broke"),
        (Code.UNKNOWN, "Unexpected <class 'KeyError'>"),
        (Code.RESOURCE_EXHAUSTED, "Sent message larger than max"),
    ],
)
def test_other_nameless_statuses_are_answers(code: Code, details: str) -> None:
    assert status_failure(code, details=details).kind is FailureKind.STATUS


@pytest.mark.parametrize("pushback", [Pushback(0.5), Pushback(None)], ids=["after a while", "never"])
def test_who_pushes_back_has_answered(pushback: Pushback) -> None:
    failure = status_failure(Code.UNAVAILABLE, pushback=pushback)

    assert (failure.kind, failure.hint_s) == (FailureKind.STATUS, pushback.hint_s)


def test_a_reason_of_the_service_makes_it_an_answer() -> None:
    failure = status_failure(Code.INTERNAL, reason=Reason.INTERNAL, details="connection reset")

    assert failure.kind is FailureKind.STATUS


@pytest.mark.parametrize(
    ("trailer", "retry_info_s", "pushback"),
    [
        (None, None, None),
        (None, 0.25, Pushback(0.25)),
        ("500", None, Pushback(0.5)),
        ("500", 9.0, Pushback(0.5)),
        ("0", None, Pushback(0.0)),
        ("-1", 9.0, Pushback(None)),
        ("soon", 9.0, Pushback(None)),
        ("", None, Pushback(None)),
        ("²", None, Pushback(None)),
    ],
)
def test_the_pushback_trailer_goes_before_retry_info(
    trailer: str | None, retry_info_s: float | None, pushback: Pushback | None
) -> None:
    assert read_pushback(trailer, retry_info_s) == pushback


@pytest.mark.parametrize(
    ("failure", "name"),
    [
        (Failure(kind=FailureKind.STATUS, code=Code.UNAVAILABLE, reason=Reason.DRAINING), Reason.DRAINING),
        (Failure(kind=FailureKind.CONNECTION, code=Code.UNAVAILABLE), LocalReason.CONNECTION_LOST),
        (Failure(kind=FailureKind.STALL, code=Code.UNAVAILABLE), LocalReason.STALLED),
        (Failure(kind=FailureKind.STATUS, code=Code.INTERNAL), Code.INTERNAL),
    ],
)
def test_a_failure_is_shown_by_its_most_telling_name(failure: Failure, name: str) -> None:
    assert str(failure) == name
