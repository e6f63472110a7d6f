"""The Prometheus page, served from a thread of its own."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

_NOTICES_CLOSE_WITHIN_S = 0.05


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line each."""


class MetricsPage:
    """Listens once constructed by `serve`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_NOTICES_CLOSE_WITHIN_S,), name="metrics page", daemon=True
        )

    @classmethod
    def serve(cls, registry: CollectorRegistry, host: str, port: int) -> MetricsPage:
        """Listen on a port, 0 for a free one. Raises OSError."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Server", (ThreadingMixIn, WSGIServer), {"address_family": family, "daemon_threads": True})
        page = cls(make_server(host, port, make_wsgi_app(registry), kind, _QuietHandler))
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
