"""What is fuzzed.  Each target takes bytes and returns; an exception that a caller would not expect is a find."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint import protocol, record
from rallypoint.errors import RendezvousStateError
from rallypoint.net import parse_endpoint, written
from rallypoint.server.coordinator import Coordinator
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.guarded import GuardedStoreCore
from rallypoint.stores.tcp.server_core import StoreServerCore
from rallypoint.stores.tcp.wire import StoreLimits

_INTRODUCTION = bytes((wire.Query.VALIDATE,)) + wire.NONCE.pack(wire.MAGIC)
_CHALLENGE = 96
"""The length of a nonce and a proof: all that a stranger hears."""
_LIMITS = StoreLimits(request_bytes=1 << 16, unread_bytes=1 << 20, piled_bytes=1 << 19)


def server(data: bytes) -> None:
    """What a caller sends to a server, in two pieces: it is answered or turned away, and time goes on."""
    numbers = itertools.count(1)
    coordinator = Coordinator(monotonic=0.0, mint=lambda: f"m{next(numbers)}", hold_s=0.0)
    cut = data[0] if data else 0
    said = protocol.MAGIC + data[1:]
    coordinator.opened(1, 0.0)
    coordinator.received(1, said[:cut], 0.1)
    coordinator.received(1, said[cut:], 0.2)
    coordinator.tick(0.3)
    coordinator.ended(1, 0.4)
    for step in range(5, 40):
        coordinator.tick(step / 10)
    if coordinator.runs.faults:
        raise AssertionError("the server's own code failed on a run")


def frames(data: bytes) -> None:
    """What a connection says, however its bytes were cut: the same messages, and the same refusal."""
    at_once, by_bytes = _read([data]), _read([data[place : place + 1] for place in range(len(data))])
    if at_once != by_bytes:
        raise AssertionError(f"{at_once} at once, {by_bytes} byte by byte")


def _read(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    reader, bodies = protocol.Reader(1 << 12), list[bytes]()
    try:
        for piece in pieces:
            bodies += reader.feed(piece)
    except RendezvousStateError:
        return bodies, True
    return bodies, False


def messages(data: bytes) -> None:
    """A message: it is refused in words, or says the same when it is written and read again."""
    decoders: tuple[msgspec.json.Decoder[Any], ...] = (protocol.FROM_NODE, protocol.FROM_SERVER)
    for decoder in decoders:
        try:
            message = protocol.read(data, decoder)
        except RendezvousStateError:
            continue
        again = protocol.read(msgspec.json.encode(message), decoder)
        if again != message:
            raise AssertionError(f"{message} was written and read as {again}")


def records(data: bytes) -> None:
    """A record, from a register or a state file."""
    try:
        read = record.decode(data)
    except RendezvousStateError:
        return
    if record.decode(record.encode(read)) != read:
        raise AssertionError(f"{read} cannot be written and read again")
    record.restored(read, 0.0, 5.0)


def store(data: bytes) -> None:
    """Requests to a store server: the answers do not depend on how the bytes were cut."""
    whole, pieces = StoreServerCore(_LIMITS), StoreServerCore(_LIMITS)
    one, other = whole.connect("one"), pieces.connect("other")
    for core, session in ((whole, one), (pieces, other)):
        core.receive(session, _INTRODUCTION)
    at_once = b"".join(whole.receive(one, data)[0])
    by_bytes = b"".join(
        b"".join(pieces.receive(other, data[place : place + 1])[0]) for place in range(min(len(data), 4096))
    )
    if len(data) <= 4096 and (one.refusal is None) != (other.refusal is None):
        raise AssertionError(f"{one.refusal} at once, {other.refusal} byte by byte")
    if len(data) <= 4096 and one.refusal is None and at_once != by_bytes:
        raise AssertionError(f"{at_once!r} at once, {by_bytes!r} byte by byte")


def secret(data: bytes) -> None:
    """What a stranger says to a store with a secret: it is challenged once at most, and never let in."""
    for size in {max(len(data), 1), 1}:
        core = GuardedStoreCore("a secret that nobody guesses", _LIMITS)
        stranger = core.connect("stranger")
        heard = [core.receive(stranger, data[place : place + size])[0] for place in range(0, len(data), size)]
        if stranger.core is not None or sum(len(piece) for answer in heard for piece in answer) > _CHALLENGE:
            raise AssertionError("a stranger was let in")


def endpoint(data: bytes) -> None:
    """An endpoint that somebody typed: refused in words, or written as it was meant."""
    try:
        host, port = parse_endpoint(data.decode("utf-8", "surrogateescape"), 29400)
    except ValueError as exc:
        if not str(exc):
            raise AssertionError("it was refused without a word") from exc
        return
    if parse_endpoint(written(host, port), 1) != (host, port):
        raise AssertionError(f"{host!r} and {port} are written as {written(host, port)!r}, which means something else")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (server, frames, messages, records, store, secret, endpoint)
}
