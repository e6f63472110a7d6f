"""A jinja2 sandbox whose renderings have a bounded cost, whatever the template and whatever the values."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from jinja2 import Environment, Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from inferwire_server.text.render_budget import Budget, current_budget

_WIDEST_INDENT = 16
_STRING_METHODS = frozenset(
    {"capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"}
    | {"isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"}
    | {"removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"}
    | {"splitlines", "startswith", "strip", "swapcase", "title", "upper"}
)
_COLLECTION_METHODS = frozenset({"count", "get", "index", "items", "keys", "values"})
_COPYING_FILTERS = frozenset(
    {"abs", "attr", "float", "int", "items", "map", "reject", "rejectattr", "reverse", "round", "select", "selectattr"}
)
_SELECTING_FILTERS = frozenset({"count", "d", "default", "first", "last", "length"})
_WRITING_FILTERS = frozenset({"capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper"})
_COMPARING_FILTERS = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders what chat templates use; what could turn a few characters into gigabytes is paid for or not there."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_paid_output,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        del self.globals["lipsum"]
        self.filters = {name: _paid(FILTERS[name], Budget.spend_on_copy_of) for name in _COPYING_FILTERS}
        self.filters |= {name: FILTERS[name] for name in _SELECTING_FILTERS}
        self.filters |= {name: _paid(FILTERS[name], Budget.spend_on_text_of) for name in _WRITING_FILTERS}
        self.filters |= {name: _paid(FILTERS[name], Budget.spend_on_parts_of) for name in _COMPARING_FILTERS}
        self.filters |= {"list": _list, "join": _join, "replace": _replace, "indent": _indent, "tojson": _to_json}
        self.filters |= {_STEP: _step, _COPIED: _copied, _COMPARED: _compared, _CONCATENATED: _concatenated}

    def compile_bounded(self, source: str) -> tuple[Template, frozenset[str]]:
        """A template that pays as it goes, and the string constants in it. Raises jinja2.TemplateError."""
        tree = self.parse(source)
        constants = (constant.value for constant in tree.find_all(nodes.Const))
        strings = frozenset(value for value in constants if isinstance(value, str))
        code = self.compile(_Metering(self).visit(tree))
        return Template.from_code(self, code, dict(self.globals)), strings

    def render_bounded(self, template: Template, variables: Mapping[str, Any], budget: Budget) -> str:
        """The rendered text. Raises RenderingTooCostly, and whatever the template's own operations raise."""
        token = current_budget.set(budget)
        try:
            return "".join(template.generate(dict(variables)))
        finally:
            current_budget.reset(token)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As in jinja2, but values have no methods beyond those known to be harmless."""
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, list | tuple | dict):
            return attr in _COLLECTION_METHODS
        if isinstance(obj, int | float | bytes | range):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Pay for the result first, which for a repetition is far larger than its parts."""
        budget = current_budget.get()
        if operator == "*":
            budget.spend_on_product(left, right)
        elif operator == "**":
            budget.spend_on_power(left, right)
        elif operator == "%" and isinstance(left, str):
            budget.spend_on_conversions(left, right)
        else:
            budget.spend_on_copy_of(left)
            budget.spend_on_copy_of(right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Pay for what a method makes, then call."""
        budget = current_budget.get()
        owner = getattr(obj, "__self__", None)
        budget.spend_on_copy_of(owner)
        if isinstance(owner, str):
            args = _paid_arguments(budget, owner, obj.__name__, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """As in jinja2, for plain fields only, paid for."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def paid(*args: Any, **kwargs: Any) -> str:
            current_budget.get().spend_on_fields(value.__self__, [*args, *kwargs.values()])
            return formatted(*args, **kwargs)

        return paid


def _paid_arguments(
    budget: Budget, text: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    if method == "join":
        args = (list(args[0]),)
        budget.spend_on_joining(text, args[0])
    elif method == "replace":
        budget.spend_on_replacing(text, *args[:2])
    elif method in {"split", "rsplit"}:
        budget.spend_on_splitting(text, kwargs.get("sep", args[0] if args else None))
    elif method == "splitlines":
        budget.spend_on_splitting(text)
    return args


def _paid(function: Callable[..., Any], pay_for: Callable[[Budget, Any], None]) -> Callable[..., Any]:
    """The same filter, paying for the value that goes in and for a copy of what comes out."""

    @functools.wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        for value in args:
            if not isinstance(value, _PASSED_BY_JINJA):
                pay_for(budget, value)
        result = function(*args, **kwargs)
        budget.spend_on_copy_of(result)
        return result

    return paid


_PASSED_BY_JINJA = (Context, Environment, nodes.EvalContext)


@pass_context
def _paid_output(_: Context, value: Any) -> Any:
    if not isinstance(value, Undefined):
        current_budget.get().spend_on_text_of(value)
    return value


def _step(characters: int) -> bool:
    current_budget.get().spend(characters)
    return True


def _copied(value: Any) -> Any:
    current_budget.get().spend_on_copy_of(value)
    return value


def _compared(value: Any) -> Any:
    current_budget.get().spend_on_parts_of(value)
    return value


def _concatenated(values: list[Any]) -> str:
    current_budget.get().spend_on_text_of(values)
    return "".join(map(str, values))


def _list(value: Iterable[Any]) -> list[Any]:
    budget = current_budget.get()
    if isinstance(value, str):
        budget.spend_on_splitting(value, "")
    else:
        budget.spend_on_copy_of(value)
    return list(value)


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [context.environment.getitem(item, attribute) for item in items]
    current_budget.get().spend_on_joining(d, items)
    return d.join(map(str, items))


def _replace(s: Any, old: str, new: str, count: int = -1) -> str:
    budget = current_budget.get()
    budget.spend_on_text_of(s)
    text = str(s)
    budget.spend_on_replacing(text, old, new)
    return text.replace(old, new, count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(width, _WIDEST_INDENT)
    current_budget.get().spend(len(s) + (s.count("\n") + 1) * len(margin))
    return str(FILTERS["indent"](s, margin, first, blank))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and indent > _WIDEST_INDENT:
        raise SecurityError(f"an indent of more than {_WIDEST_INDENT} is not supported")
    budget = current_budget.get()
    budget.spend_on_text_of(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.spend_on_copy_of(text)
    return text


# No template can name these filters: they are not identifiers.
_STEP = "a step"
_COPIED = "a copied value"
_COMPARED = "a compared value"
_CONCATENATED = "concatenated values"

_Node = TypeVar("_Node", bound=nodes.Node)


class _Metering(NodeTransformer):
    """Puts a payment at each place that a template can reach often without one."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by jinja2
        if node.recursive:
            raise SecurityError("recursive loops are not supported in chat templates: write a macro")
        self.generic_visit(node)
        if node.test is not None:
            node.test = self._new(nodes.And(self._payment(node), node.test), node)
        return self._paid_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._paid_body(self.generic_visit(node))

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._paid_body(self.generic_visit(node))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._filter(self._new(nodes.List(node.nodes), node), _CONCATENATED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._filter(node.expr, _COMPARED)
        for operand in node.ops:
            operand.expr = self._filter(operand.expr, _COMPARED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._filter(node, _COPIED) if isinstance(node.arg, nodes.Slice) else node

    def _paid_body(self, node: Any) -> nodes.Node:
        node.body.insert(0, self._new(nodes.ExprStmt(self._payment(node)), node))
        paid: nodes.Node = node
        return paid

    def _payment(self, node: nodes.Node) -> nodes.Expr:
        constant = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        return self._filter(self._new(nodes.Const(constant), node), _STEP)

    def _filter(self, node: nodes.Expr, name: str) -> nodes.Filter:
        return self._new(nodes.Filter(node, name, [], [], None, None), node)

    def _new(self, node: _Node, beside: nodes.Node) -> _Node:
        node.set_lineno(beside.lineno)
        node.set_environment(self._environment)
        return node


class GenerationBlock(Extension):
    """`{% generation %}` marks an assistant's words for training; here its content is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
