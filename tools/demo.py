"""`make demo`: pull a real model, serve it, stream from it, and show what a cached prefix saves."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from inferwire import Client, InferwireError

MODEL = "smollm2-135m-instruct"
START_LIMIT_S = 120.0
QUESTIONS = ("Why is the sky blue? Answer in two sentences.", "Tell me a short story about a lighthouse.")


def main() -> int:
    """Run the demonstration; returns the exit status."""
    _run("pull", MODEL)
    address = f"127.0.0.1:{_free_port()}"
    print(f"\nServing {MODEL} at {address}: loading the model …\n", flush=True)
    with _server(address) as started_s, Client(address) as client:
        print(f"Ready after {started_s:.1f} s.\n")
        for question in QUESTIONS:
            _ask(client, question)
        _show_prefix_caching(client)
    print("\nTry it yourself:  .venv/bin/inferwire serve   and then   .venv/bin/inferwire chat")
    return 0


@contextlib.contextmanager
def _server(address: str) -> Iterator[float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "inferwire_server", "serve", MODEL, "--port", address.rpartition(":")[2]]
    process = subprocess.Popen([*command, "--no-metrics", "--log-level", "warning", "--drain-settle", "0"])
    try:
        _until_ready(process, address, began)
        yield time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _until_ready(process: subprocess.Popen[bytes], address: str, began: float) -> None:
    with Client(address) as client:
        while time.monotonic() - began < START_LIMIT_S:
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode} before it was ready")
            with contextlib.suppress(InferwireError):
                if client.status(timeout_s=2).state == 2:
                    return
            time.sleep(0.1)
    raise SystemExit(f"the server was not ready within {START_LIMIT_S:.0f} s")


def _ask(client: Client, question: str) -> None:
    print(f"you> {question}\nmodel> ", end="", flush=True)
    sent = time.monotonic()
    first = 0.0
    with client.stream_chat(question, max_output_tokens=96) as stream:
        for chunk in stream:
            first = first or time.monotonic()
            print(chunk.text, end="", flush=True)
    reply = stream.reply
    decode_s = max(time.monotonic() - first, 1e-9)
    rate = (reply.output_tokens - 1) / decode_s
    print(
        f"\n       [time to first token {1000 * (first - sent):.0f} ms, "
        f"{reply.output_tokens} tokens, {rate:.0f} tokens/s]\n"
    )


def _show_prefix_caching(client: Client) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 100
    times = []
    for _ in range(2):
        sent = time.monotonic()
        with client.stream(prompt, max_output_tokens=1) as stream:
            next(stream, None)
            times.append(time.monotonic() - sent)
            list(stream)
    cold, cached = times
    print(
        f"The same prompt of {stream.reply.prompt_tokens} tokens twice: first token after {1000 * cold:.0f} ms, then, "
        f"with its prefix in the cache, after {1000 * cached:.0f} ms ({cached / cold:.0%} of that)."
    )


def _run(*arguments: str) -> None:
    status = subprocess.call([sys.executable, "-m", "inferwire_server", *arguments])
    if status:
        raise SystemExit(status)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    raise SystemExit(main())
