"""Builds settings from plain mappings and environment variables; reports every bad field at once."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

Settings = TypeVar("Settings")

_OFF_WORDS = frozenset({"off", "none"})
_SWITCHES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The numbers that a field accepts; None is unbounded."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def __contains__(self, number: object) -> bool:
        return (
            isinstance(number, int | float)
            and math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
        )

    def __str__(self) -> str:
        parts = {"at least": self.at_least, "above": self.above, "at most": self.at_most}
        return " and ".join(f"{words} {bound:g}" for words, bound in parts.items() if bound is not None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad setting."""

    field: str
    """Dotted path, or the name of an environment variable."""
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SettingsError(ValueError):
    """Settings that cannot be used; one line for each bad field."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class _Bad(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def check(settings: object) -> None:
    """Raise SettingsError when a field of a dataclass instance has a wrong type or is out of bounds."""
    problems = []
    for name, kind in _kinds(type(settings)).items():
        try:
            _checked(getattr(settings, name), kind)
        except _Bad as bad:
            problems.append(Problem(name, bad.message))
    if problems:
        raise SettingsError(problems)


def read(kind: type[Settings], raw: Mapping[str, object]) -> Settings:
    """Build a settings dataclass, with those inside it, from what a TOML file or a dict holds."""
    problems: list[Problem] = []
    built = _table(kind, raw, "", problems)
    if problems:
        raise SettingsError(problems)
    return typing.cast(Settings, built)


def overrides(
    kind: type, environment: Mapping[str, str], prefix: str, *, apart: Sequence[str] = ()
) -> tuple[dict[str, object], dict[str, str]]:
    """What environment variables say of a settings dataclass, as `read` takes it.

    PREFIX_FIELD sets a field and PREFIX_SECTION_FIELD one inside a section. Variables in `apart` are left to
    the caller. Also returns which variable each dotted path came from.
    """
    paths = {f"{prefix}{path.replace('.', '_').upper()}": path for path in _leaves(kind)}
    found: dict[str, object] = {}
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for variable in sorted(name for name in environment if name.startswith(prefix) and name not in apart):
        path = paths.get(variable)
        if path is None:
            problems.append(Problem(variable, _unknown("variable", variable, [*paths, *apart])))
            continue
        *sections, name = path.split(".")
        table = found
        for section in sections:
            table = typing.cast(dict[str, object], table.setdefault(section, {}))
        table[name] = environment[variable]
        origins[path] = variable
    if problems:
        raise SettingsError(problems)
    return found, origins


def _kinds(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _leaves(kind: type, path: str = "") -> list[str]:
    leaves = []
    for name, inner in _kinds(kind).items():
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            leaves += _leaves(inner, f"{path}{name}.")
        else:
            leaves.append(f"{path}{name}")
    return leaves


def _table(kind: type, raw: object, path: str, problems: list[Problem]) -> object | None:
    if not isinstance(raw, Mapping):
        problems.append(Problem(path, f"{raw!r} is not a table of settings"))
        return None
    kinds = _kinds(kind)
    before = len(problems)
    values = {}
    for key in raw:
        here = f"{path}.{key}" if path else str(key)
        if key not in kinds:
            problems.append(Problem(here, _unknown("setting", str(key), list(kinds))))
        else:
            values[key] = _value(raw[key], kinds[key], here, problems)
    required = [field.name for field in dataclasses.fields(kind) if _is_required(field)]
    problems += [Problem(f"{path}.{name}" if path else name, "required") for name in required if name not in values]
    if len(problems) > before:
        return None
    try:
        return typing.cast(object, kind(**values))
    except SettingsError as error:
        problems += [Problem(f"{path}.{p.field}" if path else p.field, p.message) for p in error.problems]
        return None


def _value(raw: object, kind: Any, path: str, problems: list[Problem]) -> object:
    plain, _ = _without_bounds(kind)
    if isinstance(plain, type) and dataclasses.is_dataclass(plain):
        return raw if isinstance(raw, plain) else _table(plain, raw, path, problems)
    parsed = _parsed(raw, kind)
    if get_origin(plain) is tuple and isinstance(parsed, tuple):
        item = get_args(plain)[0]
        return tuple(_value(one, item, f"{path}[{index}]", problems) for index, one in enumerate(parsed))
    try:
        return _checked(parsed, kind)
    except _Bad as bad:
        problems.append(Problem(path, bad.message))
        return None


def _parsed(raw: object, kind: Any) -> object:
    """Text from an environment variable, or from a file's word for what its format cannot say, as a value."""
    plain, _ = _without_bounds(kind)
    if isinstance(raw, list):
        return tuple(raw)
    if not isinstance(raw, str):
        return raw
    if _is_optional(plain):
        return None if raw.strip().lower() in _OFF_WORDS else _parsed(raw, _inner(plain))
    if get_origin(plain) is tuple:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if plain is bool:
        return _SWITCHES.get(raw.strip().lower(), raw)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        return {member.value: member for member in plain}.get(raw.strip().lower(), raw)
    if plain in (int, float):
        try:
            return plain(raw)
        except ValueError:
            return raw
    return raw


def _checked(value: object, kind: Any) -> object:
    plain, bounds = _without_bounds(kind)
    if _is_optional(plain):
        return None if value is None else _checked(value, _inner(plain))
    if get_origin(plain) is tuple:
        item = get_args(plain)[0]
        if not isinstance(value, tuple):
            raise _Bad(f"{value!r} is not a list")
        return tuple(_checked(one, item) for one in value)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        if not isinstance(value, plain):
            raise _Bad(f"{_shown(value)}: expected one of {', '.join(member.value for member in plain)}")
        return value
    if plain in (int, float):
        return _number(value, plain, bounds)
    if not isinstance(value, plain):
        raise _Bad(f"{_shown(value)}: expected {'true or false' if plain is bool else plain.__name__}")
    return value


def _number(value: object, kind: type, bounds: Bounds) -> object:
    right_type = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if not right_type or isinstance(value, bool) or value not in bounds:
        expected = "a whole number" if kind is int else "a number"
        raise _Bad(f"{_shown(value)}: expected {expected} {bounds}".rstrip())
    return value


def _shown(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _without_bounds(kind: Any) -> tuple[Any, Bounds]:
    if get_origin(kind) is Annotated:
        plain, *notes = get_args(kind)
        return plain, next((note for note in notes if isinstance(note, Bounds)), Bounds())
    return kind, Bounds()


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)


def _inner(kind: Any) -> Any:
    return next(one for one in get_args(kind) if one is not type(None))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"no such {what}" + (f"; did you mean {near[0]}?" if near else "")
