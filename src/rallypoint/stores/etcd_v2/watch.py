"""Waiting for changes of etcd's keys by its API v2: one long request a path, on sockets that are waited for together."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import ExitStack

from rallypoint.stores.etcd_v2.http_connection import read_response, request
from rallypoint.stores.etcd_v2.keys import CLEARED, Answer, Keys, read_answer
from rallypoint.waiting import Deadline

_CONNECT_S = 3.0
_SLICE_S = 10.0
"""How long to trust a member that says nothing, before asking it or another one."""


def wait_for_event(keys: Keys, paths: Iterable[tuple[str, bool]], since: int, limit_s: float) -> Answer | None:
    """The first event after an index at one of the paths (each with whether all below it counts).

    None means: look again.  The time is over, the history does not reach back so far, or the member that was asked does
    not answer.
    """
    deadline, member = Deadline.after(min(limit_s, _SLICE_S)), keys.member
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.PollSelector())
        try:
            for path, recursive in paths:
                fields = {"wait": "true", "waitIndex": str(since + 1), **({"recursive": "true"} if recursive else {})}
                sock = stack.enter_context(keys.connect(member, _CONNECT_S))
                headers = {**keys.headers, "Connection": "close"}
                sock.sendall(request("GET", member, keys.where(path), fields, headers))
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ, (sock, bytearray()))
            while left_s := deadline.left_s():
                for watched, _ in selector.select(left_s):
                    answer = _receive(watched.data[0], watched.data[1], member)
                    if answer is not None:
                        return None if answer.code == CLEARED or answer.node is None else answer
        except OSError:
            keys.turn_away(member)
            time.sleep(min(deadline.left_s(), 0.02))  # the next look is the one that waits for etcd
    return None


def _receive(sock: socket.socket, received: bytearray, member: str) -> Answer | None:
    """The event, once all of it has come."""
    while True:
        try:
            data = sock.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not data:
            raise ConnectionResetError(f"etcd at {member} ended a watch")
        received += data
        response = read_response(bytes(received))
        if response is not None:
            answer = read_answer(response, member)
            if answer is None:
                raise ConnectionResetError(f"etcd at {member} cannot watch: {response.body[:200]!r}")
            return answer
