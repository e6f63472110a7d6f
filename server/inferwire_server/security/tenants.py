"""The file of tenants: what each may use, and what may be written down of its content.

[default]                       # of every tenant that has no table, and of what a table leaves out
requests_per_minute = 600
tokens_per_minute = 100_000

[tenants.acme]
tokens_per_minute = "unlimited"
priorities = ["standard", "batch"]
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from inferwire_server.domain.generation import Priority
from inferwire_server.security.quota import UNLIMITED, Quota
from inferwire_server.settings import Tenant

Redaction = Callable[[str], str]
"""Gives back what may be written down of a text."""

_LARGEST = 2**53
"""Up to here a number is the same everywhere: in metrics and in the ledger's arithmetic."""
_Most = Annotated[int, Field(ge=0, le=_LARGEST)] | Literal["unlimited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPolicy:
    """What the audit record of a call may hold of what was said; by default nothing."""

    keeps_prompt: bool = False
    keeps_output: bool = False
    redactions: tuple[Redaction, ...] = ()
    """Applied in this order to each text."""

    @property
    def keeps_any(self) -> bool:
        return self.keeps_prompt or self.keeps_output


NO_CONTENT = ContentPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What holds for one tenant."""

    quota: Quota = UNLIMITED
    content: ContentPolicy = NO_CONTENT


class Tenants:
    """What the file says, by tenant."""

    def __init__(self, default: TenantPolicy | None = None, listed: Mapping[str, TenantPolicy] | None = None) -> None:
        self._default = default or TenantPolicy()
        self._listed = dict(listed or {})

    def policy(self, tenant: str) -> TenantPolicy:
        """The tenant's own, or that of those that are not listed."""
        return self._listed.get(tenant, self._default)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    concurrent_requests: _Most = "unlimited"
    requests_per_minute: _Most = "unlimited"
    tokens_per_minute: _Most = "unlimited"
    monthly_tokens: _Most = "unlimited"
    monthly_warning: Annotated[float, Field(gt=0, le=1)] = 0.8
    max_prompt_tokens: _Most = "unlimited"
    max_output_tokens: Annotated[int, Field(ge=1, le=_LARGEST)] | Literal["unlimited"] = "unlimited"
    priorities: Annotated[frozenset[Literal["interactive", "standard", "batch"]], Field(min_length=1)] = frozenset(
        {"interactive", "standard", "batch"}
    )
    audit_content: frozenset[Literal["prompt", "output"]] = frozenset()
    audit_redactions: tuple[str, ...] = ()
    """As in `company.privacy:without_names`."""

    def policy(self) -> TenantPolicy:
        """Raises ValueError for a redaction that cannot be had."""
        quota = Quota(
            concurrent_requests=_number(self.concurrent_requests),
            requests_per_minute=_number(self.requests_per_minute),
            tokens_per_minute=_number(self.tokens_per_minute),
            monthly_tokens=_number(self.monthly_tokens),
            monthly_warning=self.monthly_warning,
            max_prompt_tokens=_number(self.max_prompt_tokens),
            max_output_tokens=_number(self.max_output_tokens),
            priorities=frozenset(Priority[name.upper()] for name in self.priorities),
        )
        content = ContentPolicy(
            keeps_prompt="prompt" in self.audit_content,
            keeps_output="output" in self.audit_content,
            redactions=tuple(_redaction(path) for path in self.audit_redactions),
        )
        return TenantPolicy(quota=quota, content=content)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    default: dict[str, Any] = Field(default_factory=dict)
    tenants: dict[Tenant, dict[str, Any]] = Field(default_factory=dict)


_ENTRY = TypeAdapter(_Entry)


def load_tenants(contents: Sequence[bytes]) -> Tenants:
    """Read the file. Raises ValueError, which says where it is wrong."""
    (content,) = contents
    try:
        file = _File.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        raise ValueError(_first(error, "")) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    default = _policy(file.default, "default")
    listed = {name: _policy(file.default | table, f"tenants.{name}") for name, table in file.tenants.items()}
    return Tenants(default, listed)


def _policy(table: Mapping[str, Any], place: str) -> TenantPolicy:
    try:
        return _ENTRY.validate_python(table).policy()
    except ValidationError as error:
        raise ValueError(_first(error, place)) from None
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from None


def _first(error: ValidationError, place: str) -> str:
    problem = error.errors(include_url=False)[0]
    path = ".".join([place] * bool(place) + [str(part) for part in problem["loc"]])
    return f"{path}: {problem['msg']}"


def _number(most: int | Literal["unlimited"]) -> int | None:
    return None if most == "unlimited" else most


def _redaction(path: str) -> Redaction:
    module, _, name = path.partition(":")
    why = "not callable"
    try:
        found = getattr(importlib.import_module(module), name)
        if callable(found):
            redaction: Redaction = found
            return redaction
    except (Exception, SystemExit) as error:  # noqa: BLE001 a module may do anything while it is imported
        why = type(error).__name__
    raise ValueError(
        f"audit_redactions: {path!r} is no function that can be imported ({why}); name it as module:function"
    )
