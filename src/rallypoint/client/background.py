"""The one background thread of a process: an event loop for every link and hosted server, however many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rallypoint.errors import RendezvousError
from rallypoint.forks import OpenedIn, run_in_children

T = TypeVar("T")

_lock = threading.Lock()
_current: Background | None = None


class Background:
    """An asyncio loop in a daemon thread."""

    def __init__(self) -> None:
        self.opened_in = OpenedIn()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_DaemonThreads())
        self._thread = threading.Thread(target=self._run, name="rallypoint", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], object]) -> None:
        """Run something on the loop, soon."""
        self.check()
        self.loop.call_soon_threadsafe(action)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it."""
        try:
            self.check()
        except RendezvousError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()  # the caller was interrupted, or has no more time
            raise

    def check(self) -> None:
        """Refuse to work in a forked child, where the thread does not exist."""
        if not self.opened_in.is_this_process:
            why = "threads and connections do not survive a fork"
            raise RendezvousError(self.opened_in.refusal("this rendezvous", why, "open it in the child"))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


class _DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call, as for the lookup of a name that hangs: Python would wait at its end for a pool's."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as exc:  # noqa: BLE001  # whatever it is, it belongs to the one that asked
                    future.set_exception(exc)

        try:
            threading.Thread(target=work, name="rallypoint-call", daemon=True).start()
        except RuntimeError as exc:  # Python ends, and starts no thread any more
            future.set_exception(OSError(str(exc)))
        return future


def run_in_thread(act: Callable[[], T], timeout_s: float | None = None) -> T:
    """Make a call that may hang outside Python, such as the lookup of a name; Ctrl-C ends the wait for it.

    concurrent.futures.TimeoutError where it takes too long.
    """

    async def call() -> T:
        return await asyncio.get_running_loop().run_in_executor(None, act)

    return background().run(call(), timeout_s)


def background() -> Background:
    """The background thread of this process, started on first use; a forked child gets its own."""
    global _current  # noqa: PLW0603  # one thread a process is the point
    with _lock:
        if _current is None or not _current.opened_in.is_this_process:
            _current = Background()
        return _current


@run_in_children
def _renew_lock() -> None:
    """A lock that was held in the moment of a fork would never be let go in the child."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
