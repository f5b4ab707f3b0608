"""A store server without its sockets: bytes of connections in, bytes for connections out.  Sans-IO.

A client that breaks the rules of the wire format is refused, and no other notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.errors import StoreError
from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.wire import ProtocolError, RequestReader, StoreLimits

STOP_WAITING = _READY = bytes((wire.STOP_WAITING,))
_WAIT_CANCELED = _NOT_READY = bytes((wire.WAIT_CANCELED,))
_pack_length, _pack_number = wire.LENGTH.pack, wire.NUMBER.pack


class StoreSession(Waiter):
    """One connection."""

    __slots__ = ("name", "reader", "refusal")

    def __init__(self, name: str, limits: StoreLimits) -> None:
        super().__init__()
        self.name = name
        self.reader = RequestReader(limits)
        # Why the connection is to be closed; from then on nothing of it is read.
        self.refusal: str | None = None


# What answers a query: of its keys and values, its number, and the room that there is for the answer.
_Answer = Callable[[StoreSession, list[bytes], int, int], bytes | list[bytes] | None]
LARGE = 1 << 16
"""From here on a value goes out as it is stored: a copy for everybody that asks, and does not read, would fill the memory."""


class StoreServerCore:
    """The keys of one server, and what its connections ask about them."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self.limits = limits or StoreLimits()
        self._data = data = KeyValues[StoreSession]()
        # By the number of the query: nothing else takes as little time.
        self._answers: tuple[_Answer, ...] = (
            self._validate,
            lambda session, texts, number, room: data.put(texts[0], texts[1]),
            lambda session, texts, number, room: wire.text(data.compare_set(*texts)),
            self._get,
            lambda session, texts, number, room: _pack_number(data.add(texts[0], number)),
            lambda session, texts, number, room: _READY if all(map(data.holds, texts)) else _NOT_READY,
            self._wait,
            lambda session, texts, number, room: _pack_number(len(data.values)),
            lambda session, texts, number, room: _pack_number(data.delete(texts[0])),
            self._append,
            lambda session, texts, number, room: self._values(texts, room),
            self._multi_set,
            self._cancel_wait,
            lambda session, texts, number, room: wire.NONCE.pack(number),
            lambda session, texts, number, room: data.push(texts[0], texts[1]),
            self._queue_pop,
            lambda session, texts, number, room: _pack_number(data.queue_len(texts[0])),
            lambda session, texts, number, room: _pack_number(len(data.values)) + b"".join(map(wire.text, data.values)),
            self._barrier,
        )

    def connect(self, name: str) -> StoreSession:
        """A client connected; the name is for messages only."""
        return StoreSession(name, self.limits)

    def receive(
        self, session: StoreSession, data: bytes, unread_bytes: int = 0
    ) -> tuple[Sequence[bytes], Sequence[StoreSession]]:
        """Bytes came in: what is answered, in pieces, and which other sessions are to be sent STOP_WAITING.

        `unread_bytes` were sent to this connection before and still wait in its buffer.  Afterwards the connection is to
        be closed if `session.refusal` says so.
        """
        if session.refusal is not None:
            return (), ()
        mine: list[bytes] = []
        others: list[StoreSession] = []
        limit = self.limits.unread_bytes
        try:
            for query, texts, number in session.reader.read(data):
                if unread_bytes > self.limits.piled_bytes:
                    mine.clear()  # it would not read them
                    raise ProtocolError(f"it asked for more while {unread_bytes} bytes of answers lay unread")
                answer = self._answers[query](session, texts, number, limit - unread_bytes)
                if answer:
                    pieces = answer if isinstance(answer, list) else (answer,)
                    unread_bytes += sum(map(len, pieces))
                    if unread_bytes > limit:
                        raise ProtocolError(f"it left more than {limit} bytes of answers unread")
                    mine += pieces
                self._data.settle(session)
                for woken in self._data.take_woken():
                    if woken is session:
                        mine.append(STOP_WAITING)  # in its place among the others
                    else:
                        others.append(woken)
        except (ProtocolError, StoreError) as exc:
            session.refusal = str(exc)
            others += self._leave(session)
        return mine if len(mine) <= 1 else _joined(mine), others

    def disconnect(self, session: StoreSession) -> Sequence[StoreSession]:
        """The connection is gone, for whatever reason; returns the sessions that are to be sent STOP_WAITING now."""
        session.refusal = session.refusal or "it is gone"
        return self._leave(session)

    def _leave(self, session: StoreSession) -> list[StoreSession]:
        self._data.cancel(session)
        self._data.settle(session)
        return self._data.take_woken()

    # The longer answers -----------------------------------------------------------------------------------------------

    def _validate(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> None:
        if number != wire.MAGIC:
            raise ProtocolError(f"it is no store client: it began with {number:#010x}, not {wire.MAGIC:#010x}")

    def _get(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> bytes | list[bytes]:
        key = texts[0]
        size = self._data.size(key)
        if size > LARGE or size + wire.LENGTH.size > room:
            return self._values(texts, room)
        value = self._data.get(key)
        return _pack_length(len(value)) + value

    def _wait(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> bytes | None:
        _refuse_second_wait(session)
        return STOP_WAITING if self._data.wait(session, texts) else None

    def _append(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> None:
        key, value = texts
        longest = self.limits.unread_bytes // 2  # so that it can still be read
        if self._data.size(key) + len(value) > longest:
            raise ProtocolError(f"it appended to a value beyond {longest} bytes")
        self._data.append(key, value)

    def _multi_set(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> None:
        for key, value in zip(texts[::2], texts[1::2], strict=True):
            self._data.put(key, value)

    def _cancel_wait(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> bytes:
        self._data.cancel(session)
        return _WAIT_CANCELED

    def _queue_pop(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> bytes:
        before = self._data.queue_len(texts[0])
        popped = self._data.pop(texts[0])
        return _pack_number(before) + (b"" if popped is None else wire.text(popped))

    def _barrier(self, session: StoreSession, texts: list[bytes], number: int, room: int) -> bytes | None:
        _refuse_second_wait(session)
        if self._data.arrive(texts[0], number):
            return STOP_WAITING
        self._data.stand_at(session, texts[0])
        return None

    def _values(self, keys: list[bytes], room: int) -> bytes | list[bytes]:
        """Measured before it is made: one key named many times would make an endless answer of a short request."""
        if sum(map(self._data.size, keys)) + wire.LENGTH.size * len(keys) > room:
            raise ProtocolError(f"it asked for more than {self.limits.unread_bytes} bytes of answers")
        values = [self._data.get(key) for key in keys]
        if all(len(value) <= LARGE for value in values):
            return b"".join(map(wire.text, values))
        return [piece for value in values for piece in (_pack_length(len(value)), value)]


def _joined(pieces: list[bytes]) -> list[bytes]:
    """The same bytes in few pieces; large ones stay as they are."""
    joined: list[bytes] = []
    for is_large, group in groupby(pieces, key=lambda piece: len(piece) > LARGE):
        together = list(group)
        joined += together if is_large else [b"".join(together)]
    return joined


def _refuse_second_wait(session: StoreSession) -> None:
    if session.waiting:
        raise ProtocolError("it began to wait while it was waiting")
