"""A chat template cannot take more memory, more time or more rights than a rendering may have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jinja2
import pytest
from inferwire_server.text.render_budget import Budget, RenderingTooCostly
from inferwire_server.text.sandbox import BoundedEnvironment
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

ENVIRONMENT = BoundedEnvironment()
LOOKS = 10_000


def ticking() -> Callable[[], float]:
    """A clock that moves a little each time somebody looks."""
    ticks = itertools.count()
    return lambda: next(ticks) / LOOKS


def render(source: str, **variables: Any) -> str:
    template, _ = ENVIRONMENT.compile_bounded(source)
    return ENVIRONMENT.render_bounded(template, variables, Budget(characters=2**20, seconds=1.0, clock=ticking()))


AMPLIFYING = {
    "repeated text": "{{ 'a' * 10**9 }}",
    "repeated list": "{{ ([1] * 10**9) | length }}",
    "powers": "{{ 10 ** 1000000000 }}",
    "squares": "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by blocks": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "doubling by %": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
    "doubling by format": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x = '{0}{0}'.format(n.x) %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    "replace filter": "{{ ('a' * 9999) | replace('', 'b' * 9999) }}",
    "join method": "{{ ('a' * 9999).join(['b'] * 9999) }}",
    "join filter": "{{ (['a' * 9999] * 9999) | join }}",
    "mapped": "{{ (['a' * 9999] * 9999) | map('upper') | list | length }}",
    "split": "{{ ('a ' * 40000).split() | length }}",
    "list of characters": "{{ ('a' * 40000) | list | length }}",
    "slices kept": "{% set x = 'a' * 9999 %}{% set n = namespace(l=[]) %}"
    "{% for i in range(999) %}{% set n.l = n.l + [x[1:]] %}{% endfor %}",
    "a list in itself, written": "{% set n = namespace(x=[1]) %}"
    "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "a list in itself, as JSON": "{% set n = namespace(x=[1]) %}"
    "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "a list in itself, as text": "{% set n = namespace(x=[1]) %}"
    "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ (n.x | string)[0] }}",
    "a list in itself, compared": "{% set n = namespace(x=[1], y=[1]) %}"
    "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "a list in itself, sorted": "{% set n = namespace(x=[1], y=[1]) %}"
    "{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ [n.x, n.y] | sort }}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops that skip": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "nested filters": "{% for a in range(99999) %}{{ range(99999) | map('string') | first }}{% endfor %}",
    "macros that call twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(99) }}",
    "constant text in a loop": "{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}",
    "constant text in a filter block": "{% filter upper %}{% for i in range(99999) %}"
    + "x" * 999
    + "{% endfor %}{% endfilter %}",
}


@pytest.mark.parametrize("name", AMPLIFYING)
def test_what_grows_out_of_bounds_is_stopped(name: str) -> None:
    with pytest.raises(RenderingTooCostly):
        render(AMPLIFYING[name])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ (5).to_bytes(10**9, 'big') }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ namespace(a=1) }}",
        "{% for x in [[]] recursive %}{{ loop([x]) }}{% endfor %}",
    ],
)
def test_what_no_chat_template_needs_is_not_there(source: str) -> None:
    with pytest.raises(SecurityError):
        render(source, messages=[])


@pytest.mark.parametrize("source", ["{{ 'a' | center(10**9) }}", "{{ 'a' | wordwrap(1) }}", "{{ lipsum(10**9) }}"])
def test_other_amplifiers_of_jinja_are_unknown(source: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(source)


ORDINARY = [
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m ~ 'a' ~ none ~ 1 }}{% endfor %}",
    "{{ messages[1:] | map(attribute='content') | join(', ') }}{{ messages | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list }}{{ [1, 2] | tojson }}",
    "{{ 'a' in 'abc' and 1 < 2 < 3 }}{{ ['b', 'a'] | sort | first }}{{ {'a': 1}.items() | list }}",
    "{{ '%s-%d%%' % ('a', 3) }}{{ '{} {x}'.format(1, x=2) }}{{ 'x\ny' | indent(2) }}{{ 'x\ny' | indent('- ', true) }}",
    "{% macro f(context, obj=2) %}{{ context }}{{ obj }}{% endmacro %}{{ f(obj=5, context=6) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}",
    "{{ 'a b'.split() }}{{ 'a-b'.split('-', 1) }}{{ 'a-b'.rsplit(sep='-')[0] }}{{ 'a\nb'.splitlines() | last }}",
    "{{ ', '.join(['a', 'b']) }}{{ ' a '.strip() }}{{ 'aba'.replace('a', 'c', 1) }}{{ 'aba' | replace('a', 'c', 1) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n * 2 ** 3 }}",
    "{{ missing }}{{ missing | default('x') }}{{ messages[0].missing is defined }}{{ 1.5 | round | int }}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{{ [3, 1, 3] | unique | list }}{{ {'b': 1, 'a': 2} | dictsort }}",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_templates_render_as_in_the_usual_sandbox(source: str) -> None:
    usual = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    ).from_string(source)
    messages = [
        {"role": role, "content": content} for role, content in (("user", "é"), ("assistant", ""), ("user", "b"))
    ]
    assert render(source, messages=messages) == usual.render(messages=messages)


def test_json_is_written_as_models_were_trained_on_it() -> None:
    assert render("{{ x | tojson }}", x={"b": "é<&>'", "a": None}) == '{"b": "é<&>\'", "a": null}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'


def test_a_rendering_leaves_its_budget_to_no_other() -> None:
    for _ in range(20):
        assert len(render("{{ 'a' * 500000 }}")) == 500_000
