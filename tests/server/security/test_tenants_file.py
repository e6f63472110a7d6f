"""The file of tenants: a table inherits from the default, and whatever is wrong is said with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inferwire_server.app.tenancy import Tenancy
from inferwire_server.domain.generation import Priority
from inferwire_server.observability.metrics import Metrics
from inferwire_server.security.quota import UNLIMITED, Quota
from inferwire_server.security.tenants import NO_CONTENT, Tenants, load_tenants
from inferwire_server.settings import SettingsError

from tests.server_process import server_process


def read(text: str) -> Tenants:
    return load_tenants([text.encode()])


def test_a_table_inherits_what_it_leaves_out() -> None:
    tenants = read(
        """
        [default]
        requests_per_minute = 60
        tokens_per_minute = 1000
        [tenants.acme]
        tokens_per_minute = "unlimited"
        concurrent_requests = 4
        priorities = ["batch", "standard"]
        """
    )
    assert tenants.policy("nobody").quota == Quota(requests_per_minute=60, tokens_per_minute=1000)
    assert tenants.policy("acme").quota == Quota(
        requests_per_minute=60, concurrent_requests=4, priorities=frozenset({Priority.BATCH, Priority.STANDARD})
    )


def test_an_empty_file_limits_nobody_and_writes_down_nothing() -> None:
    policy = read("").policy("acme")
    assert (policy.quota, policy.content) == (UNLIMITED, NO_CONTENT)
    assert not policy.content.keeps_any


def test_the_example_of_the_page_on_security_is_one() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "security.md").read_text()
    (example,) = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[default]" in block]
    tenants = read(example)
    assert tenants.policy("acme").quota.tokens_per_minute is None
    assert tenants.policy("nobody").quota.tokens_per_minute == 100_000


def test_redactions_are_functions_that_can_be_imported() -> None:
    content = read('[default]\naudit_content = ["prompt"]\naudit_redactions = ["html:escape"]').policy("a").content
    assert (content.keeps_prompt, content.keeps_output) == (True, False)
    assert [redact("<") for redact in content.redactions] == ["&lt;"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default]\ntokens = 3", "default.tokens: Extra inputs are not permitted"),
        ("[tenants.acme]\ntokens_per_minute = -1", "tenants.acme.tokens_per_minute"),
        ("[tenants.acme]\ntokens_per_minute = 9007199254740993", "or equal to 9007199254740992"),
        (f"[default]\nmonthly_tokens = {'9' * 3000}", "default.monthly_tokens"),
        ("[tenants.acme]\nmax_output_tokens = 9007199254740993", "or equal to 9007199254740992"),
        ("[tenants.acme]\npriorities = []", "tenants.acme.priorities"),
        ("[tenants.acme]\npriorities = ['urgent']", "tenants.acme.priorities"),
        ("[tenants.acme]\nmonthly_warning = 2", "tenants.acme.monthly_warning"),
        ("[tenants.acme]\nmax_output_tokens = 0", "tenants.acme.max_output_tokens"),
        ("[tenants.acme]\naudit_redactions = ['nowhere:f']", "tenants.acme.audit_redactions: 'nowhere:f'"),
        ("[tenants.acme]\naudit_redactions = ['html']", "tenants.acme.audit_redactions: 'html'"),
        ("[tenants.acme]\naudit_redactions = ['html:entities']", "tenants.acme.audit_redactions: 'html:entities'"),
        ("[tenants.'not a name!']\n", "tenants.not a name!"),
        ("[tenant.acme]\n", "tenant"),
        ("tokens = ", "Invalid value"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read(text)


def test_a_file_that_is_not_there_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tenants: .*nothing\.toml cannot be read: No such file"):
        Tenancy(tmp_path / "nothing.toml", Metrics("m@1", codes=(), reasons=()))


async def test_a_server_does_not_start_with_a_file_that_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[default]\nnonsense = 1")
    async with server_process(until="", tenants=file) as server:
        assert await server.until_exit() == 2
    assert f"tenants: {file}: default.nonsense" in str(server.log[-1]["event"])
