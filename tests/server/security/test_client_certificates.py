"""Who a certificate is, and whose word is taken for it: the proxy's own identity decides, never a header alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.security.client_certificates import ClientCertificates, forwarded_identities
from inferwire_server.security.patterns import matches
from inferwire_server.settings import CertificateRule

PROXY = "spiffe://mesh.example/ns/edge/sa/envoy"
RULES = (
    CertificateRule(identity="spiffe://mesh.example/ns/search/sa/*", tenant="search"),
    CertificateRule(identity="CN=batch,O=acme", tenant="batch", roles=("user", "operator")),
    CertificateRule(identity="spiffe://mesh.example/**", tenant="others", roles=()),
)
CERTIFICATES = ClientCertificates(RULES, [PROXY])
HEADER = "x-forwarded-client-cert"


def tenant(*identities: str, forwarded: str | None = None) -> str | None:
    metadata = {} if forwarded is None else {HEADER: forwarded}
    caller = CERTIFICATES.caller(identities, metadata)
    return None if caller is None else caller.tenant


def test_the_first_rule_that_fits_says_who_it_is() -> None:
    caller = CERTIFICATES.caller(("spiffe://mesh.example/ns/search/sa/indexer",), {})
    assert caller is not None
    assert (caller.tenant, caller.subject, caller.roles) == (
        "search",
        "spiffe://mesh.example/ns/search/sa/indexer",
        frozenset({"user"}),
    )
    assert tenant("spiffe://mesh.example/ns/search/sa/a/b") == "others"
    assert tenant("CN=batch,O=acme") == "batch"
    assert tenant("spiffe://mesh.example.evil/ns/search/sa/x") is None
    assert tenant() is None


def test_a_trusted_proxy_speaks_for_the_caller_it_saw() -> None:
    named = 'By=spiffe://mesh.example/x;Hash=00;Subject="CN=batch,O=acme";URI=spiffe://elsewhere.example/x'
    assert tenant(PROXY, forwarded="URI=spiffe://mesh.example/ns/search/sa/a") == "search"
    assert tenant(PROXY, forwarded=named) == "batch"


def test_anybody_elses_word_counts_for_nothing() -> None:
    forged = "URI=spiffe://mesh.example/ns/search/sa/a"
    assert tenant("spiffe://mesh.example/ns/edge/sa/other", forwarded=forged) == "others"
    assert tenant("spiffe://mesh.example/ns/edge/sa/envoy/x", forwarded=forged) == "others"
    assert tenant("CN=evil", forwarded=forged) is None
    assert tenant(forwarded=forged) is None


def test_only_what_the_proxy_itself_saw_counts_not_what_it_was_told() -> None:
    told = "URI=spiffe://mesh.example/ns/search/sa/a,URI=spiffe://elsewhere.example/x"
    assert tenant(PROXY, forwarded=told) is None
    quoted = 'Subject="CN=x,URI=spiffe://mesh.example/ns/search/sa/a";URI=spiffe://elsewhere.example/x'
    assert forwarded_identities(quoted) == (
        "spiffe://elsewhere.example/x",
        "CN=x,URI=spiffe://mesh.example/ns/search/sa/a",
    )


@pytest.mark.parametrize(
    "header",
    ["", "URI", 'URI="spiffe://a', "=x", ";URI=a", "URI=a;;URI=b", 'URI="a"b', "Hash=00", "URI=", "URI=a," * 9000],
)
def test_a_header_that_is_cut_off_or_no_such_header_names_nobody(header: str) -> None:
    assert forwarded_identities(header) == ()


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("a*c", "abbc", True),
        ("a*c", "a/c", False),
        ("a**c", "a/b/c", True),
        ("a.c", "abc", False),
        ("CN=*", "CN=x", True),
        ("*", "", True),
        ("**", "any/thing\n", True),
        ("a", "ab", False),
    ],
)
def test_patterns(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


@given(st.lists(st.tuples(st.sampled_from(["By", "Hash", "URI", "Subject", "DNS"]), st.text()), min_size=1, max_size=4))
def test_quoted_values_come_back_as_they_were(pairs: list[tuple[str, str]]) -> None:
    quoted = ";".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    uris = [value for name, value in pairs if name == "URI" and value]
    subjects = [value for name, value in pairs if name == "Subject" and value]
    assert forwarded_identities(f"URI=hearsay,{quoted}") == (*uris, *subjects)


@given(st.text())
def test_no_header_makes_it_fail(header: str) -> None:
    assert isinstance(forwarded_identities(header), tuple)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
