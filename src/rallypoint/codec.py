"""State as versioned JSON (rule 15).  Unknown fields are skipped, so that a newer peer may add some."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rallypoint.errors import RendezvousStateError

VERSION = 1

T = TypeVar("T")


class _Envelope(msgspec.Struct):
    """What every version has: a number, and something that only that version can read."""

    v: int
    body: msgspec.Raw


_ENVELOPE = msgspec.json.Decoder(_Envelope)


def wrap(body: Any) -> bytes:
    """Anything as versioned JSON."""
    return msgspec.json.encode({"v": VERSION, "body": body})


def unwrap(data: bytes, decoder: msgspec.json.Decoder[T], what: str, limit: int, advice: str = "") -> T:
    """What `wrap` wrote; whatever is wrong with it is a `RendezvousStateError` that names `what` it was to be."""
    if len(data) > limit:
        raise RendezvousStateError(f"the {what} has {len(data)} bytes, more than the {limit} that are allowed")
    try:
        envelope = _ENVELOPE.decode(data)
        if envelope.v == VERSION:
            return decoder.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        pickled = "it is a pickle, which is never loaded; a torch job may be using the same name"
        told = pickled if data[:1] == b"\x80" else str(exc) or type(exc).__name__
        raise RendezvousStateError(f"the {what} cannot be read: {told}{advice}") from exc
    raise RendezvousStateError(
        f"the {what} is of version {envelope.v}, and this Rallypoint reads version {VERSION}: "
        f"run the same release on every node"
    )
