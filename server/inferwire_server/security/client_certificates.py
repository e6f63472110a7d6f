"""Callers by their certificate, or by the one that a trusted proxy saw (Envoy's x-forwarded-client-cert)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferwire_server.domain.caller import Caller
from inferwire_server.security.identity import Metadata, is_subject
from inferwire_server.security.patterns import matches
from inferwire_server.settings import CertificateRule

FORWARDED_KEY = "x-forwarded-client-cert"
_MAX_FORWARDED = 16_384


class ClientCertificates:
    """Rules in order: the first that fits one of a caller's identities says who it is."""

    def __init__(self, rules: Sequence[CertificateRule], trusted_proxies: Sequence[str]) -> None:
        self._rules = tuple(rules)
        self._proxies = tuple(trusted_proxies)

    def caller(self, identities: tuple[str, ...], metadata: Metadata) -> Caller | None:
        """None for nobody known. Only a trusted proxy's word is taken for another's identity."""
        if any(matches(proxy, identity) for proxy in self._proxies for identity in identities):
            forwarded = metadata.get(FORWARDED_KEY)
            if isinstance(forwarded, str):
                return self._named(forwarded_identities(forwarded))
        return self._named(identities)

    def _named(self, identities: tuple[str, ...]) -> Caller | None:
        for rule in self._rules:
            for identity in identities:
                if matches(rule.identity, identity) and is_subject(identity):
                    return Caller(tenant=rule.tenant, subject=identity, roles=frozenset(rule.roles))
        return None


def forwarded_identities(header: str) -> tuple[str, ...]:
    """URIs and subject of the certificate that the proxy itself saw: the last element, for earlier ones are hearsay.

    Elements are divided by `,`, pairs in them by `;`; values may be quoted, with `\\"` for a quote inside.
    Nothing from a header that is cut off or too long.
    """
    if len(header) > _MAX_FORWARDED:
        return ()
    uris: list[str] = []
    subjects: list[str] = []
    for name, value, begins_element in _pairs(header):
        if begins_element:
            uris, subjects = [], []
        if name.lower() == "uri" and value:
            uris.append(value)
        elif name.lower() == "subject" and value:
            subjects.append(value)
        elif not name:
            return ()
    return (*uris, *subjects)


def _pairs(header: str) -> Iterator[tuple[str, str, bool]]:
    """Name, value, and whether the pair is the first of its element; an empty name for what is malformed."""
    at, begins = 0, True
    while at < len(header):
        name, equals, _ = header[at:].partition("=")
        at += len(name) + 1
        if not equals or any(mark in name for mark in ',;"'):
            yield "", "", begins
            return
        value = ""
        if header[at : at + 1] == '"':
            at += 1
            while at < len(header) and header[at] != '"':
                at += header[at] == "\\" and at + 1 < len(header)
                value += header[at]
                at += 1
            if at >= len(header):
                yield "", "", begins
                return
            at += 1
        else:
            while at < len(header) and header[at] not in ",;":
                value += header[at]
                at += 1
        yield name.strip(), value, begins
        if at < len(header) and header[at] not in ",;":
            yield "", "", begins
            return
        begins = header[at : at + 1] == ","
        at += 1
