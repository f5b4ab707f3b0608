"""Waiting for changes of etcd's keys by its API v2: one long request a path, on sockets that are waited for together."""

from __future__ import annotations

import selectors
import ssl
import time
from collections.abc import Iterable
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException, HTTPResponse

from rallypoint.stores.etcd_v2.keys import CLEARED, Answer, Keys, read_answer
from rallypoint.waiting import Deadline

_CONNECT_S = 3.0
_READ_S = 3.0
"""How long the rest of an answer may take that has begun."""
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
                connection = keys.connect(member, _CONNECT_S)
                stack.callback(connection.close)
                keys.send(connection, "GET", keys.where(path), fields)
                selector.register(connection.sock, selectors.EVENT_READ, _Watch(connection))
            while left_s := deadline.left_s():
                for ready, _ in selector.select(left_s):
                    answer = ready.data.read(member)
                    if answer is not None:
                        return None if answer.code == CLEARED or answer.node is None else answer
        except (OSError, HTTPException):
            keys.turn_away(member)
            time.sleep(min(deadline.left_s(), 0.02))  # the next look is the one that waits for etcd
    return None


class _Watch:
    """A request whose answer begins at once, and ends with the event."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._response: HTTPResponse | None = None

    def read(self, member: str) -> Answer | None:
        """The event, if it has come; to be called when there is something to read."""
        sock, response = self._connection.sock, self._response
        is_first = response is None
        sock.settimeout(_READ_S)
        if response is None:
            response = self._response = self._connection.getresponse()
        sock.setblocking(False)
        try:
            if not response.isclosed() and not response.fp.peek(1):
                if is_first:
                    return None
                raise ConnectionResetError(f"etcd at {member} ended a watch")
        except ssl.SSLWantReadError:
            return None
        sock.settimeout(_READ_S)
        body = response.read()
        answer = read_answer(response, body, member)
        if answer is None:
            raise ConnectionResetError(f"etcd at {member} cannot watch: {body[:200]!r}")
        return answer
