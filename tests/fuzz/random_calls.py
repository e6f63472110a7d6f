"""Random calls of every method of the contract, as bytes: well formed, strange, cut off, or no message at all."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from inferwire.v1 import inference_pb2, model_pb2, operations_pb2

from tests.fuzz.random_messages import RandomMessages

Metadata = tuple[tuple[str, str | bytes], ...]

_FILES = (inference_pb2, model_pb2, operations_pb2, health_pb2, reflection_pb2)
_METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_OFTEN = ("Generate", "StreamGenerate", "Tokenize", "Detokenize")
_WEIGHTS = [10 if method.name in _OFTEN else 1 for method in _METHODS.values()]
_ENDLESS = ("WatchLoad", "Watch")
ENDLESS_TIMEOUT_S = 0.2
GENEROUS_TIMEOUT_S = 30.0
"""Everything ends by itself long before."""

_NEEDED = frozenset({"model", "prompt", "messages", "role", "text", "max_output_tokens", "ids", "token_ids", "tenant"})
_PLAUSIBLE = {
    "model": ("scripted", "scripted@1"),
    "prompt": ("The quick brown fox", "hi", "naïve café"),
    "text": ("hello", "what?", " "),
    "role": ("user", "assistant", "system"),
    "max_output_tokens": (1, 2, 8, 20),
    "ids": tuple(range(256)),
    "token_ids": tuple(range(256)),
    "token_id": tuple(range(260)),
    "strings": ("e", "th", "\n", "the end"),
    "texts": ("yes", "no", "maybe"),
    "json_schema": ('{"type": "boolean"}', '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    "regex": ("[a-c]{1,6}", "yes|no"),
    "ebnf": ('root ::= "a" | "b"', 'start: "a"'),
    "request_id": ("a", "b", "c", "d"),
    "fingerprint": ("",),
    "tokenizer_digest": ("",),
    "chat_template_digest": ("",),
    "template_variables_json": ("{}", '{"tools": []}'),
    "temperature": (0.0, 0.7, 1.0),
    "seconds": (1, 5),
    "nanos": (0, 500_000_000),
    "service": ("", "inferwire.v1.InferenceService"),
    "page_token": ("",),
}
_UNPARSABLE = b"\x07"
"""A tag with a wire type that does not exist."""
_BAD_UTF8 = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"a\x80b")


@dataclass(frozen=True, slots=True)
class RandomCall:
    """One call, reproducible from (seed, index)."""

    seed: int
    index: int
    method: str
    payload: bytes
    metadata: Metadata
    timeout_s: float
    secrets: tuple[str, ...] = ()
    """Parts of the metadata that no answer may hold."""

    @property
    def streams_answers(self) -> bool:
        return bool(_METHODS[self.method].server_streaming)

    @property
    def streams_requests(self) -> bool:
        return bool(_METHODS[self.method].client_streaming)

    def __str__(self) -> str:
        shown = self.payload[:200].hex() + ("…" if len(self.payload) > 200 else "")
        return (
            f"call {self.index} of seed {self.seed}: {self.method}, {len(self.payload)} bytes {shown}, {self.metadata}"
        )


def response_type(method: str) -> type[Message]:
    """The message class of a method's answers."""
    return GetMessageClass(_METHODS[method].output_type)


def random_call(seed: int, index: int) -> RandomCall:
    """The same call for the same numbers, whatever was drawn before."""
    source = random.Random(f"{seed}/{index}")
    method = source.choices(list(_METHODS), _WEIGHTS)[0]
    # gRPC's own client calls it INTERNAL when a deadline passes while requests are being streamed.
    is_short = source.random() < 0.05 and not _METHODS[method].client_streaming
    endless = _METHODS[method].name in _ENDLESS
    return RandomCall(
        seed=seed,
        index=index,
        method=method,
        payload=_payload(source, _METHODS[method]),
        metadata=_metadata(source),
        timeout_s=ENDLESS_TIMEOUT_S if endless else source.uniform(0.001, 0.05) if is_short else GENEROUS_TIMEOUT_S,
    )


def _payload(source: random.Random, method: MethodDescriptor) -> bytes:
    payload = _any_payload(source, method)
    # A drain that the server understood would end it.
    return _UNPARSABLE + payload if method.name == "Drain" else payload


def _any_payload(source: random.Random, method: MethodDescriptor) -> bytes:
    if source.random() < 0.03:
        return source.randbytes(source.choice((1, 5, 40, 1_000)))
    if source.random() < 0.002:
        return _field(2, b"long " * source.choice((210_000, 830_000, 900_000)))
    messages = RandomMessages(source, _PLAUSIBLE, _NEEDED, source.choice((0.0, 0.0, 0.05, 0.3, 1.0)))
    payload = messages.message(method.input_type).SerializeToString()
    return _damaged(source, payload) if source.random() < 0.25 else payload


def _damaged(source: random.Random, payload: bytes) -> bytes:
    kind = source.randrange(5)
    if kind == 0:
        return payload[: source.randint(0, len(payload))]
    if kind == 1:
        return payload + _field(source.choice((9999, 536_870_911, 17)), source.randbytes(8))
    if kind == 2:
        return payload + _field(source.randint(1, 16), source.choice(_BAD_UTF8))
    if kind == 3 and payload:
        at = source.randrange(len(payload))
        return payload[:at] + bytes([payload[at] ^ 1 << source.randrange(8)]) + payload[at + 1 :]
    nested = b""
    for _ in range(source.choice((5, 150, 2_000))):
        nested = _field(source.choice((2, 4, 15)), nested)
    return payload + nested


def _metadata(source: random.Random) -> Metadata:
    entries: list[tuple[str, str | bytes]] = []
    if source.random() < 0.3:
        tenant = source.choice(("a", "b", "team-1", "", "not a name!", "x" * 300, "../b"))
        entries.append(("x-inferwire-tenant", tenant))
    if source.random() < 0.2:
        trace = source.choice(("00-" + "0" * 32 + "-" + "1" * 16 + "-01", "00-zz", "----", ""))
        entries.append(("traceparent", trace))
    for _ in range(source.choice((0, 0, 0, 1, 5, 40))):
        name = "x-" + "".join(source.choices(string.ascii_lowercase + string.digits + "_.-", k=source.randint(1, 12)))
        value: str | bytes = "".join(source.choices(string.printable[:95], k=source.randint(0, 40))).strip()
        if source.random() < 0.2:
            name, value = name + "-bin", source.randbytes(20)
        elif name.endswith("-bin"):
            continue
        entries.append((name, value))
    return tuple(entries)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
