"""A package index on loopback that can misbehave in the ways real ones and their mirrors do."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


class Habit(enum.Enum):
    """What the index does when asked."""

    SERVE = enum.auto()
    CUT_ONCE = enum.auto()
    """Break the first download in the middle, then serve ranges."""
    CUT_ALWAYS = enum.auto()
    """Break each download in the middle, and serve no ranges."""
    WANT_LOGIN = enum.auto()
    KNOW_NOTHING = enum.auto()
    HANG = enum.auto()
    """Stop in the middle of a download until the index closes."""


@dataclass
class PackageIndex:
    """One wheel behind pip's simple API."""

    package: str
    file_name: str
    content: bytes
    habit: Habit = Habit.SERVE
    downloads: int = 0
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def environment(self) -> dict[str, str]:
        """Settings of pip that make this the only index."""
        return {**bare_environment(), "PIP_INDEX_URL": self.url}


def bare_environment() -> dict[str, str]:
    """An environment in which pip knows no index, cache or configuration of this machine."""
    return {
        "PATH": os.environ["PATH"],
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
        "PIP_RESUME_RETRIES": "2",
        "PIP_TIMEOUT": "20",
    }


@contextlib.contextmanager
def serving(index: PackageIndex) -> Iterator[PackageIndex]:
    """Run the index until the block ends."""

    class Handler(_Handler):
        served = index

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield index
    finally:
        index.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    served: PackageIndex
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        index = self.served
        if index.habit is Habit.WANT_LOGIN:
            self._reply(401, b"", {"WWW-Authenticate": "Basic"})
        elif index.habit is Habit.KNOW_NOTHING:
            self._reply(404, b"", {})
        elif self.path.startswith("/simple/"):
            link = f'<a href="/files/{index.file_name}">{index.file_name}</a>'.encode()
            self._reply(200, link, {"Content-Type": "text/html"})
        else:
            index.downloads += 1
            self._send_file(index)

    def _send_file(self, index: PackageIndex) -> None:
        content, half = index.content, len(index.content) // 2
        wanted = self.headers.get("Range", "")
        if wanted and index.habit is Habit.CUT_ONCE:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            kind = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            self._reply(206, content[start:], kind)
        elif index.habit is Habit.SERVE:
            self._reply(200, content, {"Accept-Ranges": "bytes"})
        else:
            self._reply(200, content[:half], {"Accept-Ranges": "bytes", "ETag": '"1"'}, length=len(content))
            if index.habit is Habit.HANG:
                index.closing.wait()
            self.close_connection = True

    def _reply(self, status: int, body: bytes, headers: dict[str, str], *, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""
