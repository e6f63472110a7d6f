"""Whatever ids a model draws, decoding them one at a time gives the text of decoding them at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.models.version import ModelVersion
from inferwire_server.text.detokenizer import TokenDecoder, decode_all
from inferwire_server.text.output import OutputText
from inferwire_server.text.stop_matcher import StopStrings
from inferwire_server.text.tokenizer import Tokenizer

from tests.real_model import smollm2_f16, smollm2_repository  # noqa: F401
from tests.server.text import small_tokenizers
from tests.server.text.small_tokenizers import loaded, plain

BYTE_LEVEL = loaded(small_tokenizers.byte_level())
BYTE_FALLBACK = loaded(small_tokenizers.byte_fallback())
IDS = st.lists(st.integers(0, BYTE_LEVEL.vocabulary_size - 1), max_size=40)


def bytes_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.piece_bytes(i) for i in token_ids if i not in tokenizer.control_ids)


def release_all(output: OutputText, token_ids: Sequence[int], draw: random.Random) -> tuple[str, int, str | None]:
    """Text, tokens and stop string of a whole output pushed in random cuts; each release is checked on the way."""
    text, tokens, position = "", 0, 0
    while position < len(token_ids) and output.stop is None:
        size = draw.randint(1, 4)
        released = output.push(token_ids[position : position + size])
        assert released.stop is not None or bool(released.text) == bool(released.token_count)
        text, tokens, position = text + released.text, tokens + released.token_count, position + size
    released = output.finish()
    return text + released.text, tokens + released.token_count, output.stop


@pytest.mark.case("H08")
@given(IDS, st.integers(0, 2**32))
def test_random_bytes_decode_as_they_do_at_once(token_ids: list[int], seed: int) -> None:
    text, tokens, _ = release_all(OutputText(BYTE_LEVEL.decoder()), token_ids, random.Random(seed))
    assert text == bytes_of(BYTE_LEVEL, token_ids).decode(errors="replace")
    assert tokens == len(token_ids)


@given(IDS, st.integers(0, 40), st.integers(0, 2**32))
def test_what_is_resumed_at_any_release_continues_exactly(token_ids: list[int], cut: int, seed: int) -> None:
    stops = StopStrings(["qu", "e ", "\ufffd\ufffd"])
    whole = release_all(OutputText(BYTE_LEVEL.decoder(), stops), token_ids, random.Random(seed))
    first = OutputText(BYTE_LEVEL.decoder(), stops)
    held = first.push(token_ids[:cut])
    second = OutputText(BYTE_LEVEL.decoder(), stops, prior_token_ids=token_ids[: held.token_count])
    text, tokens, stop = release_all(second, token_ids[held.token_count :], random.Random(seed))
    assert (held.text + text, held.token_count + tokens, stop) == whole


@pytest.mark.case("H08")
@given(IDS)
def test_no_text_given_out_ends_inside_a_character(token_ids: list[int]) -> None:
    output = OutputText(BYTE_LEVEL.decoder())
    held: list[int] = []
    for token_id in token_ids:
        held.append(token_id)
        released = output.push([token_id])
        sent, held = held[: released.token_count], held[released.token_count :]
        assert not released.text or decode_all(BYTE_LEVEL.decoder(), sent).endswith(released.text[-1])


@pytest.mark.parametrize("seed", range(64))
def test_text_of_pieces_and_bytes_decodes_as_at_once_wherever_it_is_text(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choices("the quick é龜🫠\u0301\n  ", k=60)).lstrip()
    ids = BYTE_FALLBACK.encode(text)
    whole = plain(small_tokenizers.byte_fallback()).decode(ids)
    assert release_all(OutputText(BYTE_FALLBACK.decoder()), ids, draw)[0] == whole


@pytest.mark.case("H08")
@given(st.lists(st.integers(0, BYTE_FALLBACK.vocabulary_size - 1), max_size=60), st.integers(0, 2**32))
def test_random_pieces_and_bytes_never_break_the_stream(token_ids: list[int], seed: int) -> None:
    text, tokens, _ = release_all(OutputText(BYTE_FALLBACK.decoder()), token_ids, random.Random(seed))
    text.encode()
    assert tokens == len(token_ids)


@pytest.mark.real_model
def test_random_ids_of_the_real_model_decode_as_the_library_decodes_them(smollm2_f16: ModelVersion) -> None:  # noqa: F811
    definition = smollm2_f16.tokenizer_path.read_bytes()
    tokenizer, library, draw = Tokenizer(definition), plain(definition), random.Random(7)
    for _ in range(300):
        ids = draw.choices(range(tokenizer.vocabulary_size), k=40)
        decoder: TokenDecoder = tokenizer.decoder()
        assert decode_all(decoder, ids) == library.decode(ids, skip_special_tokens=True)
