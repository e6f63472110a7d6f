"""Small tokenizers of every kind that the server must treat differently, as the bytes of a `tokenizer.json`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import tokenizers
from inferwire_server.text.tokenizer import Tokenizer
from inferwire_server.text.vocabulary import BYTE_ALPHABET
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTROL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
UNKNOWN = "<unk>"
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the sea is far away from the hills.",
    "  def main():\n\t\treturn  1\n\n",
    "<|im_start|>user\nHello there!<|im_end|>\n<|im_start|>assistant\n",
    "naïve café, ďábelské ódy, 아름다운 여자, नमस्ते, 👩‍👩‍👧",
]
MISSING_BYTE = 0x04


@cache
def byte_level(*, with_bos: bool = False) -> bytes:
    """Byte-level BPE like GPT-2's and its many descendants, without the byte 0x04."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [character for character, byte in BYTE_ALPHABET.items() if byte != MISSING_BYTE]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=list(CONTROL), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", pair=None, special_tokens=[("<|bos|>", 0)]
        )
    return tokenizer.to_str().encode()


@cache
def byte_fallback(prepend_scheme: str = "first") -> bytes:
    """Pieces of text with `▁` for spaces, and a token for each byte of what has no piece, like Llama 2's."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = [UNKNOWN, "<s>", "</s>"]
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[*specials, *byte_tokens], show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:2], trainer)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][: len(specials)]
    definition["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return json.dumps(definition).encode()


@cache
def word_pieces() -> bytes:
    """BERT's kind: lower case, no spaces kept, and a token for the unknown."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=[UNKNOWN, "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:1], trainer)
    return tokenizer.to_str().encode()


@cache
def unigrams() -> bytes:
    """A vocabulary that holds a control token among its ordinary pieces."""
    pieces = [(UNKNOWN, 0.0), ("<s>", 0.0), *((character, -2.0) for character in "<>sabc ")]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens([UNKNOWN, "<s>"])
    return tokenizer.to_str().encode()


@cache
def forgetful() -> bytes:
    """A vocabulary that drops what it does not know."""
    return tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).to_str().encode()


def changed(definition: bytes, **parts: Any) -> bytes:
    """The same definition with some of its parts replaced."""
    return json.dumps({**json.loads(definition), **parts}).encode()


def with_stripping_token(definition: bytes, text: str) -> bytes:
    """The same tokenizer with one more control token, which takes the white space around it along."""
    tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False, lstrip=True, rstrip=True)])
    return tokenizer.to_str().encode()


def plain(definition: bytes) -> tokenizers.Tokenizer:
    """The library's own tokenizer, to which control text is control."""
    return tokenizers.Tokenizer.from_str(definition.decode())


def loaded(definition: bytes) -> Tokenizer:
    """The server's tokenizer."""
    return Tokenizer(definition)


BYTE_FALLBACK_BYTES = range(3, 3 + 256)
"""The ids of `byte_fallback`'s byte tokens, by byte."""
