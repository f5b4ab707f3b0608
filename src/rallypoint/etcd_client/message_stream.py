"""A stream of messages at one endpoint, and the kind of thread that owns one: `lease_keeper` and `watch_stream`."""

from __future__ import annotations

import logging
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from rallypoint.etcd_client.cluster import Cluster, decode_answer
from rallypoint.etcd_client.codec import Message, encode
from rallypoint.etcd_client.transport import CallFailedError, Metadata

log = logging.getLogger("rallypoint.etcd_client")

_PAUSE_S = 0.2  # after an error of this program, so that it does not keep a core busy

M = TypeVar("M", bound=Message)


class MessageStream:
    """A stream at one endpoint, and whether it owes an answer.

    It belongs to the thread that opened it.  A reader of its own hands each message, and the end, to `received`.
    """

    def __init__(
        self,
        cluster: Cluster,
        endpoint: str,
        method: str,
        metadata: Metadata,
        received: Callable[[MessageStream, bytes | CallFailedError], None],
    ) -> None:
        self.endpoint = endpoint
        self.logins = cluster.logins
        self.answer_by: float | None = None  # an answer is owed until then
        self.heard_at = time.monotonic()
        self._received = received
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = cluster.channels.to(endpoint).stream(method, iter(self._requests.get, None), metadata)
        try:
            cluster.start(self._read, f"etcd-{method.rpartition('/')[2].lower()}-reader")
        except RuntimeError as problem:  # the system has no more threads at the moment
            self.hang_up()
            raise CallFailedError("UNAVAILABLE", str(problem)) from problem

    def send(self, request: Message, answer_within_s: float | None) -> None:
        """Send a request; with `answer_within_s`, an answer is owed by then."""
        self._requests.put(encode(request))
        if answer_within_s is not None:
            self.expect(answer_within_s)

    def expect(self, within_s: float) -> None:
        """An answer is owed, at the latest in so many seconds."""
        self.answer_by = min(time.monotonic() + within_s, self.answer_by or float("inf"))

    def heard(self) -> None:
        """It lives."""
        self.answer_by, self.heard_at = None, time.monotonic()

    def hang_up(self) -> None:
        """End it; its owner ignores what arrives later."""
        self._requests.put(None)
        self._stream.cancel()

    def _read(self) -> None:
        try:
            for data in self._stream:
                self._received(self, data)
        except CallFailedError as failure:
            self._received(self, failure)
        else:
            self._received(self, CallFailedError("UNAVAILABLE", "the member ended the stream"))


class StreamThread(ABC, Generic[M]):
    """A thread that owns at most one stream at a time, and never waits for an answer.

    Other threads, and the stream's reader, put calls into its inbox.  An error of this program does not end it: that counts
    as a failure of the stream, and the thread goes on after a pause.
    """

    def __init__(self, cluster: Cluster, method: str, answer: type[M], name: str) -> None:
        self._cluster = cluster
        self._method = method
        self._answer = answer
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stream: MessageStream | None = None
        self._is_over = False
        cluster.start(self._run, name)

    def close(self) -> None:
        self._inbox.put(partial(setattr, self, "_is_over", True))

    @abstractmethod
    def _due(self) -> float | None:
        """When something has to be done if nothing happens before; None: never."""

    @abstractmethod
    def _act(self) -> None:
        """Do what is due."""

    @abstractmethod
    def _heard(self, stream: MessageStream, message: M) -> None:
        """The present stream brought a message."""

    @abstractmethod
    def _broke(self, stream: MessageStream, failure: CallFailedError) -> None:
        """The present stream has failed: close it, and try another one later."""

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._step()
            except Exception as problem:  # noqa: PERF203  # it must not cost all leases or watches their thread
                log.exception("%s: an error of this program; the thread goes on", self._name)
                with suppress(Exception):
                    if self._stream is not None:
                        self._broke(self._stream, CallFailedError("INTERNAL", f"an error of this program: {problem!r}"))
                self._cluster.closing.wait(_PAUSE_S)
        self._close_stream()

    def _step(self) -> None:
        due = self._due()
        with suppress(queue.Empty):
            self._inbox.get(timeout=None if due is None else max(due - time.monotonic(), 0))()
        if not self._is_over:
            self._act()

    def _open(self, endpoint: str, metadata: Metadata) -> MessageStream:
        def received(stream: MessageStream, what: bytes | CallFailedError) -> None:
            self._inbox.put(partial(self._received, stream, what))

        return MessageStream(self._cluster, endpoint, self._method, metadata, received)

    def _received(self, stream: MessageStream, what: bytes | CallFailedError) -> None:
        """A stream brought a message, or is over; one that was left is ignored."""
        if stream is not self._stream:
            return
        try:
            if isinstance(what, CallFailedError):
                raise what
            message = decode_answer(self._answer, what)
        except CallFailedError as failure:
            self._broke(stream, failure)
        else:
            stream.heard()
            self._heard(stream, message)

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.hang_up()
