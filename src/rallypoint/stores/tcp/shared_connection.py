"""A client's connection as the threads of a process share it: one conversation at a time, and none after a failure or a fork."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

from rallypoint.stores import forks
from rallypoint.stores.base import name_some
from rallypoint.stores.errors import StoreConnectionError, StoreForkError, StoreTimeoutError
from rallypoint.stores.tcp.connection import Line
from rallypoint.stores.tcp.replies import Reader, T
from rallypoint.stores.tcp.wire import ProtocolError

Asked = tuple[str, ...]
"""What a caller wants, for messages: a verb and the keys."""


class SharedLine:
    """A line that ends with the first thing that goes wrong on it: nobody could tell whose answer comes next."""

    def __init__(self, line: Line, place: str) -> None:
        self._line = line
        self._place = place
        self._lock = threading.Lock()
        self._ended: str | None = None
        self._is_parents = False
        self._opened_in = os.getpid()
        forks.let_go_in_children(self)

    def ask(self, asked: Asked, request: bytes, reader: Reader[T], patience_s: float) -> T:
        """One request and its answer.  Other threads, and the server, are waited for as long as `patience_s`."""
        line = self.begin(asked, patience_s)
        began = time.monotonic()
        try:
            return line.ask(request, reader, patience_s)
        except BaseException as exc:
            self.fail(asked, exc, time.monotonic() - began)
            raise
        finally:
            self.finish()

    def conversation(self, asked: Asked, patience_s: float) -> Conversation:
        """A context in which this thread has the line for itself, for several requests."""
        return Conversation(self, asked, patience_s)

    def begin(self, asked: Asked, patience_s: float) -> Line:
        """Take the line, until `finish`."""
        # In a child, a thread that only the parent has may hold the lock for ever.
        if not self._lock.acquire(False) and not self._is_parents and not self._lock.acquire(timeout=patience_s):
            raise StoreTimeoutError(
                f"cannot {self.what(asked)}: another thread has been waiting on this connection for "
                f"{patience_s:.3g} s; give it a clone() of the store"
            )
        if self._ended is not None:
            if not self._is_parents:
                self._lock.release()
            raise self._over(asked, self._ended)
        return self._line

    def fail(self, asked: Asked, error: BaseException, elapsed_s: float) -> None:
        """Whatever went wrong ends the line, and is said in words."""
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
        """Let others have the line."""
        self._lock.release()

    def end(self, why: str) -> str:
        """The line is of no use any more; returns why, which is the first reason that was given."""
        self._ended = self._ended or why
        self._line.close()
        return self._ended

    def close(self) -> None:
        """Nobody needs it any more."""
        self._line.close()

    def forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._is_parents = True
        self._ended = forks.opened_before(
            "this store",
            self._opened_in,
            "the two would read each other's answers",
            "take a clone() in the child, or open a store there",
        )
        self._line.let_go()

    def _over(self, asked: Asked, why: str) -> StoreConnectionError | StoreForkError:
        if self._is_parents:
            return StoreForkError(f"cannot {self.what(asked)}: {why}")
        return StoreConnectionError(f"cannot {self.what(asked)}: the connection is no more, because {why}")

    def what(self, asked: Asked) -> str:
        """What was asked, and where."""
        verb, *keys = asked
        return f"{verb} {name_some(keys)} at {self._place}" if keys else f"{verb} at {self._place}"


class Conversation:
    """Several requests and their answers, for one thread."""

    __slots__ = ("_asked", "_began", "_line", "_patience_s")

    def __init__(self, line: SharedLine, asked: Asked, patience_s: float) -> None:
        self._line = line
        self._asked = asked
        self._patience_s = patience_s

    def __enter__(self) -> Line:
        line = self._line.begin(self._asked, self._patience_s)
        self._began = time.monotonic()
        return line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._line.fail(self._asked, error, time.monotonic() - self._began)
        finally:
            self._line.finish()
