"""How many values a request may repeat, counted before one of them becomes an object of Python's.

A message within the byte limit can hold millions of values. To copy them all for a check that then refuses them would
stop every stream for seconds; to count them costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from google.protobuf.message import Message
from inferwire.v1 import generation_pb2, inference_pb2

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.limits import LIMITS


@dataclass(frozen=True, slots=True)
class Repeated:
    """A repeated field by its path, what its values are called, and how many there may be."""

    path: str
    unit: str
    limit: int | None = None
    """None for as many ids as the model's context holds."""
    each: Sequence[Repeated] = ()
    """What every value repeats in turn."""


_CHAT = Repeated("chat.messages", "messages", LIMITS.messages)
_RESUMED = Repeated("resume.outputs", "outputs", LIMITS.output_count, each=(Repeated("token_ids", "ids"),))

REPEATED: Mapping[type[Message], Sequence[Repeated]] = {
    generation_pb2.GenerateRequest: (
        Repeated("token_ids.ids", "ids"),
        _CHAT,
        Repeated("sampling.logit_bias", "entries", LIMITS.logit_bias_entries),
        Repeated("stop.strings", "strings", LIMITS.stop_strings),
        Repeated("stop.token_ids", "ids", LIMITS.stop_token_ids),
        Repeated("structured_output.choices.texts", "texts", LIMITS.choices),
        _RESUMED,
    ),
    inference_pb2.TokenizeRequest: (_CHAT,),
    inference_pb2.DetokenizeRequest: (Repeated("token_ids", "ids"),),
}
"""All that requests repeat."""


def excess(request: Message, *, most_ids: int) -> InvalidRequest | None:
    """What to refuse a request with that repeats something too often; `most_ids` is what the context has room for."""
    return _excess(request, REPEATED[type(request)], most_ids, "")


def _excess(message: Message, fields: Sequence[Repeated], most_ids: int, prefix: str) -> InvalidRequest | None:
    for field in fields:
        values = attrgetter(field.path)(message)
        count, limit = len(values), most_ids if field.limit is None else field.limit
        path = f"{prefix}{field.path}"
        if count > limit:
            return InvalidRequest(path, f"at most {limit} {field.unit}, not {count}", limit=limit, actual=count)
        if field.each:
            for index, value in enumerate(values):
                if inner := _excess(value, field.each, most_ids, f"{path}[{index}]."):
                    return inner
    return None
