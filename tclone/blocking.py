"""How the blocking twins of the asynchronous classes are made: their calls run on an event loop of a thread, with the same signature and types.

One declaration for each method, and none of its logic: `click = calls(aio.Workspace.click)`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


_CLOSED = "this client is closed"


class Loop:
    """An event loop in a thread of its own, for one client and all that comes of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # What was handed over before it closes is among what `_end` finds.
        self._lock = threading.Lock()
        self._closing = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._iterators: set[AsyncIterator[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tclone", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[R]) -> R:
        """Wait for something asynchronous. Ctrl-C ends it, too. Raises RuntimeError once closed, or when called from within."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call within the client's own event loop would wait for itself")
        with self._lock:
            if self._closing:
                _close(work)
                raise RuntimeError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(self._awaited(work), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """What other threads wait for ends with a RuntimeError; then `last` is done. Once closed it does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop).result()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, last: Callable[[], Awaitable[None]] | None) -> None:
        """A generator that is at work cannot be closed: first its task ends. Tasks of connections end with them, by a proper close."""
        under_way = list(self._tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for items in list(self._iterators):
            await _closed(items)
        if last is not None:
            await last()
        await self._loop.shutdown_asyncgens()

    async def _awaited(self, work: Awaitable[R]) -> R:
        task = asyncio.current_task()
        assert task is not None
        self.ends(task)
        return await work

    def closes(self, items: AsyncIterator[Any]) -> None:
        """Close an iterator when the loop does. It is held until `forgets`: one that nobody holds would be closed by a task of its own, which nobody waits for."""
        self._iterators.add(items)

    def forgets(self, items: AsyncIterator[Any]) -> None:
        self._iterators.discard(items)

    def ends(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task of this loop when it closes. Called within it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _closed(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def _close(work: Awaitable[Any]) -> None:
    if isinstance(work, Coroutine):
        work.close()


class Twin(Protocol):
    """A blocking object: the asynchronous one and the loop that it lives on."""

    _it: Any
    _loop: Loop


class _Declared(Generic[P, R]):
    """A method of a twin. Bound to an object it is a function with the parameters of the asynchronous one."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self.__wrapped__ = method
        self._name = method.__name__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> _Declared[P, R]: ...
    @overload
    def __get__(self, instance: Twin, owner: type[Any]) -> Callable[P, R]: ...

    def __get__(self, instance: Twin | None, owner: type[Any]) -> Any:
        if instance is None:
            return self
        method = getattr(instance._it, self._name)

        @functools.wraps(method)
        def bound(*positional: Any, **named: Any) -> Any:
            return self.carried_out(instance._loop, method(*positional, **named))

        return bound

    def carried_out(self, loop: Loop, work: Any) -> Any:
        """What the caller gets for what the asynchronous method returned."""
        raise NotImplementedError


class calls(_Declared[P, R]):
    """A coroutine: the call returns what it returns."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        super().__init__(method)

    def carried_out(self, loop: Loop, work: Awaitable[Any]) -> Any:
        return loop.run(work)


class makes(_Declared[P, S], Generic[P, R, S]):
    """A coroutine whose result has a twin, too."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]], twin: Callable[[Loop, R], S]) -> None:
        super().__init__(method)
        self._twin = twin

    def carried_out(self, loop: Loop, work: Awaitable[Any]) -> Any:
        return self._twin(loop, loop.run(work))


class streams(_Declared[P, Iterator[R]], Generic[P, R]):
    """An asynchronous iterator: a plain one, which waits for each."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        super().__init__(method)

    def carried_out(self, loop: Loop, work: AsyncIterator[Any]) -> Iterator[Any]:
        return _iterated(loop, work)


class opens(_Declared[P, AbstractContextManager[S]], Generic[P, R, S]):
    """An asynchronous context manager, whose object has a twin."""

    def __init__(self, method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[R]], twin: Callable[[Loop, R], S]) -> None:
        super().__init__(method)
        self._twin = twin

    def carried_out(self, loop: Loop, work: AbstractAsyncContextManager[Any]) -> AbstractContextManager[Any]:
        return _entered(loop, work, self._twin)


def _iterated(loop: Loop, items: AsyncIterator[Any]) -> Iterator[Any]:
    try:
        loop.closes(items)
        while True:
            try:
                item = loop.run(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        with contextlib.suppress(RuntimeError):  # the client is closing, and closes it
            loop.run(_closed(items))
            loop.forgets(items)


@contextlib.contextmanager
def _entered(loop: Loop, manager: AbstractAsyncContextManager[Any], twin: Callable[[Loop, Any], S]) -> Iterator[S]:
    """The block of a context manager that lives in one task of the loop: what it opens in it, it also closes in it."""
    entered: asyncio.Future[Any] | None = None

    async def inside() -> tuple[Any, asyncio.Event, asyncio.Task[None]]:
        nonlocal entered
        loop_ = asyncio.get_running_loop()
        entered, over = loop_.create_future(), asyncio.Event()

        async def hold() -> None:
            assert entered is not None
            try:
                async with manager as value:
                    entered.set_result(value)
                    await over.wait()
            except BaseException as error:
                if entered.done():
                    raise
                entered.set_exception(error)

        task = asyncio.create_task(hold())
        loop.ends(task)
        return await entered, over, task

    value, over, task = loop.run(inside())

    async def leave() -> None:
        over.set()
        await task

    try:
        yield twin(loop, value)
    finally:
        loop.run(leave())
