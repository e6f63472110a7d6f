"""An interrupted output is continued by appending where that is exact, and made again and compared elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from inferwire_server.domain.generation import Continuation, Grammar, GrammarKind, Sampling
from inferwire_server.engines.openvino.options import Profile
from inferwire_server.engines.openvino.resumption import Replay, continuation_of

from tests.engines.openvino.requests import GREEDY, a_request

SAMPLED = Sampling(temperature=1.0, seed=11)
REGEX = Grammar(kind=GrammarKind.REGEX, source="[a-f]+")


@pytest.mark.parametrize(
    ("changes", "under_exact", "under_fast"),
    [
        pytest.param({"sampling": GREEDY}, "PREFILLED", "PREFILLED", id="greedy"),
        pytest.param(
            {"sampling": Sampling(temperature=0.0, repetition_penalty=1.3)}, "PREFILLED", "PREFILLED", id="repetition"
        ),
        pytest.param({"sampling": SAMPLED}, "REGENERATED", "PREFILLED", id="sampled"),
        pytest.param({"grammar": REGEX}, "REGENERATED", "REGENERATED", id="grammar"),
        pytest.param({"resumed_token_ids": ()}, "FRESH", "FRESH", id="nothing to resume"),
    ],
)
def test_how_an_output_is_continued(changes: dict[str, Any], under_exact: str, under_fast: str) -> None:
    request = a_request([1], **{"resumed_token_ids": [5, 6]} | changes)

    assert continuation_of(request, Profile.EXACT) is Continuation[under_exact]
    assert continuation_of(request, Profile.FAST) is Continuation[under_fast]


def test_a_replay_swallows_what_is_held_and_nothing_more() -> None:
    replay = Replay([1, 2, 3])

    assert replay.swallow([1, 2]) == 2
    assert not replay.is_complete
    assert replay.swallow([3, 4]) == 1
    assert replay.is_complete
    assert replay.swallow([9]) == 0


def test_a_replay_notices_the_first_difference() -> None:
    replay = Replay([1, 2, 3])

    assert replay.swallow([1, 9]) is None
