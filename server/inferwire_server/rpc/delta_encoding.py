"""A token's message on the wire, without a message object: building one costs more than all else between log and gRPC.

The bytes are those of the generated classes, field by field in the order of their numbers (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence

_ONE_BYTE = [bytes((number,)) for number in range(0x80)]


def encoded_delta(output_index: int, token_offset: int, token_count: int, text: str, token_ids: Sequence[int]) -> bytes:
    """A StreamGenerateResponse with a Delta; what is 0 or empty is left out, as proto3 has it."""
    body = b""
    if output_index:
        body = b"\x08" + _varint(output_index)
    if token_offset:
        body += b"\x10" + _varint(token_offset)
    if token_count:
        body += b"\x18" + _varint(token_count)
    if text:
        characters = text.encode()
        body += b"\x22" + _varint(len(characters)) + characters
    if token_ids:
        packed = b"".join(map(_varint, token_ids))
        body += b"\x2a" + _varint(len(packed)) + packed
    return b"\x0a" + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
