"""Pages of metrics as a scraper gets them."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

HANG_BOUND_S = 20.0


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str


def answer(port: int, path: str = "/metrics", method: str = "GET") -> Answer:
    """Ask for a page, with a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_BOUND_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read().decode())
    finally:
        connection.close()


def samples(page: str) -> list[Sample]:
    """Every sample of a page."""
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def series(found: Iterable[Sample]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """What tells them apart."""
    return {(sample.name, frozenset(sample.labels.items())) for sample in found}
