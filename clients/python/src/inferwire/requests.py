"""Requests from keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from inferwire.v1 import generation_pb2

Message = Mapping[str, str] | tuple[str, str]
"""`{"role": "user", "content": "hi"}` or `("user", "hi")`."""


class Options(TypedDict, total=False):
    """What `generate`, `stream` and `chat` take by keyword. Ranges and defaults are those of the contract."""

    model: str
    """Default: the server's only model."""
    max_output_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    count: int
    json_schema: str | Mapping[str, Any]
    """JSON text, or the schema as a mapping."""
    regex: str
    priority: str
    """`interactive`, `standard` or `batch`."""
    request_id: str
    session: str
    """Calls that share it prefer the same server of a region, whose cache may know them."""
    token_ids: bool
    """Also receive token ids."""


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")


def build_request(
    prompt: str | Sequence[Message] | Sequence[int] | generation_pb2.GenerateRequest, options: Options
) -> generation_pb2.GenerateRequest:
    """A request for a text, messages or token ids; a ready-made one is copied before options are added to it."""
    request = generation_pb2.GenerateRequest()
    if isinstance(prompt, generation_pb2.GenerateRequest):
        request.CopyFrom(prompt)
    elif isinstance(prompt, str):
        request.prompt = prompt
    elif prompt and all(isinstance(each, int) for each in prompt):
        request.token_ids.ids.extend(prompt)  # type: ignore[arg-type]
    else:
        fill_chat(request.chat, prompt)  # type: ignore[arg-type]
    _add_options(request, {name: value for name, value in options.items() if name != "session"})
    return request


def fill_chat(chat: generation_pb2.Chat, messages: Sequence[Message]) -> None:
    """Append messages."""
    chat.SetInParent()
    for message in messages:
        role, text = (message["role"], message["content"]) if isinstance(message, Mapping) else message
        chat.messages.add(role=role, text=text)


def _add_options(request: generation_pb2.GenerateRequest, options: dict[str, Any]) -> None:
    for name in ("model", "max_output_tokens", "request_id"):
        if name in options:
            setattr(request, name, options.pop(name))
    for name in _SAMPLING:
        if name in options:
            setattr(request.sampling, name, options.pop(name))
    if "stop" in options:
        stop = options.pop("stop")
        request.stop.strings.extend([stop] if isinstance(stop, str) else stop)
    for name in ("count", "token_ids"):
        if name in options:
            setattr(request.output, name, options.pop(name))
    if "json_schema" in options:
        schema = options.pop("json_schema")
        request.structured_output.json_schema = schema if isinstance(schema, str) else json.dumps(schema)
    if "regex" in options:
        request.structured_output.regex = options.pop("regex")
    if "priority" in options:
        request.scheduling.priority = _priority(options.pop("priority"))
    if options:
        raise TypeError(f"unknown option: {', '.join(sorted(options))}")


def _priority(name: str) -> generation_pb2.Priority.ValueType:
    try:
        return generation_pb2.Priority.Value(f"PRIORITY_{name.upper()}")
    except ValueError:
        raise ValueError(f"priority={name!r}: must be interactive, standard or batch") from None
