"""The client's knobs and where they come from."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

import inferwire.settings
import pytest
from inferwire.settings import (
    BreakerPolicy,
    BudgetPolicy,
    ClientConfig,
    Region,
    ResumeMode,
    ResumePolicy,
    RetryPolicy,
    StallPolicy,
)
from inferwire.settings_reader import SettingsError

TOML = """
allowed_regions = ["eu"]
deadline_s = 30

[[regions]]
name = "eu"
endpoints = ["10.0.0.1:50051", "10.0.0.2:50051"]

[[regions]]
name = "us"
priority = 1
endpoints = ["dns:///infer.us.svc:50051"]

[retry]
max_attempts = 3

[stall]
first_token_s = "off"

[resume]
mode = "never"
"""
PROGRESS_BOUNDS = "expected a number at least 0.1 and at most 60"
REGIONS = {"INFERWIRE_CLIENT_REGIONS": "eu=10.0.0.1:50051,10.0.0.2:50051;us=dns:///infer.us.svc:50051"}


def complaints(make: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        make()
    return str(caught.value).splitlines()


def of_dict(**fields: object) -> Callable[[], object]:
    regions = [{"name": "eu", "endpoints": ["a:1"]}, {"name": "us", "endpoints": ["b:1"]}]
    return lambda: ClientConfig.from_dict({"regions": regions, **fields})


def test_toml_text_sets_what_it_names_and_leaves_the_rest() -> None:
    config = ClientConfig.from_toml(TOML)

    assert [region.name for region in config.regions] == ["eu", "us"]
    assert config.regions[1] == Region(name="us", priority=1, endpoints=("dns:///infer.us.svc:50051",))
    assert (config.allowed_regions, config.deadline_s) == (("eu",), 30.0)
    assert config.retry == RetryPolicy(max_attempts=3)
    assert config.stall == StallPolicy(first_token_s=None)
    assert config.resume.mode is ResumeMode.NEVER
    assert config.breaker == BreakerPolicy()


@pytest.mark.parametrize("as_text", [True, False], ids=["str", "Path"])
def test_a_toml_file_is_read_by_its_path(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "client.toml"
    path.write_text(TOML)

    assert ClientConfig.from_toml(str(path) if as_text else path) == ClientConfig.from_toml(TOML)


def test_a_dict_may_hold_ready_made_parts() -> None:
    config = ClientConfig.from_dict({"regions": [Region(name="eu", endpoints=("a:1",))], "retry": RetryPolicy()})

    assert config == ClientConfig(regions=(Region(name="eu", endpoints=("a:1",)),))


def test_one_address_is_a_region_of_one_endpoint() -> None:
    config = ClientConfig.for_address("localhost:50051", deadline_s=5.0)

    assert config.regions == (Region(name="default", endpoints=("localhost:50051",)),)
    assert config.deadline_s == 5.0


def test_the_environment_lists_regions_from_near_to_far() -> None:
    config = ClientConfig.from_env(REGIONS)

    assert [(one.name, one.priority, one.endpoints) for one in config.regions] == [
        ("eu", 0, ("10.0.0.1:50051", "10.0.0.2:50051")),
        ("us", 1, ("dns:///infer.us.svc:50051",)),
    ]


def test_the_environment_sets_any_field_by_its_path() -> None:
    config = ClientConfig.from_env(
        {
            **REGIONS,
            "INFERWIRE_CLIENT_ALLOWED_REGIONS": "eu, us",
            "INFERWIRE_CLIENT_DEADLINE_S": "off",
            "INFERWIRE_CLIENT_RETRY_MAX_ATTEMPTS": "2",
            "INFERWIRE_CLIENT_RESUME_MODE": "any",
            "INFERWIRE_CLIENT_STALL_BETWEEN_TOKENS_S": "1.5",
            "UNRELATED": "1",
        }
    )

    assert (config.allowed_regions, config.deadline_s) == (("eu", "us"), None)
    assert (config.retry.max_attempts, config.resume.mode) == (2, ResumeMode.ANY)
    assert config.stall.between_tokens_s == 1.5


def test_the_environment_overrides_the_file_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(TOML)

    config = ClientConfig.from_env(
        {"INFERWIRE_CLIENT_CONFIG": str(path), "INFERWIRE_CLIENT_RETRY_BASE_DELAY_S": "0.01"}
    )

    assert config.retry == RetryPolicy(max_attempts=3, base_delay_s=0.01)
    assert config.allowed_regions == ("eu",)


def test_every_bad_field_gets_its_line() -> None:
    assert complaints(
        of_dict(
            deadline_s=-1,
            retry={"max_attempts": "many", "base_delay_s": True},
            budget={"ratio": 1.5},
            resume={"mode": "sometimes"},
        )
    ) == [
        "deadline_s: -1: expected a number above 0",
        "retry.max_attempts: 'many': expected a whole number at least 1",
        "retry.base_delay_s: True: expected a number at least 0",
        "budget.ratio: 1.5: expected a number at least 0 and at most 1",
        "resume.mode: 'sometimes': expected one of never, same_model, any",
    ]


def test_bad_variables_are_named_as_variables() -> None:
    bad = {**REGIONS, "INFERWIRE_CLIENT_RETRY_MAX_ATTEMPTS": "0", "INFERWIRE_CLIENT_BREAKER_ERROR_RATE": "nan"}

    assert complaints(lambda: ClientConfig.from_env(bad)) == [
        "INFERWIRE_CLIENT_BREAKER_ERROR_RATE: nan: expected a number at least 0 and at most 1",
        "INFERWIRE_CLIENT_RETRY_MAX_ATTEMPTS: 0: expected a whole number at least 1",
    ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"retries": 3}, "retries: no such setting; did you mean retry?"),
        ({"retry": {"max_atempts": 3}}, "retry.max_atempts: no such setting; did you mean max_attempts?"),
        ({"zzz": 3}, "zzz: no such setting"),
        ({"retry": 3}, "retry: 3 is not a table of settings"),
        ({"regions": [{"name": "eu"}]}, "regions[0].endpoints: required"),
        ({"regions": "eu"}, "regions[0]: 'eu' is not a table of settings"),
        ({"regions": []}, "regions: empty; list at least one region"),
        ({"regions": [{"name": "", "endpoints": ["a:1"]}]}, "regions[0].name: empty"),
        ({"regions": [{"name": "eu", "endpoints": []}]}, "regions[0].endpoints: empty; list at least one address"),
        ({"regions": [{"name": "eu", "endpoints": [5]}]}, "regions[0].endpoints[0]: 5: expected str"),
        ({"allowed_regions": []}, "allowed_regions: empty; leave it out to allow every region"),
        ({"allowed_regions": ["eu1"]}, "allowed_regions: 'eu1' is no region; did you mean 'eu'?"),
        ({"retry": {"base_delay_s": 3.0}}, "retry.base_delay_s: 3 is above max_delay_s = 2"),
        ({"breaker": {"open_base_s": 60}}, "breaker.open_base_s: 60 is above open_max_s = 30"),
        ({"stall": {"between_tokens_s": 0.6}}, "stall.between_tokens_s: 0.6 is below twice progress_interval_s = 0.5"),
        ({"stall": {"progress_interval_s": 0.01}}, "stall.progress_interval_s: 0.01: " + PROGRESS_BOUNDS),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_what_to_do(fields: dict[str, object], line: str) -> None:
    assert complaints(of_dict(**fields)) == [line]


def test_a_region_or_an_endpoint_listed_twice_is_refused() -> None:
    twice = {"name": "eu", "endpoints": ["a:1"]}

    assert complaints(lambda: ClientConfig.from_dict({"regions": [twice, twice]})) == [
        "regions: 'eu' is listed 2 times",
        "regions: endpoint 'a:1' is listed 2 times",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        (
            "INFERWIRE_CLIENT_RETRY_MAX_ATEMPTS",
            "3",
            "INFERWIRE_CLIENT_RETRY_MAX_ATEMPTS: no such variable; did you mean INFERWIRE_CLIENT_RETRY_MAX_ATTEMPTS?",
        ),
        ("INFERWIRE_CLIENT_REGIONS", "eu", "INFERWIRE_CLIENT_REGIONS: 'eu': expected region=address,address"),
        (
            "INFERWIRE_CLIENT_REGIONS",
            "eu=",
            "INFERWIRE_CLIENT_REGIONS[0].endpoints: empty; list at least one address",
        ),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, line: str) -> None:
    assert complaints(lambda: ClientConfig.from_env({**REGIONS, variable: value}))[0].startswith(line)


def test_broken_toml_is_a_settings_error() -> None:
    assert complaints(lambda: ClientConfig.from_toml("retry = {\n"))[0].startswith("TOML: ")


def test_a_constructor_checks_as_a_file_does() -> None:
    assert complaints(lambda: BudgetPolicy(reserve=-1)) == ["reserve: -1: expected a whole number at least 0"]
    assert complaints(lambda: ResumePolicy(mode="never")) == [  # type: ignore[arg-type]
        "mode: 'never': expected one of never, same_model, any"
    ]


def test_changes_are_checked_too() -> None:
    config = ClientConfig.for_address("localhost:50051")

    assert config.with_changes(deadline_s=None).deadline_s is None
    assert complaints(lambda: config.with_changes(connect_timeout_s=0)) == [
        "connect_timeout_s: 0: expected a number above 0"
    ]


def policies() -> list[type]:
    return [
        one
        for one in vars(inferwire.settings).values()
        if isinstance(one, type) and dataclasses.is_dataclass(one) and one.__module__ == inferwire.settings.__name__
    ]


@pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.__name__)
def test_settings_are_frozen_keyword_only_values(policy: type) -> None:
    assert policy.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert policy.__match_args__ == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.__name__)
def test_every_plain_field_says_what_it_is(policy: type) -> None:
    (body,) = ast.parse(inspect.getsource(policy)).body
    assert isinstance(body, ast.ClassDef)
    undocumented = [
        ast.unparse(field.target)
        for field, after in zip(body.body, [*body.body[1:], ast.Pass()], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
        and "Policy" not in ast.unparse(field.annotation)
    ]

    assert undocumented == []
