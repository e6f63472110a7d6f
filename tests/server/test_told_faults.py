"""Faults are told with their stack and without their message, wherever they come from."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from inferwire_server.observability.logs import tell_exception
from inferwire_server.observability.tracebacks import without_messages

SAID = "what was said"
_FAIL_EVERYWHERE = f"""
import asyncio, logging, sys, threading
import structlog
from inferwire_server.observability.logs import configure_logs

configure_logs(sys.argv[1], "info")

def fail():
    raise ValueError("{SAID}")

class Dying:
    def __del__(self):
        fail()

async def forget_a_task():
    task = asyncio.ensure_future(asyncio.sleep(0))
    async def failing():
        fail()
    forgotten = asyncio.ensure_future(failing())
    await task
    await task
    await asyncio.sleep(0)
    del forgotten

asyncio.run(forget_a_task())
thread = threading.Thread(target=fail)
thread.start()
thread.join()
Dying()
try:
    fail()
except ValueError as error:
    logging.getLogger("some.library").exception("a library failed")
    structlog.get_logger().exception("ours failed")
    structlog.get_logger().error("given", exc_info=error)
"""


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 any will do
        return caught


def chained() -> BaseException:
    try:
        try:
            raise KeyError(SAID)
        except KeyError as inner:
            raise ValueError(SAID) from inner
    except ValueError as outer:
        return outer


@pytest.mark.parametrize(
    "error",
    [
        raised(ValueError(SAID)),
        raised(UnicodeDecodeError("utf-8", SAID.encode(), 0, 1, SAID)),
        raised(ExceptionGroup(SAID, [KeyError(SAID), ValueError(SAID)])),
        chained(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_message_is_told_and_every_type_is(error: BaseException) -> None:
    told = without_messages(error)
    assert SAID not in told
    assert type(error).__name__ in told
    assert "test_told_faults.py" in told


def test_what_led_to_an_exception_is_told_first() -> None:
    told = without_messages(chained())
    assert told.index("KeyError") < told.index("which led to") < told.rindex("ValueError")


def test_what_the_system_says_of_a_failed_call_is_told() -> None:
    assert without_messages(raised(FileNotFoundError(2, "No such file or directory", SAID))).endswith(
        "FileNotFoundError: No such file or directory"
    )


def test_an_event_without_an_exception_stays_as_it_is() -> None:
    assert tell_exception(None, "info", {"event": "x", "exc_info": None}) == {"event": "x"}


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_process_tells_of_every_fault_and_of_no_message(log_format: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FAIL_EVERYWHERE, log_format], capture_output=True, text=True, timeout=50, check=True
    )
    assert SAID not in done.stderr + done.stdout
    events = (
        "Task exception was never retrieved",
        "a thread failed",
        "an exception could not be raised",
        "a library failed",
        "ours failed",
        "given",
    )
    assert all(event in done.stderr for event in events)
    if log_format == "json":
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert [line["event"] for line in lines] == list(events)
        assert all("ValueError" in line["exception"] for line in lines)
