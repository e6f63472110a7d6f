"""A channel for generated stubs whose calls survive the loss of servers and regions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import grpc

from inferwire.attempts import Metadata
from inferwire.calls import EventStream, Exchange, UnaryExchange
from inferwire.channels import Fleet
from inferwire.credentials import CredentialSource, credential_from, credential_source
from inferwire.errors import Code, InferwireError
from inferwire.methods import Method
from inferwire.observation import Observer
from inferwire.policy.deadline import Deadline
from inferwire.propagation import incoming
from inferwire.settings import ClientConfig
from inferwire.token_stream import TokenStream


class ResilientRpcError(grpc.aio.AioRpcError):
    """What a stub raises: a gRPC error like any other, with the typed one in `error`."""

    def __init__(self, error: InferwireError, trailers: Sequence[tuple[str, str | bytes]] = ()) -> None:
        super().__init__(
            grpc.StatusCode[error.code],
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*trailers),
            details=error.message,
        )
        self.error = error


class ResilientChannel(grpc.aio.Channel):
    """Give it to a generated stub: `InferenceServiceStub(ResilientChannel(config))`.

    Nothing is opened before the first call. It belongs to the process and the event loop of that call; using it in
    another raises RuntimeError. `Client` and `AsyncClient` use one inside.
    """

    def __init__(
        self,
        config: ClientConfig | str,
        *,
        observer: Observer | None = None,
        credential: CredentialSource | None = None,
        open_fleet: Callable[..., Fleet] = Fleet,
    ) -> None:
        """`config`, or the address of a single server. `credential` goes with each call: a text, a Path, or a function
        that gives a Token. `open_fleet` is for a clock and chance of one's own. Raises SettingsError."""
        self.config = ClientConfig.for_address(config) if isinstance(config, str) else config
        self._credential = credential_source(self.config, credential)
        self._observer = observer
        self._open_fleet = open_fleet
        self._fleet: Fleet | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "idle" if self._fleet is None else repr(self._fleet)
        return f"<ResilientChannel {state}>"

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """A callable for a unary RPC."""
        return _UnaryCallable(self, _method(method, request_serializer, response_deserializer, is_stream=False))

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """A callable for a server-streaming RPC."""
        return _StreamCallable(self, _method(method, request_serializer, response_deserializer, is_stream=True))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Not part of the contract."""
        raise NotImplementedError("inferwire has no client-streaming RPCs")

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Not part of the contract."""
        raise NotImplementedError("inferwire has no bidirectional RPCs")

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """SHUTDOWN once closed, READY while an endpoint may serve, else IDLE."""
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        is_up = self._fleet is not None and any(link.state.is_healthy for link in self._fleet.links)
        return grpc.ChannelConnectivity.READY if is_up else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when `get_state` differs."""
        await self.fleet().until(lambda: self.get_state() is not last_observed_state)

    async def channel_ready(self) -> None:
        """Return when an endpoint says that it serves."""
        fleet = self.fleet()
        await fleet.open()
        await fleet.until(lambda: any(link.state.is_serving for link in fleet.links))

    def fleet(self) -> Fleet:
        """The endpoints, opened in this process and loop if they are not yet."""
        if self._is_closed:
            raise RuntimeError("this channel is closed")
        here = (os.getpid(), asyncio.get_running_loop())
        if self._fleet is None or self._owner is None:
            given = {} if self._credential is None else {"credential": credential_from(self._credential)}
            self._fleet, self._owner = self._open_fleet(self.config, observer=self._observer, **given), here
        elif self._owner[0] != here[0]:
            raise RuntimeError("this channel was opened before a fork; make one in the child process")
        elif self._owner[1] is not here[1]:
            raise RuntimeError("this channel belongs to another event loop; make one for each")
        return self._fleet

    async def close(self, grace: float | None = None) -> None:
        """Give up every connection; running calls end as cancelled."""
        self._is_closed = True
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await fleet.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _method(path: str, serialize: Any, deserialize: Any, *, is_stream: bool) -> Method:
    return Method(path=path, is_stream=is_stream, serialize=serialize, deserialize=deserialize)


class _Callable:
    def __init__(self, channel: ResilientChannel, method: Method) -> None:
        self._channel = channel
        self._method = method

    def _exchange(
        self, kind: Callable[..., Exchange], request: Any, timeout: float | None, metadata: Metadata | None
    ) -> Any:
        fleet, served = self._channel.fleet(), incoming()
        deadline = Deadline.for_call(
            fleet.clock(),
            timeout_s=timeout,
            default_s=self._channel.config.deadline_s if self._method.is_generation else None,
            incoming=served.deadline,
        )
        may_retry = not served.is_retried_above
        traced = served.traced(tuple(metadata or ()))
        return kind(fleet, self._method, traced, deadline, request, may_retry=may_retry)


class _UnaryCallable(_Callable):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return ResilientUnaryCall(self._exchange(UnaryExchange, request, timeout, metadata))


class _StreamCallable(_Callable):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        kind = TokenStream if self._method.is_token_stream else EventStream
        return ResilientStreamCall(self._exchange(kind, request, timeout, metadata))


class _Call:
    """The parts of grpc.aio.Call that both kinds have."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._error: ResilientRpcError | None = None
        self._is_done = False
        self._is_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []

    def done(self) -> bool:
        """Whether it has ended."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether this side cancelled it."""
        return self._is_cancelled

    def time_remaining(self) -> float | None:
        """Seconds until the deadline."""
        return self._exchange.journey.remaining()  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end, or now when it has ended."""
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Always empty: attempts differ in it."""
        return grpc.aio.Metadata()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """How the call was served: attempts, endpoint, and where it was resumed."""
        return grpc.aio.Metadata(*self._exchange.trailers())

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        if self._is_cancelled:
            return grpc.StatusCode.CANCELLED
        return grpc.StatusCode.OK if self._error is None else self._error.code()

    async def details(self) -> str:
        """Why it failed; empty when it did not."""
        return "" if self._error is None else self._error.details() or ""

    def _failed(self, error: InferwireError) -> ResilientRpcError:
        self._error = ResilientRpcError(error, self._exchange.trailers())
        self._exchange.ended(error.code, error.reason)
        self._ended()
        return self._error

    def _ended(self) -> None:
        if not self._is_done:
            self._is_done = True
            for callback in self._callbacks:
                callback(self)


