"""A stand-in for the Hugging Face hub on loopback: one repository, listed and served as the hub does."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = "maker/Tiny-Model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".bin", ".safetensors")


@dataclass
class ModelHub:
    """The files of the repository, and what the hub has been asked for."""

    folder: Path
    error: tuple[int, str] | None = None
    """Status and X-Error-Code of each answer, instead of the files."""
    tampered: str = ""
    """A file that is served with one byte changed."""
    url: str = ""
    fetched: list[str] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Settings of the hub client."""
        return {"HF_ENDPOINT": self.url}

    def listing(self) -> dict[str, Any]:
        """The hub's description of the repository."""
        files = [_listed(path) for path in sorted(self.folder.iterdir()) if path.is_file()]
        return {"id": REPOSITORY, "sha": COMMIT, "tags": ["license:apache-2.0"], "siblings": files}


def _listed(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": name}
    if path.suffix in _LARGE:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return entry


@contextlib.contextmanager
def serving_hub(hub: ModelHub) -> Iterator[ModelHub]:
    """Run the hub until the block ends."""

    class Handler(_Handler):
        served = hub

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    served: ModelHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.served, self.path.partition("?")[0]
        parts = path.strip("/").split("/")
        if hub.error is not None:
            self._reply(hub.error[0], b"{}", {"X-Error-Code": hub.error[1]}, with_body)
        elif path in (f"/api/models/{REPOSITORY}", f"/api/models/{REPOSITORY}/revision/{COMMIT[:7]}"):
            self._reply(200, json.dumps(hub.listing()).encode(), {}, with_body)
        elif path.startswith("/api/models/"):
            self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif parts[:4] == [*REPOSITORY.split("/"), "resolve", COMMIT]:
            self._send(hub, parts[-1], with_body)
        else:
            self._reply(404, b"", {}, with_body)

    def _send(self, hub: ModelHub, name: str, with_body: bool) -> None:
        content = bytearray((hub.folder / name).read_bytes())
        if name == hub.tampered:
            content[0] ^= 1
        if with_body:
            hub.fetched.append(name)
        etag = hashlib.sha256(content).hexdigest()
        self._reply(200, bytes(content), {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, with_body)

    def _reply(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""
