"""What listens at an endpoint, before a store client is let loose on it: another server would leave it waiting in vain."""

from __future__ import annotations

from rallypoint.net import HTTP_PROBE
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.connection import dial, hello, keep_trying

_NONCE = 0x52414C59
_HELLO, _PONG = hello(_NONCE), wire.NONCE.pack(_NONCE)
_ANSWER_S = 2.0
_LONGEST_PAUSE_S = 0.5


class NotAStoreError(Exception):
    """Something listens there, and it is no store server; the text says what it is."""


class RallypointThereError(NotAStoreError):
    """A rallypoint server listens there."""


def wait_for_store(host: str, port: int, timeout_s: float) -> None:
    """Wait until a store server answers; TimeoutError where none does, NotAStoreError where something else listens."""
    keep_trying(lambda left_s: probe(host, port, left_s), timeout_s, _LONGEST_PAUSE_S)


def is_store(host: str, port: int, timeout_s: float) -> bool:
    """Whether a store server answers there now."""
    try:
        return _ask(host, port, _HELLO, timeout_s, timeout_s) == _PONG
    except (OSError, UnicodeError):
        return False


def probe(host: str, port: int, timeout_s: float) -> None:
    """See that a store server answers now; OSError where nothing does, NotAStoreError where something else listens."""
    answer = _ask(host, port, _HELLO, timeout_s, min(_ANSWER_S, timeout_s))
    if answer == _PONG:
        return
    if answer.startswith(b"RLYP"):
        raise RallypointThereError(
            "a rallypoint server is there: use the backend 'rallypoint', or give the store another port than that "
            "server's"
        )
    found = answer or _ask(host, port, HTTP_PROBE, timeout_s, _ANSWER_S)
    if found.startswith(b"HTTP/"):
        raise NotAStoreError("an HTTP server is there: use another port")
    if not found:
        raise ConnectionError("something took the connection and gave no answer")
    raise NotAStoreError(f"something else is there, which says {found[:40]!r}: use another port")


def _ask(host: str, port: int, request: bytes, timeout_s: float, answer_timeout_s: float) -> bytes:
    """The first bytes of an answer; none where the other side hangs up, or says nothing in time."""
    with dial(host, port, timeout_s) as sock:
        sock.settimeout(answer_timeout_s)
        sock.sendall(request)
        try:
            return sock.recv(512)
        except (TimeoutError, ConnectionResetError):
            return b""
