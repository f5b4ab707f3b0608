"""A register on any rendezvous backend: the record is the one document that `get_state` and `set_state` hold.

One process writes, whatever the number of nodes: the server raises the claim's beat.  A medium that can tell of a change
has `wait_for_change`; any other is read again and again, but only by processes that look for a server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.location.register import Entry, Register, RegisterRefusedError, Token
from rallypoint.record import decode
from rallypoint.torch_bridge.errors import as_ours

FIRST_POLL_S = 0.01
LONGEST_POLL_S = 0.2
LISTEN_S = 2.0
"""For how long a medium is asked to tell of a change: such a call cannot be ended from outside."""

_EMPTY: Token = "empty"
"""Stands for the token where there is no document."""
_OLD = b'"kind":"rallypoint.document"'


class Backend(Protocol):
    """A medium that holds one document: what `RendezvousBackend` is to PyTorch."""

    def get_state(self) -> tuple[bytes, Token] | None:
        """The document and its token, or None where there is none."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write where the token fits; what is there then, its token, and whether it was written; None: not known."""


class BackendRegister(Register):
    """One run's record in one backend.

    `open_backend` is called when the backend is first needed, off the event loop.  A backend that is `owned` is closed with
    the register, and opened anew where it cannot be reached.  The calls of a backend come one at a time, except for
    `wait_for_change`.
    """

    def __init__(self, open_backend: Callable[[], Backend], *, owned: bool = False) -> None:
        self._open_backend, self._owned = open_backend, owned
        self._backend: Backend | None = None
        self._calling = threading.Lock()
        self._stopped = threading.Event()
        self._is_closed = self._serves = False
        """A process that holds the claim (`_serves`) writes the record itself, and need not look for changes."""

    @property
    def is_hosted_here(self) -> bool | None:
        return getattr(self._backend, "hosts_store", None)

    def read(self) -> Entry | None:
        with self._using() as backend:
            found = backend.get_state()
            return None if found is None else Entry(checked(found[0]), found[1])

    def write(self, value: bytes, token: Token | None) -> Entry | None:
        """Write the document where the token fits; what a backend does not confirm is read back."""
        with self._using() as backend:
            try:
                answer = backend.set_state(value, token)
            except Exception:
                # PyTorch's etcd-v2 raises, as where it is out of reach, if a document that was there is gone.
                if token is None or backend.get_state() is not None:
                    raise
                return None
            if answer is None:
                found = backend.get_state()
                if found is None:
                    # PyTorch takes what it wrote for true where it cannot be read back.  A document that was there and
                    # is gone was not overwritten by this.
                    return Entry(value, None) if token is None else None
                answer = (*found, False)
            state, new_token, was_set = answer
            if not was_set and bytes(state) != value:
                return None
            self._serves = decode(value).claim is not None
            return Entry(value, new_token)

    def wait(self, token: Token | None, timeout_s: float) -> Token | None:
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_POLL_S
        self._stopped.clear()
        while not self._is_closed and (left_s := deadline - time.monotonic()) > 0:
            tell = getattr(self._backend, "wait_for_change", None)
            if tell is not None:
                with _in_words():
                    tell(token, min(left_s, LISTEN_S))
            # A pause follows in any case: what tells of a change may return at once without one.
            serves = self._serves and tell is None
            if self._stopped.wait(left_s if serves else min(left_s, pause_s)) or serves:
                return None
            pause_s = min(1.5 * pause_s, LONGEST_POLL_S) if tell is None else pause_s
            with self._using() as backend:
                found = backend.get_state()
            now: Token = _EMPTY if found is None else found[1]
            if now != (_EMPTY if token is None else token):
                return now
        return None

    def stop_waiting(self) -> None:
        """End the wait; a medium that is asked to tell of a change is left when it next answers."""
        self._stopped.set()

    def resign(self) -> None:
        """A claim leaves nothing here but the record."""
        self._serves = False

    def close(self) -> None:
        self._is_closed = True
        self._stopped.set()
        with self._calling:
            self._let_go()

    @contextmanager
    def _using(self) -> Iterator[Backend]:
        """The backend, for one call at a time.

        Only one that is out of reach is tried again: what else it raises, or holds, ends the search.
        """
        with self._calling:
            try:
                with _in_words():
                    if self._is_closed:
                        raise RendezvousConnectionError("the register is closed")
                    if self._backend is None:
                        self._backend = self._open_backend()
                    yield self._backend
            except RendezvousConnectionError as exc:
                if not isinstance(exc, RegisterRefusedError) and not self.is_hosted_here:
                    self._let_go()
                raise

    def _let_go(self) -> None:
        if self._owned and self._backend is not None:
            backend, self._backend = self._backend, None
            with suppress(Exception):  # what made it unusable is what is told
                getattr(backend, "close", lambda: None)()


def checked(state: bytes) -> bytes:
    """A document that is a record; anything else was written by somebody else, and stays theirs."""
    if _OLD in bytes(state[:100]):
        raise RendezvousStateError(
            "the run's document was written by Rallypoint 0.1, whose nodes cannot meet with this release's: run the same "
            "release on every node; where no such node is left, use another run id or delete the document"
        )
    decode(bytes(state))
    return bytes(state)


@contextmanager
def _in_words() -> Iterator[None]:
    """What goes wrong with a backend becomes an error of the register.

    A backend that was written for torch raises torch's errors, and one that opens sockets or files those of the system.
    """
    try:
        yield
    except Exception as exc:
        error = as_ours(exc)
        if isinstance(error, RendezvousConnectionError):
            raise error from exc.__cause__
        if isinstance(error, OSError):
            raise RendezvousConnectionError(f"the backend cannot be reached: {error!r}") from exc
        if isinstance(error, RendezvousError):
            raise RegisterRefusedError(str(error), error) from exc
        raise RegisterRefusedError(f"the backend failed: {exc!r}", exc) from exc
