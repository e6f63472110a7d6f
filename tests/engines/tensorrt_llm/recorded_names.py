"""The recorded names of TensorRT-LLM, and how an importable package differs from them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[2] / "contracts" / "tensorrt_llm-1.2.json"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One name that is not as recorded."""

    name: str
    what: str
    is_certain: bool
    """Whether the record was sure of it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what} (recorded as {'certain' if self.is_certain else 'probable'})"


def recorded() -> dict[str, Any]:
    """The whole record."""
    content: dict[str, Any] = json.loads(RECORD.read_text())
    return content


def parameters_of(name: str) -> set[str]:
    """Constructor parameters recorded for a class, by its last name."""
    (entry,) = [entry for full, entry in recorded()["classes"].items() if full.rpartition(".")[2] == name]
    return {parameter["name"] for parameter in entry.get("constructor", ())}


def members_of(name: str) -> set[str]:
    """Methods, attributes and constructor fields recorded for a class, by its last name."""
    (entry,) = [entry for full, entry in recorded()["classes"].items() if full.rpartition(".")[2] == name]
    return {*entry.get("methods", ()), *entry.get("attributes", ())} | parameters_of(name)


def differences(record: dict[str, Any], *, is_whole: bool) -> list[Difference]:
    """Compare the importable package with the record; with `is_whole`, names beyond the record count as well."""
    found: list[Difference] = []
    for name, entry in record["classes"].items():
        for path in (name, *entry.get("also", ())):
            found += _compare(path, entry, is_whole=is_whole)
    return found


def _compare(path: str, entry: dict[str, Any], *, is_whole: bool) -> list[Difference]:
    is_certain = entry["confidence"] == "certain"
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, _ABSENT)
    except ModuleNotFoundError:
        found = _ABSENT
    if found is _ABSENT:
        return [Difference(path, "is absent", is_certain)]
    assert isinstance(found, type)
    results = [
        Difference(path, f"has no base {base}", is_certain)
        for base in entry.get("bases", ())
        if base not in {each.__name__ for each in found.__mro__[1:]}
    ]
    if "constructor" in entry:
        results += _compare_parameters(path, entry["constructor"], _constructor(found), is_certain, is_whole=is_whole)
    for method, expected in entry.get("methods", {}).items():
        function = getattr(found, method, _ABSENT)
        if function is _ABSENT:
            results.append(Difference(f"{path}.{method}", "is absent", is_certain))
        else:
            actual = dict(inspect.signature(function).parameters)  # type: ignore[arg-type]
            actual.pop("self", None)
            results += _compare_parameters(f"{path}.{method}", expected, actual, is_certain, is_whole=is_whole)
    return results


def _constructor(found: type) -> dict[str, inspect.Parameter]:
    fields = getattr(found, "model_fields", None)
    if fields is not None:
        return {
            name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
            for name, field in fields.items()
        }
    parameters = dict(inspect.signature(found).parameters)
    if dataclasses.is_dataclass(found):
        factories = {field.name: field.default_factory for field in dataclasses.fields(found)}
        return {
            name: parameter.replace(default=factories[name])
            if factories.get(name, dataclasses.MISSING) is not dataclasses.MISSING
            else parameter
            for name, parameter in parameters.items()
        }
    return parameters


def _compare_parameters(
    path: str, expected: list[dict[str, Any]], actual: dict[str, inspect.Parameter], is_certain: bool, *, is_whole: bool
) -> list[Difference]:
    results = []
    for parameter in expected:
        name, sure = parameter["name"], is_certain and parameter.get("confidence") != "probable"
        found = actual.get(name)
        if found is None:
            results.append(Difference(f"{path}({name})", "is absent", sure))
            continue
        if found.kind.name != parameter["kind"]:
            results.append(Difference(f"{path}({name})", f"is {found.kind.name}, not {parameter['kind']}", sure))
        results += [Difference(f"{path}({name})", what, sure) for what in _default_changes(parameter, found.default)]
    if is_whole:
        beyond = set(actual).difference(parameter["name"] for parameter in expected)
        results += [Difference(f"{path}({name})", "is not recorded", is_certain) for name in sorted(beyond)]
    return results


def _default_changes(parameter: dict[str, Any], default: object) -> list[str]:
    if "default" in parameter:
        recorded_default = parameter["default"]
        return [] if default == recorded_default else [f"defaults to {default!r}, not {recorded_default!r}"]
    if "default_factory" in parameter:
        return [] if default is list else [f"defaults to {default!r}, not a new list"]
    if parameter.get("required"):
        return [] if default is inspect.Parameter.empty else [f"defaults to {default!r}, but was required"]
    return []
