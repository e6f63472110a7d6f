"""Ids and text move together: what a reader's ids decode to is exactly what it has."""

from __future__ import annotations

import pytest
from inferwire_server.text.output import OutputText, Released
from inferwire_server.text.stop_matcher import StopStrings

from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import loaded
from tests.server.text.strings import STRINGS
from tests.server.text.test_detokenizer import byte_ids

TOKENIZER = loaded(small_tokenizers.byte_level())
WORDS = [TOKENIZER.encode(word)[0] for word in ("the", " quick", " brown", " fox")]


def output(
    *stops: str, include_match: bool = False, min_output_tokens: int = 0, prior: list[int] | None = None
) -> OutputText:
    return OutputText(
        TOKENIZER.decoder(),
        StopStrings(stops) if stops else None,
        include_match=include_match,
        min_output_tokens=min_output_tokens,
        prior_token_ids=prior or [],
    )


def releases(text: OutputText, ids: list[int]) -> list[Released]:
    return [*(text.push([token_id]) for token_id in ids), text.finish()]


def test_the_words_of_the_test_are_single_tokens() -> None:
    assert TOKENIZER.decode(WORDS) == "the quick brown fox"


def test_without_stops_each_token_goes_out_with_its_text() -> None:
    assert releases(output(), WORDS) == [
        Released(1, "the"),
        Released(1, " quick"),
        Released(1, " brown"),
        Released(1, " fox"),
        Released(0, ""),
    ]


def test_several_tokens_pushed_together_go_out_together() -> None:
    assert output().push(WORDS) == Released(4, "the quick brown fox")


def test_a_token_that_ends_inside_a_character_waits_for_the_rest_of_it() -> None:
    ids = byte_ids("é!".encode())
    assert releases(output(), ids) == [Released(0, ""), Released(2, "é"), Released(1, "!"), Released(0, "")]


def test_the_whole_tokens_of_a_push_go_out_before_the_open_one() -> None:
    text = output()
    assert text.push([*WORDS, *byte_ids("é".encode())[:1]]) == Released(4, "the quick brown fox")
    assert text.finish() == Released(1, "\ufffd")


def test_a_token_without_text_waits_for_text_to_go_with() -> None:
    assert releases(output(), [2, 2, WORDS[0], 2]) == [
        Released(0, ""),
        Released(0, ""),
        Released(3, "the"),
        Released(0, ""),
        Released(1, ""),
    ]


def test_tokens_that_may_begin_a_stop_string_wait() -> None:
    assert releases(output(" quick red"), WORDS) == [
        Released(1, "the"),
        Released(0, ""),
        Released(2, " quick brown"),
        Released(1, " fox"),
        Released(0, ""),
    ]


def test_a_token_waits_whole_when_its_end_may_begin_a_stop_string() -> None:
    assert releases(output("ck red"), WORDS)[:3] == [Released(1, "the"), Released(0, ""), Released(2, " quick brown")]


def test_what_waits_for_a_stop_string_goes_out_at_the_end() -> None:
    assert releases(output("fox and"), WORDS)[-2:] == [Released(0, ""), Released(1, " fox")]


def test_a_stop_string_cuts_the_text_and_takes_its_tokens_along() -> None:
    text = output("ick br")
    assert [text.push([token_id]) for token_id in WORDS[:3]] == [
        Released(1, "the"),
        Released(0, ""),
        Released(2, " qu", "ick br"),
    ]
    assert text.stop == "ick br"


def test_a_stop_string_may_be_kept() -> None:
    text = output("ick br", include_match=True)
    assert text.push(WORDS) == Released(3, "the quick br", "ick br")


def test_tokens_behind_a_stop_count_for_nothing() -> None:
    text = output("the")
    assert text.push(WORDS) == Released(1, "", "the")
    assert text.push(WORDS) == Released(0, "", "the")
    assert text.finish() == Released(0, "", "the")


def test_a_stop_inside_a_token_that_ends_inside_a_character_ends_there() -> None:
    first, second = byte_ids("é".encode())
    text = output("brown")
    assert text.push([*WORDS[:3], first, second]) == Released(3, "the quick ", "brown")


def test_a_stop_string_in_the_replaced_tail_is_found_at_the_end() -> None:
    text = output("\ufffd")
    assert text.push(byte_ids("é".encode())[:1]) == Released(0, "")
    assert text.finish() == Released(1, "", "\ufffd")


def test_stop_strings_before_the_least_number_of_tokens_are_passed_over() -> None:
    text = output("the", "brown", "fox", min_output_tokens=4)
    assert releases(text, WORDS)[:4] == [
        Released(1, "the"),
        Released(1, " quick"),
        Released(1, " brown"),
        Released(1, " ", "fox"),
    ]


def test_the_last_of_the_least_number_of_tokens_may_stop() -> None:
    assert output("brown", min_output_tokens=3).push(WORDS) == Released(3, "the quick ", "brown")


def test_a_resumed_output_goes_on_where_the_reader_is() -> None:
    text = output(prior=WORDS[:2])
    assert text.push(WORDS[2:]) == Released(2, " brown fox")


def test_a_stop_string_over_the_border_of_a_resumed_output_is_found_and_nothing_is_recalled() -> None:
    text = output("ick br", prior=WORDS[:2])
    assert text.push(WORDS[2:]) == Released(1, "", "ick br")


def test_a_kept_stop_string_over_the_border_is_completed() -> None:
    text = output("ick br", include_match=True, prior=WORDS[:2])
    assert text.push(WORDS[2:]) == Released(1, " br", "ick br")


def test_prior_tokens_that_hold_a_stop_string_have_ended_the_output_already() -> None:
    text = output("ick br", prior=WORDS[:3])
    assert text.stop == "ick br"
    assert text.push(WORDS[3:]) == Released(0, "", "ick br")


def test_prior_tokens_count_for_the_least_number_of_tokens() -> None:
    assert output("fox", min_output_tokens=4, prior=WORDS[:3]).push(WORDS[3:]) == Released(1, " ", "fox")


def test_a_character_over_the_border_of_a_resumed_output_comes_whole() -> None:
    first, second = byte_ids("é".encode())
    assert output(prior=[*WORDS, first]).push([second]) == Released(1, "é")


@pytest.mark.case("H09")
@pytest.mark.parametrize("name", STRINGS)
def test_any_text_is_cut_at_any_stop_string_and_no_part_of_it_was_sent(name: str) -> None:
    text = "so " + STRINGS[name] * 2
    ids = byte_ids(text.encode())
    for start in range(0, len(text) - 1, 1 + len(text) // 40):
        stop = text[start : start + 3]
        sent = releases(output(stop), ids)
        assert "".join(release.text for release in sent) == text[: text.index(stop)]
        tokens = sum(release.token_count for release in sent)
        assert tokens == len(text[: text.index(stop) + len(stop)].encode())