def _release(ended: asyncio.Future[None], _: Any) -> None:
    if not ended.done():
        ended.set_result(None)


class ResilientUnaryCall(_Call):
    """Await it. Its first attempt is sent at once; what follows a failure happens while it is awaited."""

    def __init__(self, exchange: UnaryExchange) -> None:
        super().__init__(exchange)
        self._task: asyncio.Task[Any] | None = None
        self._is_awaited = False
        self._response: Any = None
        self._loop = asyncio.get_running_loop()
        try:
            exchange.begin()
        except InferwireError as error:
            self._failed(error)

    def cancel(self) -> bool:
        """End it."""
        if self._is_done:
            return False
        self._is_cancelled = True
        self._exchange.leave()
        if self._task is not None:
            self._task.cancel()
        self._ended()
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end, or now when it has ended. From here on it needs nobody to await it."""
        super().add_done_callback(callback)
        if self._task is None and not self._is_done:
            self._task = asyncio.create_task(self._run())

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        if self._is_done:
            return self._outcome()
        if self._task is None and not self._is_awaited:
            self._is_awaited = True
            return await self._run()
        ended = asyncio.get_running_loop().create_future()
        super().add_done_callback(partial(_release, ended))
        await ended
        return self._outcome()

    async def _run(self) -> Any:
        try:
            self._response = await self._exchange.run()
        except InferwireError as error:
            raise self._failed(error) from None
        except asyncio.CancelledError:
            self._is_cancelled = True
            self._exchange.leave()
            self._ended()
            raise
        self._exchange.ended(Code.OK)
        self._ended()
        return self._response

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._response

    def __del__(self) -> None:
        if not self._is_done and not self._loop.is_closed():
            self._exchange.leave()


class ResilientStreamCall(_Call):
    """`async for` it, or `read()` until EOF. Dropping it ends it too."""

    def __init__(self, exchange: EventStream) -> None:
        super().__init__(exchange)
        self._next = exchange.next
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> bool:
        """End it: the server stops generating. A reader that waits meanwhile gets CancelledError."""
        if self._is_done:
            return False
        self._is_cancelled = True
        self._exchange.leave()
        self._ended()
        return True

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return self._step()

    async def read(self) -> Any:
        """The next event, or EOF."""
        try:
            return await self._step()
        except StopAsyncIteration:
            return grpc.aio.EOF

    async def _step(self) -> Any:
        if self._is_done:
            self._after_end()
        try:
            event = await self._next()
        except InferwireError as error:
            raise self._failed(error) from None
        except BaseException:
            self._is_cancelled = True
            self._exchange.leave()
            self._ended()
            raise
        if event is grpc.aio.EOF:
            self._exchange.ended(Code.OK)
            self._ended()
            raise StopAsyncIteration
        return event

    def _after_end(self) -> NoReturn:
        if self._error is not None:
            raise self._error
        if self._is_cancelled:
            raise asyncio.CancelledError
        raise StopAsyncIteration

    def __del__(self) -> None:
        # A reader that breaks out of its loop leaves no other trace.
        if not self._is_done and not self._loop.is_closed():
            self._exchange.leave()
