"""The same client without asyncio: a loop in a thread of its own does the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from inferwire.client import AsyncClient, Prompt, TextStream
from inferwire.replies import Chunk, Reply
from inferwire.requests import Message, Options
from inferwire.settings import ClientConfig
from inferwire.v1 import inference_pb2, model_pb2, operations_pb2

T = TypeVar("T")


class Client:
    """As AsyncClient, for ordinary code. Use it as `with`, or call `close`. Safe to share between threads."""

    def __init__(self, target: str | ClientConfig = "127.0.0.1:50051", *, tenant: str = "") -> None:
        """`target` is one address, or a configuration with regions. Nothing is connected yet."""
        self._client = AsyncClient(target, tenant=tenant)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Client around {self._client!r}>"

    def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Reply:
        """One whole generation."""
        return self._run(self._client.generate(prompt, timeout_s=timeout_s, **options))

    def chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Reply:
        """Answer a conversation; a text is one user's message."""
        return self._run(self._client.chat(messages, timeout_s=timeout_s, **options))

    def stream(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> BlockingTextStream:
        """Chunks as they are produced; leaving the stream cancels the generation."""
        return BlockingTextStream(self, self._client.stream(prompt, timeout_s=timeout_s, **options))

    def stream_chat(
        self, messages: str | Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> BlockingTextStream:
        """As `chat`, in chunks."""
        return BlockingTextStream(self, self._client.stream_chat(messages, timeout_s=timeout_s, **options))

    def tokenize(
        self, prompt: str | Sequence[Message], *, model: str = "", timeout_s: float | None = None
    ) -> list[int]:
        """The token ids that a generation of the same prompt would be given."""
        return self._run(self._client.tokenize(prompt, model=model, timeout_s=timeout_s))

    def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids."""
        return self._run(self._client.detokenize(token_ids, model=model, timeout_s=timeout_s))

    def models(self, *, timeout_s: float | None = None) -> list[model_pb2.Model]:
        """What is served."""
        return self._run(self._client.models(timeout_s=timeout_s))

    def server_info(self, *, timeout_s: float | None = None) -> inference_pb2.GetServerInfoResponse:
        """What the server is and accepts."""
        return self._run(self._client.server_info(timeout_s=timeout_s))

    def status(self, *, timeout_s: float | None = None) -> operations_pb2.GetServerStatusResponse:
        """How the server is; for operators."""
        return self._run(self._client.status(timeout_s=timeout_s))

    def close(self) -> None:
        """Give up every connection and end the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="inferwire-client", daemon=True)
                self._thread.start()
            return self._loop


class BlockingTextStream(Iterator[Chunk]):
    """`for` it. Leaving early (break, an error, `with`) cancels the generation."""

    def __init__(self, client: Client, stream: TextStream) -> None:
        self._client = client
        self._stream = stream
        self._has_ended = False

    @property
    def text(self) -> str:
        """Of the first output, so far."""
        return self._stream.text

    @property
    def reply(self) -> Reply:
        """Everything so far; complete once the iteration has ended."""
        return self._stream.reply

    def cancel(self) -> None:
        """End the generation."""
        if not self._has_ended:
            self._has_ended = True
            self._client._run(self._stream.cancel())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._client._run(self._next())
        if chunk is None:
            self._has_ended = True
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        loop = self._client._loop
        if not self._has_ended and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stream.cancel(), loop)

    async def _next(self) -> Chunk | None:
        return await anext(self._stream, None)
