"""What names a generation's prompt, its content and its part of the prefix cache."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace

from inferwire_server.domain.generation import Generation


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """Names a rendered prompt: sha256 over the ids as little-endian 32-bit words."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}I", *token_ids)).digest()


def cache_namespace(tenant: str, salt: str) -> str:
    """Length-framed, so that no salt can name another tenant's namespace."""
    return f"{len(tenant)}:{tenant}:{salt}"


def content_digest(generation: Generation) -> bytes:
    """Names what a generation asks for (contract rule 6): without attempt, resume, waiting, and the seed."""
    content = (
        generation.model,
        generation.prompt_token_ids,
        generation.max_output_tokens,
        replace(generation.sampling, seed=0),
        generation.stop.strings,
        sorted(generation.stop.token_ids),
        generation.stop.min_output_tokens,
        generation.stop.ignore_end_of_sequence,
        generation.stop.include_match,
        generation.count,
        generation.grammar,
        generation.top_logprobs,
        generation.prompt_top_logprobs,
        generation.skip_special_tokens,
        generation.cache_salt,
        generation.bypass_cache,
    )
    return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).digest()
