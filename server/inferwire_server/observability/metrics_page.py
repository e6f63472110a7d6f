"""The Prometheus page, served from a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PAGE_PATH = "/metrics"
ALIAS_PATH = "/prometheus/metrics"
"""Where TensorRT-LLM's own server has it, so that a picker configured for that one finds it."""

_NOTICES_CLOSE_WITHIN_S = 0.05
_REQUEST_TIMEOUT_S = 10.0


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    """A connection that says nothing must not keep a thread."""

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line each."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up in the middle of a scrape is not worth a stack."""


class MetricsPage:
    """Listens once constructed by `serve`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_NOTICES_CLOSE_WITHIN_S,), name="metrics page", daemon=True
        )

    @classmethod
    def serve(cls, registry: CollectorRegistry, host: str, port: int, alias: CollectorRegistry | None) -> MetricsPage:
        """Listen on a port, 0 for a free one; `alias` has a page of its own. Raises OSError."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_ServerOfItsFamily", (_Server,), {"address_family": family})
        pages = {PAGE_PATH: make_wsgi_app(registry)}
        if alias is not None:
            pages[ALIAS_PATH] = make_wsgi_app(alias)
        page = cls(make_server(host, port, _only(pages), kind, _Handler))
        page._thread.start()
        return page

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        """Blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _only(pages: Mapping[str, WSGIApplication]) -> WSGIApplication:
    """These pages, to be read; nothing else is here."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return _refuse(start_response, "404 Not Found")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _refuse(start_response, "405 Method Not Allowed", ("Allow", "GET, HEAD"))
        return page(environ, start_response)

    return answer


def _refuse(start_response: StartResponse, status: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain"), *headers])
    return [f"{status}\n".encode()]
