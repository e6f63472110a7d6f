"""Plans from a TOML or JSON file, so that a server process can be told what to answer and when to break.

[default]                              # where no rule fits
mean_output_tokens = 100

[[when]]                               # the first rule that fits wins
prompt_contains = "break now"
reply = "half of an answer"
mishap = { kind = "die", reason = "planned", after = 6 }
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from inferwire_server.domain.errors import EngineDown, Overloaded
from inferwire_server.engines.scripted.plans import Die, Echo, Fail, Freeze, Mishap, Plan, PlanBook, Refuse
from inferwire_server.engines.scripted.vocabulary import VOCABULARY_SIZE

_TokenId = Annotated[int, pydantic.Field(ge=0, lt=VOCABULARY_SIZE)]
_ERRORS = {"engine_down": EngineDown, "overloaded": Overloaded, "internal": ValueError}


class PlanFileError(ValueError):
    """A plan file that cannot be used; the message names the place and what is expected there."""


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
    reply_token_ids: tuple[_TokenId, ...] | None = None
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


class _PlanFile(_Entry):
    default: _PlanEntry = _PlanEntry()
    when: tuple[_RuleEntry, ...] = ()


def read_plans(path: Path) -> PlanBook:
    """Read a `.json` file, or any other as TOML. Raises PlanFileError."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise PlanFileError(f"the plan file {path} cannot be read: {error}") from error
    try:
        entry = _PlanFile.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        raise PlanFileError(f"the plan file {path}, {place}: {first['msg']}") from None
    rules = tuple((rule.prompt_contains, rule.plan()) for rule in entry.when)
    return PlanBook(rules, entry.default.plan())
