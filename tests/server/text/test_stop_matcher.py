"""Stop strings are found wherever the text is cut, and no longer a tail is held back than could begin one."""

from __future__ import annotations

import pytest
from inferwire_server.text.stop_matcher import StopMatch, StopMatcher, StopStrings

from tests.server.text.strings import STRINGS


def matcher(*strings: str) -> StopMatcher:
    return StopMatcher(StopStrings(strings))


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_match_over_the_border_of_two_pieces_is_found(cut: int) -> None:
    search = matcher("STOP")
    text = "go STOP now"
    found = search.feed(text[:cut]) or search.feed(text[cut:])
    assert found == StopMatch("STOP", 3, 7)


def test_of_several_strings_the_one_that_is_complete_first_wins() -> None:
    assert matcher("abcdef", "cd").feed("abcdef") == StopMatch("cd", 2, 4)


def test_of_strings_that_end_together_the_longest_wins() -> None:
    assert matcher("c", "bc", "abc").feed("xabc") == StopMatch("abc", 1, 4)


def test_a_failed_beginning_may_contain_the_beginning_of_a_match() -> None:
    assert matcher("aab").feed("aaab") == StopMatch("aab", 1, 4)


def test_a_string_inside_the_beginning_of_another_is_found() -> None:
    assert matcher("abcd", "bc").feed("abce") == StopMatch("bc", 1, 3)


@pytest.mark.parametrize(
    ("text", "held"),
    [("", 0), ("x", 0), ("x<", 1), ("x<en", 3), ("x<en<", 1), ("x<end", 4), ("x<endx", 0), ("\n", 1), ("\n<", 1)],
)
def test_just_the_tail_that_could_begin_a_match_is_held(text: str, held: int) -> None:
    search = matcher("<end>", "\n\n")
    search.feed(text)
    assert search.held == held


def test_a_string_that_may_not_stop_yet_is_passed_over_for_good() -> None:
    search = matcher("stop", "stopping")
    assert search.feed("a stop", may_stop=False) is None
    assert search.held == 4
    assert search.feed(" and a stop") == StopMatch("stop", 13, 17)


def test_a_passed_over_string_that_begins_nothing_else_is_not_held() -> None:
    search = matcher("stop")
    search.feed("a stop", may_stop=False)
    assert search.held == 0


@pytest.mark.parametrize("name", STRINGS)
def test_stop_strings_of_any_script_are_found(name: str) -> None:
    text = STRINGS[name]
    search = matcher(text)
    assert [search.feed(character) for character in "go" + text[:-1]] == [None] * (len(text) + 1)
    assert search.feed(text[-1]) == StopMatch(text, 2, 2 + len(text))


def test_forms_that_only_look_alike_do_not_match() -> None:
    assert matcher(STRINGS["S10"]).feed(STRINGS["S10 composed"]) is None


def test_characters_with_a_meaning_in_patterns_are_ordinary() -> None:
    assert matcher("[^]", "\\", "-", ".*").feed("a+b]^[^].") == StopMatch("[^]", 5, 8)


def test_one_set_of_strings_serves_many_searches() -> None:
    stops = StopStrings(["ab"])
    first, second = StopMatcher(stops), StopMatcher(stops)
    first.feed("a")
    assert second.feed("b") is None
    assert first.feed("b") == StopMatch("ab", 0, 2)


def test_an_empty_stop_string_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopStrings(["a", ""])


def test_without_strings_nothing_matches() -> None:
    search = matcher()
    assert search.feed("anything") is None
    assert search.held == 0
