"""What listens at an endpoint, before a store client is let loose on it: another server would leave it waiting in vain."""

from __future__ import annotations

import socket

from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import Query
from rallypoint.waiting import Backoff, Deadline

_NONCE = 0x52414C59
_HELLO = wire.request(Query.VALIDATE, number=wire.MAGIC) + wire.request(Query.PING, number=_NONCE)
_PONG = wire.NONCE.pack(_NONCE)
_ANSWER_S = 2.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class NotAStoreError(Exception):
    """Something listens there, and it is no store server; the text says what it is."""


class RallypointThereError(NotAStoreError):
    """A rallypoint server listens there."""


def wait_for_store(host: str, port: int, timeout_s: float) -> None:
    """Wait until a store server answers; TimeoutError where none does, NotAStoreError where something else listens."""
    deadline, backoff = Deadline.after(timeout_s), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            return probe(host, port, max(deadline.left_s(), 0.001))
        except (OSError, UnicodeError) as exc:  # noqa: PERF203  # trying again is the point
            if not backoff.pause(deadline):
                raise TimeoutError(str(exc) or type(exc).__name__) from exc


def is_store(host: str, port: int, timeout_s: float) -> bool:
    """Whether a store server answers there now."""
    try:
        return _ask(host, port, _HELLO, timeout_s, at_most_s=timeout_s) == _PONG
    except (OSError, UnicodeError):
        return False


def probe(host: str, port: int, timeout_s: float) -> None:
    """See that a store server answers now; OSError where nothing does, NotAStoreError where something else listens."""
    answer = _ask(host, port, _HELLO, timeout_s, at_most_s=None)
    if answer == _PONG:
        return
    if answer.startswith(b"RLYP"):
        raise RallypointThereError(
            "a rallypoint server is there: use the backend 'rallypoint', or give the store another port than that "
            "server's"
        )
    found = answer or _ask(host, port, b"GET / HTTP/1.0\r\n\r\n", timeout_s, at_most_s=_ANSWER_S)
    if found.startswith(b"HTTP/"):
        raise NotAStoreError("an HTTP server is there: use another port")
    if not found:
        raise ConnectionError("something took the connection and gave no answer")
    raise NotAStoreError(f"something else is there, which says {found[:40]!r}: use another port")


def _ask(host: str, port: int, request: bytes, timeout_s: float, *, at_most_s: float | None) -> bytes:
    """The first bytes of an answer; none where it closes, or does not answer a stranger's question in a while."""
    with socket.create_connection((host, port), timeout_s) as sock:
        if sock.getsockname() == sock.getpeername():
            # Nobody listens there; the system happened to choose that very port for our end.
            raise ConnectionRefusedError("nobody listens there")
        sock.settimeout(min(_ANSWER_S, timeout_s) if at_most_s is None else at_most_s)
        sock.sendall(request)
        try:
            return sock.recv(512)
        except (TimeoutError, ConnectionResetError):
            return b""
