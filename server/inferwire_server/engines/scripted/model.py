"""The scripted model as files: a byte tokenizer, a ChatML template, and the facts a server publishes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from inferwire_server.domain.model import ModelDefaults, ModelFacts
from inferwire_server.engines.scripted.vocabulary import (
    BEGINNING_ID,
    CONTROL_TOKENS,
    END_TOKEN_IDS,
    VOCABULARY_SIZE,
)

MODEL_NAME = "scripted"
MODEL_VERSION = "1"
"""Changes whenever the same request would produce other tokens."""
CHAT_ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "<|bos|>"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ScriptedModelFiles:
    """Where `write_scripted_model` put the parts."""

    tokenizer: Path
    chat_template: Path


@cache
def tokenizer_json() -> str:
    """The tokenizer in the format of the `tokenizers` library; the id of a byte's token is the byte."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_level_alphabet())}
    tokenizer = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BEGINNING_ID)]
    )
    return tokenizer.to_str(pretty=True)


def scripted_model_facts(max_context_tokens: int) -> ModelFacts:
    """Say what a server that serves the scripted model publishes."""
    tokenizer_digest = _digest(tokenizer_json())
    template_digest = _digest(CHAT_TEMPLATE)
    return ModelFacts(
        name=MODEL_NAME,
        version=MODEL_VERSION,
        fingerprint=_digest(f"{MODEL_NAME} {MODEL_VERSION} {tokenizer_digest} {template_digest}"),
        tokenizer_digest=tokenizer_digest,
        chat_template_digest=template_digest,
        engine=f"{MODEL_NAME} {MODEL_VERSION}",
        max_context_tokens=max_context_tokens,
        vocabulary_size=VOCABULARY_SIZE,
        end_token_ids=END_TOKEN_IDS,
        chat_roles=CHAT_ROLES,
        defaults=ModelDefaults(),
    )


def write_scripted_model(folder: Path) -> ScriptedModelFiles:
    """Write `tokenizer.json` and `chat_template.jinja` into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ScriptedModelFiles(tokenizer=folder / "tokenizer.json", chat_template=folder / "chat_template.jinja")
    files.tokenizer.write_text(tokenizer_json(), encoding="utf-8")
    files.chat_template.write_text(CHAT_TEMPLATE, encoding="utf-8")
    return files


def _byte_level_alphabet() -> list[str]:
    """The printable stand-in of each byte that byte-level tokenizers use, as published with GPT-2."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in kept else next(stand_ins)) for byte in range(256)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
