"""Which roles a chat template takes, found by rendering it."""

from __future__ import annotations

import datetime
import re
from typing import NoReturn

import jinja2
import jinja2.sandbox

from inferwire_server.models.errors import UnsupportedModel

_USUAL = ("system", "user", "assistant")
_NAMED_ONLY = ("developer", "tool")
_MARK = "content-of-the-probed-message"


def chat_roles(template: str) -> tuple[str, ...]:
    """List the roles whose content appears in the rendered chat.

    Templates that paste any role name in accept everything; `developer` and `tool` count only when the template
    names them. Raises UnsupportedModel when the template is not Jinja or takes no user message.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=_refuse, strftime_now=_some_day)
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise _unusable(f"is not valid Jinja: {error}") from error
    candidates = (*_USUAL, *(role for role in _NAMED_ONLY if re.search(rf"['\"]{role}['\"]", template)))
    roles = tuple(role for role in candidates if _takes(compiled, role))
    if "user" not in roles:
        raise _unusable("does not take a user message")
    return roles


def _takes(template: jinja2.Template, role: str) -> bool:
    user = {"role": "user", "content": "first"}
    message = {"role": role, "content": _MARK}
    conversation = {"user": [message], "assistant": [user, message], "tool": [user, message]}.get(role, [message, user])
    try:
        rendered = template.render(
            messages=conversation, add_generation_prompt=role != "assistant", bos_token="", eos_token="", tools=None
        )
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return False
    return _MARK in rendered


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateRuntimeError(message)


def _some_day(pattern: str) -> str:
    return datetime.date(2025, 1, 1).strftime(pattern)


def _unusable(reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the model's chat template {reason}", "Correct chat_template.jinja in the model's folder and pull the folder."
    )
