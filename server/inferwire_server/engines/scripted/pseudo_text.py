"""Endless words that look like text, the same for the same key, at any position without computing those before it."""

from __future__ import annotations

from hashlib import blake2b

BLOCK_TOKENS = 64
"""Tokens that are made at a time."""
ALPHABET = b"etaoin shrdlucmfwypvbgkjqxz.,-'\n"
"""The 32 bytes that words are made of."""

_WORDS = (
    b"the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    b"one you were all her she there would their we him been has when who will no more if out so up said what its "
    b"about than into them can only other time new some could these two may first then do any like my now over such "
    b"our man me even most made after also did many off before must well back through years where much your way down "
    b"should because long each just state those people too mr how little good world make very year still see own work "
    b"men day get here between both life being under three never know same last another while us might great old go"
).split()
_WORD_OF_BYTE = [
    _WORDS[byte % len(_WORDS)] + (b"," if byte >= 246 else b"." if byte >= 236 else b"") for byte in range(256)
]
_FILLERS = (
    b"",
    b"a",
    b"so",
    b"sea",
    b"wind",
    b"water",
    b"island",
    b"morning",
    b"mountain",
    b"lighthous",
    b"lighthouse",
)


def words(key: bytes, block: int) -> bytes:
    """The block's `BLOCK_TOKENS` bytes: whole words, a space before each."""
    digest = blake2b(key, digest_size=64, salt=b"words", person=block.to_bytes(8, "little")).digest()
    text = bytearray()
    for byte in digest:
        word = _WORD_OF_BYTE[byte]
        room = BLOCK_TOKENS - len(text)
        left = room - len(word) - 1
        if left < 2 and left != 0:
            # The word would leave less than the shortest next one needs: take one that fills the block.
            word = _FILLERS[room - 1]
        text += b" " + word
        if len(text) == BLOCK_TOKENS:
            break
    return bytes(text)


def noise(key: bytes, block: int) -> bytes:
    """One uniform byte for each token of the block, independent of the words."""
    return blake2b(key, digest_size=64, salt=b"noise", person=block.to_bytes(8, "little")).digest()
