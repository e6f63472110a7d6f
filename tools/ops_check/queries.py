"""PromQL queries taken apart: which series they name, and what they compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

_COMPARISONS = (">", "<", ">=", "<=", "==", "!=")
_SETS = ("and", "or", "unless")
_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}


def without_variables(query: str, rate_interval: str = "5m") -> str:
    """Grafana's variables replaced by what they stand for when everything is chosen."""
    for name, value in (_VARIABLES | {"$__rate_interval": rate_interval}).items():
        query = query.replace(name, value)
    return re.sub(r"\$\{?[a-z_]+\}?", ".*", query)


def parsed(query: str) -> Any:
    """The query as a tree. Raises ValueError."""
    return promql_parser.parse(query)


def selectors(node: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and equality matchers of every series that is named."""
    if isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    elif isinstance(node, promql_parser.VectorSelector):
        equal = {each.name: each.value for each in node.matchers.matchers if each.op == promql_parser.MatchOp.Equal}
        yield node.name or equal.get("__name__", ""), equal
    else:
        for child in _children(node):
            yield from selectors(child)


def labels_named(node: Any) -> Iterator[tuple[str, str]]:
    """Name of a series and a label that it is chosen or grouped by."""
    if isinstance(node, promql_parser.VectorSelector):
        yield from ((node.name or "", each.name) for each in node.matchers.matchers)
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from labels_named(node.vector_selector)
    else:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            named = [name for name, _ in selectors(node.expr)]
            yield from ((name, label) for name in named for label in node.modifier.labels)
        for child in _children(node):
            yield from labels_named(child)


def without_comparisons(query: str) -> list[str]:
    """The sides of a condition, each as a query that has a value whether or not the condition holds."""
    return [each.prettify() for each in _sides(parsed(query))]


def _sides(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.ParenExpr):
        yield from _sides(node.expr)
    elif isinstance(node, promql_parser.BinaryExpr) and str(node.op) in _SETS:
        yield from _sides(node.lhs)
        yield from _sides(node.rhs)
    elif isinstance(node, promql_parser.BinaryExpr) and str(node.op) in _COMPARISONS:
        yield from (side for side in (node.lhs, node.rhs) if any(True for _ in selectors(side)))
    else:
        yield node


def _children(node: Any) -> Iterator[Any]:
    for name in ("lhs", "rhs", "expr", "param"):
        child = getattr(node, name, None)
        if isinstance(child, promql_parser.Expr):
            yield child
    yield from (each for each in getattr(node, "args", ()) or () if isinstance(each, promql_parser.Expr))
