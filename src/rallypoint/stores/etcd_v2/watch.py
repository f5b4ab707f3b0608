"""Waiting for changes of etcd's keys by its API v2: one long request a path, on sockets that can be waited for together."""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Protocol

from rallypoint.stores.etcd_v2.http_connection import read_response, request
from rallypoint.stores.etcd_v2.keys import CLEARED, Answer, Keys, read_answer

_CONNECT_S = 3.0
_SLICE_S = 10.0
"""How long to trust a member that says nothing, before asking it or another one."""


class Wakeable(Protocol):
    """Something else that may end a wait: it is readable then."""

    def fileno(self) -> int: ...


class EtcdV2Watch:
    """One request for the next event at a path from an index on.  Raises OSError where the member does not answer."""

    def __init__(self, keys: Keys, path: str, index: int, *, recursive: bool = False) -> None:
        self._member = keys.member
        fields = {"wait": "true", "waitIndex": str(index), **({"recursive": "true"} if recursive else {})}
        self._buffer = b""
        try:
            self._sock = keys.connect(self._member, _CONNECT_S)
            try:
                self._sock.sendall(request("GET", self._member, keys.where(path), fields, keys.headers, last=True))
                self._sock.setblocking(False)
            except BaseException:
                self._sock.close()
                raise
        except OSError:
            keys.turn_away(self._member)
            raise

    def fileno(self) -> int:
        """For `select` and `poll`."""
        return self._sock.fileno()

    def take(self) -> Answer | None:
        """What has come; None while the event has not."""
        while True:
            try:
                data = self._sock.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            if not data:
                raise ConnectionResetError(f"etcd at {self._member} ended a watch")
            self._buffer += data
            answer = self._read()
            if answer is not None:
                return answer

    def close(self) -> None:
        """Let go of it."""
        self._sock.close()

    def _read(self) -> Answer | None:
        response = read_response(self._buffer)
        if response is None:
            return None
        answer = read_answer(response.status, response.headers, response.body, self._member)
        if answer is None:
            raise ConnectionResetError(f"etcd at {self._member} cannot watch: {response.body[:200]!r}")
        return answer


def wait_for_event(
    keys: Keys, paths: Iterable[tuple[str, bool]], since: int, limit_s: float, waker: Wakeable | None = None
) -> Answer | None:
    """The first event after an index at one of the paths (each with whether all below it counts).

    None means: look again.  The time is over, `waker` is readable, the history does not reach back so far, or the
    member that was asked does not answer.
    """
    deadline = time.monotonic() + min(limit_s, _SLICE_S)
    with ExitStack() as stack:
        poll = select.poll()
        watches: dict[int, EtcdV2Watch] = {}
        try:
            for path, recursive in paths:
                watch = EtcdV2Watch(keys, path, since + 1, recursive=recursive)
                stack.callback(watch.close)
                watches[watch.fileno()] = watch
                poll.register(watch, select.POLLIN)
            if waker is not None:
                poll.register(waker, select.POLLIN)
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                for descriptor, _ in poll.poll(left_s * 1000.0):
                    if descriptor not in watches:
                        return None
                    answer = watches[descriptor].take()
                    if answer is not None:
                        return None if answer.code == CLEARED or answer.node is None else answer
        except OSError:
            keys.turn_away(keys.member)
            # Nobody hurries: where etcd is away, the next look is the one that waits for it.
            select.select([] if waker is None else [waker], [], [], min(max(deadline - time.monotonic(), 0.0), 0.02))
            return None
