"""Who may call what. Every RPC has its place in one of the tables below, or the server does not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import Forbidden
from inferwire_server.security.patterns import matches
from inferwire_server.settings import RoleSettings, SettingsError

_INFERENCE = "/inferwire.v1.InferenceService"
_MODELS = "/inferwire.v1.ModelService"
_OPERATIONS = "/inferwire.v1.OperationsService"

OPEN = frozenset(f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch", "List"))
"""For everybody: probes have no credentials."""
ANY_CALLER = frozenset(
    {
        f"{_INFERENCE}/GetServerInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    }
)
"""For every caller with a valid credential, whatever its roles."""
_ABOUT_MODELS = (f"{_MODELS}/ListModels", f"{_MODELS}/GetModel")
ROLES: Mapping[str, tuple[str, ...]] = {
    "user": (
        f"{_INFERENCE}/Generate",
        f"{_INFERENCE}/StreamGenerate",
        f"{_INFERENCE}/Tokenize",
        f"{_INFERENCE}/Detokenize",
        *_ABOUT_MODELS,
    ),
    "operator": (
        f"{_OPERATIONS}/GetServerStatus",
        f"{_OPERATIONS}/WatchLoad",
        f"{_OPERATIONS}/Drain",
        f"{_OPERATIONS}/ListGenerations",
        f"{_OPERATIONS}/CancelGeneration",
        *_ABOUT_MODELS,
    ),
}
"""What the built-in roles permit, for every model."""
KNOWN = OPEN | ANY_CALLER | frozenset(method for methods in ROLES.values() for method in methods)
_BOUND_TO_MODELS = frozenset({*ROLES["user"]})
"""They act on a model, or tell of it."""


@dataclass(frozen=True, slots=True)
class _Grant:
    methods: frozenset[str]
    models: tuple[str, ...]


class Authorisation:
    """For a server of one model, whose names are `model_names`."""

    def __init__(self, roles: Mapping[str, RoleSettings], model_names: Sequence[str]) -> None:
        """`roles` are added to the built-in ones or stand for those of the same name. Raises SettingsError."""
        self._model_names = tuple(model_names)
        self._grants = {name: _Grant(frozenset(methods), ("**",)) for name, methods in ROLES.items()}
        self._grants |= {name: _grant(name, role) for name, role in roles.items()}
        self._verdicts: dict[tuple[str, frozenset[str]], bool] = {}

    def check(self, method: str, caller: Caller) -> None:
        """Raise Forbidden when no role of the caller permits the method on the served model."""
        if method in ANY_CALLER:
            return
        question = (method, caller.roles)
        verdict = self._verdicts.get(question)
        if verdict is None:
            verdict = self._permits(method, caller.roles)
            if len(self._verdicts) < 4096:
                self._verdicts[question] = verdict
        if not verdict:
            raise Forbidden(self._why_not(method, caller.roles))

    def _permits(self, method: str, roles: frozenset[str]) -> bool:
        return any(
            method in grant.methods and (method not in _BOUND_TO_MODELS or self._may_use_model(grant))
            for name, grant in self._grants.items()
            if name in roles
        )

    def _why_not(self, method: str, roles: frozenset[str]) -> str:
        permitting = sorted(name for name in self._grants if self._permits(method, frozenset({name})))
        has_method = any(method in self._grants[name].methods for name in roles & self._grants.keys())
        what = method.rpartition("/")[2] + (" on this model" if has_method else "")
        if not permitting:
            return f"no role permits {what}"
        return f"{what} needs one of the roles: {', '.join(permitting)}"

    def _may_use_model(self, grant: _Grant) -> bool:
        return any(matches(pattern, name) for pattern in grant.models for name in self._model_names)


def is_open(method: str) -> bool:
    """Whether nobody is asked who they are."""
    return method in OPEN


def check_complete(methods: Iterable[str]) -> None:
    """Raise SettingsError for an RPC of which no table says who may call it."""
    unknown = sorted(set(methods) - KNOWN)
    if unknown:
        raise SettingsError(f"security/authorisation.py does not say who may call {', '.join(unknown)}")


def _grant(name: str, role: RoleSettings) -> _Grant:
    methods: set[str] = set()
    for pattern in role.methods:
        found = {method for method in KNOWN - OPEN if matches(pattern.removeprefix("/"), method.removeprefix("/"))}
        if not found:
            raise SettingsError(f"roles.{name}.methods: {pattern!r} fits no RPC")
        methods |= found
    return _Grant(frozenset(methods), role.models)
