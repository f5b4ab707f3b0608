"""A client's connection as the threads of a process share it: one exchange at a time, and none after a failure or a fork."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rallypoint import forks
from rallypoint.stores.base import name_some
from rallypoint.stores.errors import StoreConnectionError, StoreForkError, StoreTimeoutError
from rallypoint.stores.tcp.connection import StoreConnection
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import ProtocolError

Asked = tuple[str, ...]
"""What a caller wants, for messages: a verb and the keys."""


class SharedConnection:
    """A connection that ends with the first thing that goes wrong on it: nobody could tell whose answer comes next."""

    def __init__(self, connection: StoreConnection, place: str) -> None:
        self._connection = connection
        self._place = place
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._is_parents = False
        self._opened_in = forks.OpenedIn()
        forks.release_in_children(self)

    def ask(self, asked: Asked, request: bytes, reader: Reader[T], answer_timeout_s: float) -> T:
        """One request and its answer.  Other threads, and the server, are waited for as long as `answer_timeout_s`."""
        connection = self.begin(asked, answer_timeout_s)
        began = time.monotonic()
        try:
            return connection.ask(request, reader, answer_timeout_s)
        except BaseException as exc:
            self.fail(asked, exc, time.monotonic() - began)
            raise
        finally:
            self.finish()

    def exchange(self, asked: Asked, answer_timeout_s: float) -> Exchange:
        """A context in which this thread has the connection for itself, for several requests."""
        return Exchange(self, asked, answer_timeout_s)

    def begin(self, asked: Asked, answer_timeout_s: float) -> StoreConnection:
        """Take the connection, until `finish`."""
        # In a child, a thread that only the parent has may hold the lock for ever.
        if not self._lock.acquire(False) and not self._is_parents and not self._lock.acquire(timeout=answer_timeout_s):
            raise StoreTimeoutError(
                f"cannot {self.what(asked)}: another thread has been waiting on this connection for "
                f"{answer_timeout_s:.3g} s; give it a clone() of the store"
            )
        if self._ended is not None:
            if not self._is_parents:
                self._lock.release()
            raise self._over(asked, self._ended)
        return self._connection

    def fail(self, asked: Asked, error: BaseException, elapsed_s: float) -> None:
        """Whatever went wrong ends the connection, and is said in words."""
        match error:
            case TimeoutError():
                why = self.end(f"the server did not answer for {elapsed_s:.3g} s")
                raise StoreTimeoutError(f"cannot {self.what(asked)}: {why}") from error
            case OSError() | ProtocolError():
                why = self.end(str(error))
                if asked[0] == "add to":
                    why += " (a server does that when value or sum is not a number of 64 bits)"
                raise StoreConnectionError(f"cannot {self.what(asked)}: {why}") from error
            case _:
                self.end(f"a call was interrupted: {self.what(asked)}")

    def finish(self) -> None:
        """Let others have the connection."""
        self._lock.release()

    def end(self, why: str) -> str:
        """The connection is of no use any more; returns why, which is the first reason that was given."""
        self._ended = self._ended or why
        self._connection.close()
        return self._ended

    def close(self) -> None:
        """Nobody needs it any more."""
        self._connection.close()

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._is_parents = True
        self._ended = self._opened_in.refusal(
            "this store",
            "the two would read each other's answers",
            "take a clone() in the child, or open a store there",
        )
        self._connection.let_go()

    def _over(self, asked: Asked, why: str) -> StoreConnectionError | StoreForkError:
        if self._is_parents:
            return StoreForkError(f"cannot {self.what(asked)}: {why}")
        return StoreConnectionError(f"cannot {self.what(asked)}: the connection is no more, because {why}")

    def what(self, asked: Asked) -> str:
        """What was asked, and where."""
        verb, *keys = asked
        return f"{verb} {name_some(keys)} at {self._place}" if keys else f"{verb} at {self._place}"


class Exchange:
    """Several requests and their answers, for one thread."""

    __slots__ = ("_answer_timeout_s", "_asked", "_began", "_connection")

    def __init__(self, connection: SharedConnection, asked: Asked, answer_timeout_s: float) -> None:
        self._connection = connection
        self._asked = asked
        self._answer_timeout_s = answer_timeout_s

    def __enter__(self) -> StoreConnection:
        connection = self._connection.begin(self._asked, self._answer_timeout_s)
        self._began = time.monotonic()
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._connection.fail(self._asked, error, time.monotonic() - self._began)
        finally:
            self._connection.finish()
