"""Settings from flags, environment (`INFERWIRE_…`) and a TOML file, in that order of precedence."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

DEFAULT_MODEL = "smollm2-135m-instruct"
ENVIRONMENT_PREFIX = "INFERWIRE_"

_OTHER_VARIABLES = ("INFERWIRE_ADDRESS", "INFERWIRE_CLIENT_", "INFERWIRE_TEST_")
"""Read by the command line's callers, the client and the tests."""

EngineName = Literal["auto", "openvino", "tensorrt-llm", "scripted"]
Seconds = Annotated[float, Field(ge=0, le=7 * 24 * 3600)]


TENANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Tenant = Annotated[str, Field(pattern=TENANT_PATTERN)]
Text = Annotated[str, Field(min_length=1, max_length=2048)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a key pair only: who can check a token must not be able to make one."""


class SettingsError(Exception):
    """Settings that cannot be used; one line for each bad field."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JwtSettings(_Table):
    """Tokens that an issuer has signed."""

    issuer: Text
    audience: Text
    jwks: Text
    """The issuer's keys: a file, or an https:// address."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")
    leeway: Annotated[float, Field(ge=0, le=300)] = 30.0
    """How far the issuer's clock may differ from ours."""
    refresh: Annotated[float, Field(ge=1, le=24 * 3600)] = 300.0
    """How often keys are fetched from an address; an unknown key is looked for at once."""
    tenant_claim: Text = "tenant"
    roles_claim: Text = "roles"
    """A list, or words between spaces."""


class CertificateRule(_Table):
    """Who a client certificate is."""

    identity: Text
    """SPIFFE id, or subject as in `CN=search,O=acme`; `*` stands for anything but `/`, `**` for anything."""
    tenant: Tenant
    roles: tuple[Text, ...] = ("user",)


class RoleSettings(_Table):
    """What a role permits."""

    methods: tuple[Text, ...]
    """As in `inferwire.v1.InferenceService/*`."""
    models: tuple[Text, ...] = ("**",)
    """Names of models, as in `smollm2*`."""


class Settings(BaseSettings):
    """Everything an operator can set. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    model: str = DEFAULT_MODEL
    """Model to serve, as a name or name@version of the model folder; for TensorRT-LLM, the path of a checkpoint."""
    models_dir: Path = Field(default_factory=lambda: user_data_path("inferwire") / "models")
    engine: EngineName = "auto"
    """`auto` is TensorRT-LLM where it and an NVIDIA GPU are found, else OpenVINO."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the engine, as in docs/engines.md."""
    profile: Literal["fast", "exact"] = "fast"
    """OpenVINO: `exact` computes in f32, repeatable and the same alone and in a batch, at about half the speed."""
    prefix_caching: Literal["auto", "off", "shared"] = "auto"
    """`auto`: on, and where the engine cannot keep tenants apart, for one tenant only; `shared`: for all of them."""

    host: str = "127.0.0.1"
    """Address to listen on, or `unix:/path/of/a.socket`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 50051
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9090
    """Prometheus page on the same host; 0 picks a free port."""
    metrics_enabled: bool = True
    metrics_alias: bool = False
    """Serve a page at /prometheus/metrics as well, with the gauges that pickers for TensorRT-LLM's server read."""
    metrics_tenants: Annotated[frozenset[str], Field(max_length=32)] = frozenset()
    """Tenants that metrics show by name; all others are `other`."""
    price_per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """What this server costs, in any currency; the metrics page then says what a million tokens cost."""
    region: str = ""
    reflection: bool = True

    insecure: bool = False
    """Serve other hosts without TLS or without a way to authenticate."""
    tls_certificate: Path | None = None
    """PEM file: the server's certificate, then those up to the CA. Read again when it changes, as all these files."""
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """PEM file of the CAs whose certificates clients must show."""
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port without TLS where only grpc.health.v1 answers, for probes that speak no TLS."""
    api_keys: Path | None = None
    """File that `inferwire keys` writes."""
    api_keys_secret: Path | None = None
    """File of the secret under which the keys in it are hashed."""
    jwt: JwtSettings | None = None
    certificates: tuple[CertificateRule, ...] = ()
    """Who callers with a client certificate are; the first rule that fits counts."""
    trusted_proxies: tuple[Text, ...] = ()
    """Identities of proxies whose x-forwarded-client-cert is believed."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """Roles beside, or instead of, the built-in `user` and `operator`."""
    tenants: Path | None = None
    """File of what each tenant may use, as in docs/security.md."""
    audit_dir: Path | None = None
    """Folder of audit records, one for each call; without it none are kept."""
    audit_retention_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """Older ones are deleted, by whole days."""

    max_request_bytes: Annotated[int, Field(ge=1024, le=256 * 1024 * 1024)] = 4 * 1024 * 1024
    max_response_bytes: Annotated[int, Field(ge=1024, le=256 * 1024 * 1024)] = 16 * 1024 * 1024
    min_ping_interval: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    """Clients may send keepalive pings this often."""

    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Most requests waiting for the engine."""
    max_waiting_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    """Most prompt tokens waiting for the engine."""
    max_queue_time: Seconds = 60.0
    """Longest wait of a request without a deadline."""
    refuse_late: bool = True
    """Refuse at once what cannot have its first token before its deadline or target."""
    tenant_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Share of each tenant when several compete; 1 when not listed."""
    stall_time: Seconds = 30.0
    """A reader that takes nothing for this long, while something waits for it, is ended."""
    replay_time: Seconds = 120.0
    """How long a finished generation can be read again under its request id."""
    replay_bytes: Annotated[int, Field(ge=0)] = 64 * 1024 * 1024

    drain_limit: Seconds = 60.0
    """Running work is ended this long after a drain began."""
    drain_settle: Seconds = 2.0
    """After a drain began, calls from clients that have not noticed are still served for this long."""
    canary_interval: Annotated[float, Field(ge=0.1)] = 10.0
    canary_timeout: Annotated[float, Field(ge=0.1)] = 10.0
    """An idle engine must finish a one-token generation in this time, else the server is not ready."""

    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto` is console on a terminal, else json."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings)


def load_settings(flags: dict[str, Any], config_file: Path | None = None) -> Settings:
    """Settings of this process. Flags that are None are unset. Raises SettingsError."""
    given = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown_variables()
    try:
        if config_file is None:
            return Settings(**given)
        return _with_file(config_file)(**given)
    except ValidationError as error:
        lines = [_line(problem, given, config_file) for problem in error.errors()]
        raise SettingsError("\n".join(lines)) from None
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {config_file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"the settings file {config_file} is not valid TOML: {error}") from None


def _refuse_unknown_variables() -> None:
    """A misspelt variable would silently leave its setting at the default."""
    for variable in os.environ:
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        is_ours = variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(_OTHER_VARIABLES)
        if is_ours and name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"; did you mean {ENVIRONMENT_PREFIX}{near[0].upper()}?" if near else ""
            raise SettingsError(f"{variable}: no such setting{hint}")


def _with_file(config_file: Path) -> type[Settings]:
    config_file.open("rb").close()

    class SettingsWithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file))

    return SettingsWithFile


def _line(problem: Any, flags: dict[str, Any], config_file: Path | None) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if name in flags:
        source = f"--{name.replace('_', '-')}"
    elif _in_environment(name):
        source = f"{ENVIRONMENT_PREFIX}{name.upper()}"
    else:
        source = f"{path} in {config_file}" if config_file else path
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        return f"{source}: no such setting" + (f"; did you mean {near[0]}?" if near else "")
    return f"{source}={problem['input']!r}: {problem['msg']}"


def _in_environment(name: str) -> bool:
    source = EnvSettingsSource(Settings, env_prefix=ENVIRONMENT_PREFIX)
    return f"{ENVIRONMENT_PREFIX}{name}".lower() in {key.lower() for key in source.env_vars}
