"""The resilient channel for generated stubs without asyncio: one loop in a thread of its own does the work."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any, Self

import grpc

from inferwire.background_loop import BackgroundLoop
from inferwire.channels import Fleet
from inferwire.credentials import CredentialSource
from inferwire.errors import Cancelled
from inferwire.observation import Observer
from inferwire.resilient_channel import ResilientChannel, ResilientRpcError
from inferwire.settings import ClientConfig


class BlockingResilientChannel(grpc.Channel):
    """Give it to a generated stub: `InferenceServiceStub(BlockingResilientChannel(config))`.

    Nothing is opened before the first call. Safe to share between threads; not to be used across a fork.
    """

    def __init__(
        self,
        config: ClientConfig | str,
        *,
        observer: Observer | None = None,
        credential: CredentialSource | None = None,
        open_fleet: Callable[..., Fleet] = Fleet,
    ) -> None:
        """`config`, or the address of a single server; the rest as for `ResilientChannel`. The observer is called in
        the thread."""
        self._channel = ResilientChannel(config, observer=observer, credential=credential, open_fleet=open_fleet)
        self._loop = BackgroundLoop("inferwire-channel")

    def __repr__(self) -> str:
        return f"<BlockingResilientChannel around {self._channel!r}>"

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A callable for a unary RPC, with `future` and `with_call` as usual."""
        return _BlockingUnary(self._loop, self._channel.unary_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A callable for a server-streaming RPC."""
        return _BlockingStreams(self._loop, self._channel.unary_stream(method, *arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Not part of the contract."""
        raise NotImplementedError("inferwire has no client-streaming RPCs")

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Not part of the contract."""
        raise NotImplementedError("inferwire has no bidirectional RPCs")

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """Call back once with the present state; changes are not followed."""
        callback(self._channel.get_state())

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Nothing to do."""

    def fleet(self) -> Fleet:
        """The endpoints, opened if they are not yet. They belong to the thread: look only."""

        async def work() -> Fleet:
            return self._channel.fleet()

        return self._loop.run(work())

    def close(self) -> None:
        """Give up every connection and end the thread."""
        self._loop.stop(self._channel.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _BlockingUnary:
    def __init__(self, loop: BackgroundLoop, callable_: Any) -> None:
        self._loop = loop
        self._callable = callable_

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self.with_call(request, timeout, metadata)[0]

    def with_call(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any
    ) -> tuple[Any, BlockingCall]:
        """The response and its call."""

        async def work() -> tuple[Any, Any]:
            call = self._callable(request, timeout=timeout, metadata=metadata)
            return await call, call

        response, call = self._loop.run(work())
        return response, BlockingCall(self._loop, call)

    def future(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any
    ) -> concurrent.futures.Future[Any]:
        """The response later: `result`, `exception`, `cancel` and `add_done_callback` as usual."""

        async def work() -> Any:
            return await self._callable(request, timeout=timeout, metadata=metadata)

        return self._loop.begin(work())


class _BlockingStreams:
    def __init__(self, loop: BackgroundLoop, callable_: Any) -> None:
        self._loop = loop
        self._callable = callable_

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any
    ) -> BlockingStream:
        async def work() -> Any:
            return self._callable(request, timeout=timeout, metadata=metadata)

        return BlockingStream(self._loop, self._loop.run(work()))


class BlockingCall:
    """What is known of a call."""

    def __init__(self, loop: BackgroundLoop, call: Any) -> None:
        self._loop = loop
        self._call = call

    def code(self) -> grpc.StatusCode:
        """How it ended."""
        code: grpc.StatusCode = self._loop.run(self._call.code())
        return code

    def details(self) -> str:
        """Why it failed; empty when it did not."""
        details: str = self._loop.run(self._call.details())
        return details

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """How the call was served."""
        return tuple(self._loop.run(self._call.trailing_metadata()))

    def cancel(self) -> bool:
        """End it."""

        async def work() -> bool:
            return bool(self._call.cancel())

        return self._loop.run(work())

    def is_active(self) -> bool:
        """Whether it has not ended."""
        return not self._call.done()


class BlockingStream(BlockingCall, Iterator[Any]):
    """`for` it. Dropping it cancels the call."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            event = self._loop.run(self._call.read())
        except concurrent.futures.CancelledError:
            # As gRPC's own: another thread's `cancel` is an error of the reader.
            raise ResilientRpcError(Cancelled("the call was cancelled")) from None
        if event is grpc.aio.EOF:
            raise StopIteration
        return event

    def __del__(self) -> None:
        if not self._call.done():
            self._loop.post(_cancel(self._call))


async def _cancel(call: Any) -> None:
    call.cancel()
