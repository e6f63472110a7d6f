"""A model's roles are those whose messages its template really renders."""

from __future__ import annotations

import pytest
from inferwire_server.models.chat_roles import chat_roles
from inferwire_server.models.errors import UnsupportedModel

from tests.server.models.tiny_gguf import CHAT_TEMPLATE

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% endfor %}"
)
WITH_TOOLS = (
    "{{ strftime_now('%d %b %Y') }}{% for m in messages %}"
    "{% if m.role == 'tool' %}<result>{{ m.content }}</result>{% else %}{{ m.role }}: {{ m.content }}{% endif %}"
    "{% endfor %}"
)
IGNORES_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (CHAT_TEMPLATE, ("system", "user", "assistant")),
        (NO_SYSTEM, ("user", "assistant")),
        (WITH_TOOLS, ("system", "user", "assistant", "tool")),
        (IGNORES_SYSTEM, ("user", "assistant")),
    ],
    ids=["any role", "refuses system", "with tools", "drops system"],
)
def test_roles_are_found_by_rendering(template: str, roles: tuple[str, ...]) -> None:
    assert chat_roles(template) == roles


@pytest.mark.parametrize("template", ["{% for %}", "constant", "{{ messages.__class__.__mro__ }}"])
def test_an_unusable_template_is_refused(template: str) -> None:
    with pytest.raises(UnsupportedModel, match="chat template"):
        chat_roles(template)
