"""Ids become whole characters: nothing half known is given out, nothing is lost at the end."""

from __future__ import annotations

import pytest
from inferwire_server.text.detokenizer import TokenDecoder, WindowDecoder, decode_all

from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import BYTE_FALLBACK_BYTES, loaded, plain
from tests.server.text.strings import STRINGS

BYTE_LEVEL = loaded(small_tokenizers.byte_level())
BYTE_FALLBACK = loaded(small_tokenizers.byte_fallback())


def byte_ids(data: bytes) -> list[int]:
    """One byte-level token for each byte."""
    by_piece = {BYTE_LEVEL.piece_bytes(token_id): token_id for token_id in range(BYTE_LEVEL.vocabulary_size)}
    return [by_piece[bytes([byte])] for byte in data]


def texts_of(decoder: TokenDecoder, token_ids: list[int]) -> list[str]:
    return [*map(decoder.push, token_ids), decoder.finish()]


def test_a_character_in_several_tokens_comes_whole_with_the_last_of_them() -> None:
    assert texts_of(BYTE_LEVEL.decoder(), byte_ids("a🫠b".encode())) == ["a", "", "", "", "🫠", "b", ""]


def test_a_decoder_knows_whether_a_character_is_half_known() -> None:
    decoder = BYTE_LEVEL.decoder()
    states = []
    for token_id in byte_ids("é!".encode()):
        decoder.push(token_id)
        states.append(decoder.is_whole)
    assert states == [False, True, True]


@pytest.mark.case("H07")
@pytest.mark.parametrize("name", STRINGS)
def test_byte_by_byte_every_text_comes_out_as_it_is(name: str) -> None:
    assert "".join(texts_of(BYTE_LEVEL.decoder(), byte_ids(STRINGS[name].encode()))) == STRINGS[name]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xf0\x9f\xab", "\ufffd"),
        (b"\xf0\x9fA", "\ufffdA"),
        (b"\xff\xfeA\xc3", "\ufffd\ufffdA\ufffd"),
        (b"a\xef\xbf\xbdb", "a\ufffdb"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
    ids=["unfinished", "cut short", "no beginnings", "a real U+FFFD", "an encoded surrogate"],
)
def test_bytes_that_are_no_character_become_replacements_as_in_a_whole_decode(data: bytes, text: str) -> None:
    assert data.decode(errors="replace") == text
    assert "".join(texts_of(BYTE_LEVEL.decoder(), byte_ids(data))) == text


def test_control_tokens_have_their_text_only_when_asked_for() -> None:
    ids = [1, *byte_ids(b"hi"), 2]
    assert decode_all(BYTE_LEVEL.decoder(), ids) == "hi"
    assert decode_all(BYTE_LEVEL.decoder(skip_special_tokens=False), ids) == "<|im_start|>hi<|im_end|>"


def test_a_silent_control_token_inside_a_character_does_not_break_it() -> None:
    first, second = byte_ids("é".encode())
    assert decode_all(BYTE_LEVEL.decoder(), [first, 2, second]) == "é"


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    assert decode_all(BYTE_LEVEL.decoder(), [*byte_ids(b"a"), 50_000, *byte_ids(b"b")]) == "ab"


@pytest.mark.parametrize("name", STRINGS)
def test_pieces_and_bytes_decode_as_the_library_decodes_them_at_once(name: str) -> None:
    ids = BYTE_FALLBACK.encode(STRINGS[name])
    whole = plain(small_tokenizers.byte_fallback()).decode(ids, skip_special_tokens=True)
    assert decode_all(BYTE_FALLBACK.decoder(), ids) == whole


def test_word_pieces_are_joined_without_their_marks() -> None:
    tokenizer = loaded(small_tokenizers.word_pieces())
    decoder = tokenizer.decoder()
    texts = texts_of(decoder, tokenizer.encode("the foxes jump"))
    assert "".join(texts) == "the foxes jump"
    assert texts[0] == "the"


def test_a_run_of_bytes_that_is_no_text_is_held_for_a_bounded_number_of_tokens() -> None:
    decoder = BYTE_FALLBACK.decoder()
    garbage = [BYTE_FALLBACK_BYTES[0xFF]] * 1000
    longest_silence = silence = 0
    for token_id in garbage:
        silence = 0 if decoder.push(token_id) else silence + 1
        longest_silence = max(longest_silence, silence)
    assert longest_silence < WindowDecoder.MAX_HELD


def test_a_tail_that_is_no_text_comes_out_at_the_end() -> None:
    decoder = BYTE_FALLBACK.decoder()
    assert decoder.push(BYTE_FALLBACK_BYTES[0xF0]) == ""
    assert not decoder.is_whole
    assert decoder.finish() == "\ufffd"


def test_control_tokens_between_words_do_not_cost_a_space() -> None:
    the = BYTE_FALLBACK.encode("the")
    assert decode_all(BYTE_FALLBACK.decoder(), [*the, *[2] * 20, *the]) == "the the"


def test_each_token_of_a_long_output_is_decoded_with_a_few_others_only() -> None:
    lengths: list[int] = []

    def decode(token_ids: object) -> str:
        lengths.append(len(list(token_ids)))  # type: ignore[call-overload]
        return "\ufffd" * lengths[-1]

    decoder = WindowDecoder(decode)
    for token_id in range(500):
        decoder.push(token_id)
    assert max(lengths) <= 2 * WindowDecoder.MAX_HELD
