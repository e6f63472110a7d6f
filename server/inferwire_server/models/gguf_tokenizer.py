"""`tokenizer.json` from the metadata of a GGUF file, for byte-level BPE vocabularies.

Written by hand rather than by the tokenizers library, so that one model has one digest whatever the library's release.
`unk_token` stays unset: with it, text outside the vocabulary would become a control id.
"""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from inferwire_server.models.errors import SourceCorrupt, UnsupportedModel
from inferwire_server.models.gguf_model import GgufModel

_CONTROL, _USER_DEFINED = 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _byte_level(use_regex=True),
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)),
    "qwen2": _sequence(_split(_QWEN2), _byte_level(use_regex=False)),
    "llama-bpe": _sequence(_split(_LLAMA3), _byte_level(use_regex=False)),
}
"""By the value of `tokenizer.ggml.pre`."""


def tokenizer_json(model: GgufModel) -> str:
    """Write the tokenizer. Raises UnsupportedModel for another kind, SourceCorrupt when the parts do not fit."""
    pre = _pre_tokenizer_name(model)
    tokens: list[str] = model.required("tokenizer.ggml.tokens")
    kinds: list[int] = model.optional("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges: list[str] = model.required("tokenizer.ggml.merges")
    _refuse_misfit(model, tokens, kinds)
    text = json.dumps(_document(model, pre, tokens, kinds, merges), ensure_ascii=False, separators=(",", ":"))
    _load(model, text)
    return text


def adds_beginning_token(model: GgufModel) -> bool:
    """Whether encoding puts the beginning token first; where the file is silent, its tokenizer kind decides."""
    stated = model.optional("tokenizer.ggml.add_bos_token")
    return model.optional("tokenizer.ggml.pre") == "llama-bpe" if stated is None else bool(stated)


def _pre_tokenizer_name(model: GgufModel) -> str:
    kind, pre = model.required("tokenizer.ggml.model"), model.optional("tokenizer.ggml.pre") or "default"
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS or model.optional("tokenizer.ggml.add_eos_token"):
        raise UnsupportedModel(
            f"{model.path.name} has a tokenizer of kind {kind!r} ({pre!r}), which cannot be rebuilt from its metadata",
            "Put the GGUF file and the model's own tokenizer.json into one folder, and pull the folder. "
            f"Rebuilt are byte-level vocabularies of kind {', '.join(_PRE_TOKENIZERS)}.",
        )
    return pre


def _document(model: GgufModel, pre: str, tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(number, tokens[number], special=kind == _CONTROL)
            for number, kind in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(model, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _added_token(number: int, content: str, *, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, **plain, "special": special}


def _post_processor(model: GgufModel, tokens: list[str]) -> dict[str, Any] | None:
    if not adds_beginning_token(model):
        return None
    number = int(model.required("tokenizer.ggml.bos_token_id"))
    token = tokens[number]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    a, b = ({"Sequence": {"id": side, "type_id": 0}} for side in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, a],
        "pair": [first, a, b],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _refuse_misfit(model: GgufModel, tokens: list[str], kinds: list[int]) -> None:
    rows = model.vocabulary_size
    if not len(tokens) == len(kinds) == len(set(tokens)) == rows:
        raise SourceCorrupt(
            f"{model.path.name}: {len(tokens)} tokens ({len(set(tokens))} distinct, {len(kinds)} with a type) "
            f"for {rows} rows of the embedding",
            "Fetch or export the file again.",
        )


def _load(model: GgufModel, text: str) -> None:
    try:
        tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        problem = f"{model.path.name}: its tokenizer does not load: {error}"
        raise SourceCorrupt(problem, "Fetch or export the file again.") from error
