"""What a request's prompt tells without being computed: how long it is, and what caches know it by."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from inferwire.v1 import generation_pb2

SESSION_KEY = "x-inferwire-session"
"""Metadata with a key of the caller's own: calls that share it go to the same server while that is not too busy."""
_DIGEST_BYTES = 16


def affinity_key(
    request: generation_pb2.GenerateRequest, metadata: Sequence[tuple[str, str | bytes]], prefix_bytes: int
) -> bytes | None:
    """A key of 16 bytes; None for a prompt shorter than `prefix_bytes` without a session, or where that is 0."""
    for name, value in metadata:
        if name == SESSION_KEY:
            return _digest(value.encode() if isinstance(value, str) else value)
    beginning = _beginning(request, prefix_bytes) if prefix_bytes else b""
    return _digest(beginning) if beginning else None


def prompt_length(request: generation_pb2.GenerateRequest) -> int:
    """About its bytes: characters of text, four for each token id."""
    kind = request.WhichOneof("input")
    if kind == "prompt":
        return len(request.prompt)
    if kind == "token_ids":
        return 4 * len(request.token_ids.ids)
    return sum(len(message.text) for message in request.chat.messages)


def _beginning(request: generation_pb2.GenerateRequest, length: int) -> bytes:
    """The first bytes of the prompt; empty when it is shorter."""
    kind = request.WhichOneof("input")
    if kind == "prompt":
        # A character has four bytes at most, and few prompts are worth encoding whole.
        text = request.prompt[:length].encode()
    elif kind == "token_ids":
        text = b"".join(token.to_bytes(4, "little") for token in request.token_ids.ids[: length // 4])
    else:
        pieces, size = [], 0
        for message in request.chat.messages:
            if size >= length:
                break
            pieces.append(f"{message.role}\n{message.text[:length]}\n".encode())
            size += len(pieces[-1])
        text = b"".join(pieces)
    return text[:length] if len(text) >= length else b""


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()
