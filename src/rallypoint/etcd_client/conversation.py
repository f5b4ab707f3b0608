"""A stream at one endpoint that lasts, the thread that reads it, and whether it owes an answer."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial

from rallypoint.etcd_client.hub import Hub, Metadata
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.wire import Message, encode


class Conversation:
    """It belongs to the thread of whoever opened it.  What it says, and its end, are put into `inbox` as calls for it."""

    def __init__(
        self,
        hub: Hub,
        endpoint: str,
        method: str,
        metadata: Metadata,
        inbox: queue.SimpleQueue[Callable[[], None]],
        *,
        hear: Callable[[Conversation, bytes], None],
        broke: Callable[[Conversation, str, str], None],
    ) -> None:
        self.endpoint = endpoint
        self.logins = hub.logins
        self.answer_by: float | None = None  # an answer is owed until then
        self.heard_at = time.monotonic()
        self._inbox = inbox
        self._hear = hear
        self._broke = broke
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = hub.lines.to(endpoint).stream(method, iter(self._requests.get, None), metadata)
        name = f"etcd-{method.rpartition('/')[2].lower()}-reader"
        try:
            hub.start(self._read, name)
        except RuntimeError as problem:  # no more threads for the moment
            self.hang_up()
            raise CallFailedError("UNAVAILABLE", str(problem)) from problem

    def send(self, request: Message, patience_s: float | None) -> None:
        """Say something; with `patience_s`, an answer is owed within it."""
        self._requests.put(encode(request))
        if patience_s is not None:
            self.expect(patience_s)

    def expect(self, patience_s: float) -> None:
        """An answer is owed, at the latest in so many seconds."""
        owed_by = time.monotonic() + patience_s
        self.answer_by = owed_by if self.answer_by is None else min(owed_by, self.answer_by)

    def heard(self) -> None:
        """It lives."""
        self.answer_by, self.heard_at = None, time.monotonic()

    def is_overdue(self) -> bool:
        """Whether it owes an answer for too long."""
        return self.answer_by is not None and self.answer_by <= time.monotonic()

    def hang_up(self) -> None:
        """Over; what arrives later is not to be listened to."""
        self._requests.put(None)
        self._stream.cancel()

    def _read(self) -> None:
        try:
            for data in self._stream:
                self._inbox.put(partial(self._hear, self, data))
        except CallFailedError as failure:
            code, details = failure.code, failure.details
        else:
            code, details = "UNAVAILABLE", "the member ended the stream"
        self._inbox.put(partial(self._broke, self, code, details))
