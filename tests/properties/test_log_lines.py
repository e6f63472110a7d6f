"""Log lines are JSON, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.observability.logs import UtcStamp, json_line

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(
    st.dictionaries(st.text(), VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text(), VALUES, max_size=2))
)
def test_a_line_read_back_is_the_event(event: dict[str, Any]) -> None:
    line = json_line(None, "info", event)

    assert json.loads(line) == event
    assert "\n" not in line


def test_what_json_has_no_word_for_is_told_by_its_repr() -> None:
    assert json.loads(json_line(None, "info", {"path": {1}})) == {"path": "{1}"}


def test_times_are_utc_with_microseconds() -> None:
    stamped = UtcStamp()(None, "info", {"event": "x"})

    day, _, clock = stamped["timestamp"].partition("T")
    assert (len(day), len(clock), clock[-1]) == (10, 16, "Z")
