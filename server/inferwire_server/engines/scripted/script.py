"""Scripts: options and plans from a TOML or JSON file, or from a line of settings, for a server process.

[options]
step_base_s = 0.02
max_running = 2

[default]                              # the plan where no rule fits
mean_output_tokens = 100

[[when]]                               # the first rule that fits wins
prompt_contains = "break now"
reply = "half of an ans"
mishap = { kind = "die", reason = "planned", after = 6 }
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import pydantic

from inferwire_server.domain.errors import EngineDown, Overloaded
from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.plans import Die, Echo, Fail, Freeze, Mishap, Plan, PlanBook, Refuse

_OPTION_NAMES = tuple(field.name for field in dataclasses.fields(ScriptedOptions))
_ERRORS = {"engine_down": EngineDown, "overloaded": Overloaded, "internal": ValueError}


class ScriptError(ValueError):
    """A script that cannot be read; the message names the place and what is expected there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """Everything a ScriptedEngine is made of."""

    options: ScriptedOptions = dataclasses.field(default_factory=ScriptedOptions)
    plans: PlanBook = dataclasses.field(default_factory=PlanBook)


class _Entry(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class _MishapEntry(_Entry):
    kind: Literal["refuse", "fail", "die", "freeze"]
    after: pydantic.NonNegativeInt = 0
    error: Literal["engine_down", "overloaded", "internal"] = "engine_down"
    reason: str = "failed as planned"
    seconds: pydantic.NonNegativeFloat | None = None

    def mishap(self) -> Mishap:
        kind, reason = _ERRORS[self.error], self.reason
        match self.kind:
            case "refuse":
                return Refuse(lambda: kind(reason))
            case "fail":
                return Fail(lambda: kind(reason), self.after)
            case "die":
                return Die(reason, self.after)
            case "freeze":
                return Freeze(self.seconds, self.after)


class _PlanEntry(_Entry):
    reply: str | None = None
    reply_token_ids: tuple[int, ...] | None = None
    echo: bool = False
    echo_after: str = ""
    mean_output_tokens: float | None = pydantic.Field(default=None, ge=1.0)
    first_token_delay_s: pydantic.NonNegativeFloat = 0.0
    token_delay_s: pydantic.NonNegativeFloat = 0.0
    mishap: _MishapEntry | None = None

    def plan(self) -> Plan:
        reply: str | tuple[int, ...] | Echo | None = self.reply if self.reply is not None else self.reply_token_ids
        return Plan(
            reply=Echo(self.echo_after) if self.echo or self.echo_after else reply,
            mean_output_tokens=self.mean_output_tokens,
            first_token_delay_s=self.first_token_delay_s,
            token_delay_s=self.token_delay_s,
            mishap=None if self.mishap is None else self.mishap.mishap(),
        )


class _RuleEntry(_PlanEntry):
    prompt_contains: str


class _ScriptEntry(_Entry):
    options: dict[str, Any] = {}
    default: _PlanEntry = _PlanEntry()
    when: tuple[_RuleEntry, ...] = ()


def read_script(path: Path) -> Script:
    """Read a `.toml` or `.json` file. Raises ScriptError."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ScriptError(f"the script {path} cannot be read: {error}") from error
    return script_of(content)


def parse_script(line: str) -> Script:
    """Read `key=value,key=value`, with the keys of `[options]` and `[default]`, or the file that the line names.

    Raises ScriptError.
    """
    if line.endswith((".toml", ".json")):
        return read_script(Path(line))
    content: dict[str, dict[str, Any]] = {"options": {}, "default": {}}
    for part in filter(None, (part.strip() for part in line.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ScriptError(f"{part!r}: expected key=value, or a file whose name ends in .toml or .json")
        content["options" if key in _OPTION_NAMES else "default"][key] = _value(value)
    return script_of(content)


def script_of(content: Any) -> Script:
    """Check what was read from a file. Raises ScriptError."""
    try:
        entry = _ScriptEntry.model_validate(content)
        unknown = sorted(entry.options.keys() - set(_OPTION_NAMES))
        if unknown:
            raise ScriptError(f"options.{unknown[0]}: no such option; there are {', '.join(_OPTION_NAMES)}")
        options = pydantic.TypeAdapter(ScriptedOptions).validate_python(entry.options)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "options"
        raise ScriptError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    rules = tuple((rule.prompt_contains, rule.plan()) for rule in entry.when)
    return Script(options, PlanBook(rules, entry.default.plan()))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
