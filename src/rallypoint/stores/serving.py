"""A store server without its sockets: bytes of connections in, bytes for connections out.  Sans-IO.

Whoever breaks the rules of the wire format is refused, and nobody else notices.
"""

from __future__ import annotations

from typing import NamedTuple

from rallypoint.stores import wire
from rallypoint.stores.data import KeyValues, Waiter
from rallypoint.stores.errors import StoreError
from rallypoint.stores.wire import Limits, ProtocolError, Query, Request, RequestReader

_STOP_WAITING = bytes((wire.STOP_WAITING,))
_WAIT_CANCELED = bytes((wire.WAIT_CANCELED,))


class Session(Waiter):
    """One connection."""

    __slots__ = ("name", "reader", "refusal")

    def __init__(self, name: str, limits: Limits) -> None:
        super().__init__()
        self.name = name
        self.reader = RequestReader(limits)
        # Why the connection is to be closed; from then on nothing of it is read.
        self.refusal: str | None = None


class Send(NamedTuple):
    """Bytes for a connection."""

    session: Session
    data: bytes


class StoreServerCore:
    """The keys of one server and the conversations about them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._data = KeyValues[Session]()

    def connect(self, name: str) -> Session:
        """Somebody connected; the name is for messages only."""
        return Session(name, self.limits)

    def receive(self, session: Session, data: bytes, unread_bytes: int = 0) -> list[Send]:
        """Bytes came in.  `unread_bytes`: what was sent to this connection before and still waits in its buffer.

        Afterwards the connection is to be closed if `session.refusal` says so.
        """
        if session.refusal is not None:
            return []
        mine: list[bytes] = []
        sends: list[Send] = []
        keys, limit, piled = self._data, self.limits.unread_bytes, self.limits.piled_bytes
        unread = unread_bytes
        try:
            for request in session.reader.read(data):
                if unread > piled:
                    mine.clear()  # it would not read them
                    raise ProtocolError(f"it asked for more while {unread} bytes of answers lay unread")
                answer = self._answer(session, request, limit - unread)
                if answer:
                    unread += len(answer)
                    if unread > limit:
                        raise ProtocolError(f"it left more than {limit} bytes of answers unread")
                    mine.append(answer)
                if session.promise is not None:
                    keys.settle(session)
                if keys.has_woken:
                    for woken in keys.take_woken():
                        if woken is session:
                            mine.append(_STOP_WAITING)  # in its place among the others
                        else:
                            sends.append(Send(woken, _STOP_WAITING))
        except (ProtocolError, StoreError) as exc:
            session.refusal = str(exc)
            sends += self._leave(session)
        if mine:
            sends.append(Send(session, mine[0] if len(mine) == 1 else b"".join(mine)))
        return sends

    def disconnect(self, session: Session) -> list[Send]:
        """The connection is gone, for whatever reason."""
        session.refusal = session.refusal or "it is gone"
        return self._leave(session)

    def _leave(self, session: Session) -> list[Send]:
        self._data.cancel(session)
        self._data.settle(session)
        return [Send(woken, _STOP_WAITING) for woken in self._data.take_woken()]

    def _answer(self, session: Session, request: Request, room: int) -> bytes:
        query, texts, number = request
        data = self._data
        match query:
            case Query.GET:
                return self._values(texts, room)
            case Query.SET:
                data.put(*texts)
            case Query.CHECK:
                return bytes((wire.READY if all(map(data.holds, texts)) else wire.NOT_READY,))
            case Query.WAIT:
                self._refuse_second_wait(session)
                return _STOP_WAITING if data.wait(session, texts) else b""
            case Query.ADD:
                return wire.NUMBER.pack(data.add(texts[0], number))
            case Query.COMPARE_SET:
                return wire.text(data.compare_set(*texts))
            case Query.DELETE:
                return wire.NUMBER.pack(data.delete(texts[0]))
            case Query.COUNT_KEYS:
                return wire.NUMBER.pack(len(data))
            case Query.APPEND:
                self._append(*texts)
            case Query.MULTI_GET:
                return self._values(texts, room)
            case Query.MULTI_SET:
                for key, value in zip(texts[::2], texts[1::2], strict=True):
                    data.put(key, value)
            case Query.CANCEL_WAIT:
                data.cancel(session)
                return _WAIT_CANCELED
            case Query.PING:
                return wire.NONCE.pack(number)
            case Query.QUEUE_PUSH:
                data.push(*texts)
            case Query.QUEUE_POP:
                before = data.queue_len(texts[0])
                popped = data.pop(texts[0])
                return wire.NUMBER.pack(before) + (b"" if popped is None else wire.text(popped))
            case Query.QUEUE_LEN:
                return wire.NUMBER.pack(data.queue_len(texts[0]))
            case Query.LIST_KEYS:
                keys = data.list_keys()
                return wire.NUMBER.pack(len(keys)) + b"".join(map(wire.text, keys))
            case Query.BARRIER:
                self._refuse_second_wait(session)
                return _STOP_WAITING if data.barrier(session, texts[0], number) else b""
            case Query.VALIDATE:
                if number != wire.MAGIC:
                    raise ProtocolError(f"it is no store client: it began with {number:#010x}, not {wire.MAGIC:#010x}")
        return b""

    def _values(self, keys: list[bytes], room: int) -> bytes:
        """Measured before it is made: one key named many times would make an endless answer of a short request."""
        if sum(map(self._data.size, keys)) + wire.LENGTH.size * len(keys) > room:
            raise ProtocolError(f"it asked for more than {self.limits.unread_bytes} bytes of answers")
        parts: list[bytes] = []
        for key in keys:
            value = self._data.get(key)
            parts += (wire.LENGTH.pack(len(value)), value)
        return b"".join(parts)

    def _append(self, key: bytes, value: bytes) -> None:
        longest = self.limits.unread_bytes // 2  # so that it can still be read
        if self._data.size(key) + len(value) > longest:
            raise ProtocolError(f"it appended to a value beyond {longest} bytes")
        self._data.append(key, value)

    def _refuse_second_wait(self, session: Session) -> None:
        if session.waiting:
            raise ProtocolError("it began to wait while it was waiting")
