"""Which of many sockets are ready: the system's own object for that, with nothing around it where there is epoll.

It has a file descriptor of its own, which is readable when any of the sockets is ready.
"""

from __future__ import annotations

import select
import selectors
import sys

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
"""What can be awaited.  What is told may be more: an error, an end."""


class SelectorReadiness:
    """The same by Python's selectors, for systems without epoll."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.closed = False

    def fileno(self) -> int:
        return self._selector.fileno()

    def register(self, fd: int, events: int) -> None:
        self._selector.register(fd, _selected(events))

    def modify(self, fd: int, events: int) -> None:
        self._selector.modify(fd, _selected(events))

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout_s: float | None = None) -> list[tuple[int, int]]:
        return [
            (key.fd, READABLE * bool(events & selectors.EVENT_READ) | WRITABLE * bool(events & selectors.EVENT_WRITE))
            for key, events in self._selector.select(timeout_s)
        ]

    def close(self) -> None:
        self._selector.close()
        self.closed = True


def _selected(events: int) -> int:
    return selectors.EVENT_READ * bool(events & READABLE) | selectors.EVENT_WRITE * bool(events & WRITABLE)


if sys.platform == "linux":
    Readiness = select.epoll
else:
    Readiness = SelectorReadiness
