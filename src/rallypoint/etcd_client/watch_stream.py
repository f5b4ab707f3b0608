"""The thread behind watches: one stream for all watches of a cluster.

It opens the stream at one endpoint after the other, asks for a sign of life when the stream is quiet or calls to its
endpoint have failed, and breaks off when none comes.  It never waits for an answer: other threads, and the reader of the stream,
put calls into its inbox.
"""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rallypoint.etcd_client.cluster import Cluster, decode_answer
from rallypoint.etcd_client.codec import encode
from rallypoint.etcd_client.endpoints import Attempts
from rallypoint.etcd_client.errors import EtcdAuthError, EtcdClosedError, EtcdError, EtcdUnavailableError
from rallypoint.etcd_client.failures import classify
from rallypoint.etcd_client.messages import WatchRequest, WatchResponse
from rallypoint.etcd_client.transport import CallFailedError, Metadata
from rallypoint.etcd_client.watch_state import WatchedRange, WatchState

log = logging.getLogger("rallypoint.etcd_client")

_WATCH = "/etcdserverpb.Watch/Watch"
_QUIET_S = 5.0  # so long may a stream send nothing before it is asked for a sign of life
_ANSWER_S = 3.0  # so long may any answer take
_SUSPECTED_ANSWER_S = 1.0  # the same where other calls to the endpoint have just failed
_LOGIN_S = 5.0
_ERROR_PAUSE_S = 0.2  # after an error of this program, so that it does not keep a core busy
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class EndpointStream:
    """A stream at one endpoint, and whether it owes an answer.

    It belongs to the thread that opened it.  A reader of its own hands each message, and the end, to `received`.
    """

    def __init__(
        self,
        cluster: Cluster,
        endpoint: str,
        metadata: Metadata,
        received: Callable[[EndpointStream, bytes | CallFailedError], None],
    ) -> None:
        self.endpoint = endpoint
        self.logins = cluster.logins
        self.answer_by: float | None = None  # an answer is owed until then
        self.heard_at = time.monotonic()
        self._received = received
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = cluster.channels.to(endpoint).stream(_WATCH, iter(self._requests.get, None), metadata)
        try:
            cluster.start(self._read, "etcd-watch-reader")
        except RuntimeError as problem:  # the system has no more threads at the moment
            self.hang_up()
            raise CallFailedError("UNAVAILABLE", str(problem)) from problem

    def send(self, request: WatchRequest) -> None:
        """Send a request; etcd answers all but cancellations at once."""
        self._requests.put(encode(request))
        if request.cancel_request is None:
            self.expect(_ANSWER_S)

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


class WatchStream:
    """All watches of a cluster.  Everything but `add`, `remove`, `go_on` and `close` runs on its own thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.opened_in = cluster.opened_in
        self._cluster = cluster
        self.trouble: str | None = None
        """Why there is no stream at present, in words; None while all is well."""
        self._state = WatchState()
        self._failures = 0
        self._open_at = 0.0
        self._attempts = Attempts(cluster.endpoints)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stream: EndpointStream | None = None
        self._is_over = False
        cluster.start(self._run, "etcd-watches")
        cluster.when_failed.append(lambda endpoint: self._inbox.put(partial(self._suspect, endpoint)))

    def add(self, watched: WatchedRange) -> None:
        self._inbox.put(partial(self._state.add, watched))
        if self._is_over:
            watched.items.put(_closed())

    def remove(self, watched: WatchedRange) -> None:
        self._inbox.put(partial(self._state.remove, watched))

    def go_on(self, watched: WatchedRange, revision: int) -> None:
        """Go on after a gap, from a revision."""
        self._inbox.put(partial(self._state.go_on, watched, revision))

    def close(self) -> None:
        self._inbox.put(partial(setattr, self, "_is_over", True))

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._step()
            except Exception as problem:  # noqa: PERF203  # it must not cost all watches their thread
                log.exception("watches: an error of this program; the thread goes on")
                with suppress(Exception):
                    if self._stream is not None:
                        self._broke(self._stream, CallFailedError("INTERNAL", f"an error of this program: {problem!r}"))
                self._cluster.closing.wait(_ERROR_PAUSE_S)
        self._close_stream()
        while not self._inbox.empty():  # watches that came at the last moment
            self._inbox.get()()
        for watched in self._state.watches:
            watched.items.put(_closed())

    def _step(self) -> None:
        due = self._due()
        with suppress(queue.Empty):
            self._inbox.get(timeout=None if due is None else max(due - time.monotonic(), 0))()
        if not self._is_over:
            self._act()

    def _due(self) -> float | None:
        """When something has to be done if nothing happens before; None: never."""
        if not self._state.watches:
            return None
        if self._stream is None:
            return self._open_at
        return self._stream.answer_by or self._stream.heard_at + _QUIET_S

    def _act(self) -> None:
        """Do what is due."""
        due, stream = self._due(), self._stream
        if due is not None and time.monotonic() >= due:
            if stream is None:
                self._connect()
            elif stream.answer_by is not None:
                self._broke(stream, CallFailedError("DEADLINE_EXCEEDED", "the watch stream gave no sign of life"))
            else:
                self._state.sign_of_life()
                stream.expect(_ANSWER_S)
        for request in self._state.take_requests():
            if self._stream is not None:
                self._stream.send(request)
        if self._state.needs_login and self._stream is not None:
            self._login(self._stream)

    def _suspect(self, endpoint: str) -> None:
        """A call to this endpoint has failed; with another one to go to, find out whether the stream there still lives."""
        stream = self._stream
        if (
            stream is not None
            and stream.endpoint == endpoint
            and self._state.watches
            and len(self._cluster.endpoints) > 1
        ):
            self._state.sign_of_life()
            stream.expect(_SUSPECTED_ANSWER_S)

    def _connect(self) -> None:
        endpoint = self._cluster.order[0]
        try:
            metadata = self._cluster.metadata(_LOGIN_S)
            self._stream = EndpointStream(self._cluster, endpoint, metadata, self._tell)
        except CallFailedError as failure:
            self._failed(endpoint, failure)
        except EtcdAuthError as refusal:
            self._state.end(refusal)
        except EtcdError as problem:  # no member gave a token: the same outage
            self._failed(endpoint, CallFailedError("UNAVAILABLE", str(problem)))
        else:
            self._state.opened()

    def _tell(self, stream: EndpointStream, what: bytes | CallFailedError) -> None:
        """On the reader of a stream: it brought a message, or is over."""
        self._inbox.put(partial(self._received, stream, what))

    def _received(self, stream: EndpointStream, what: bytes | CallFailedError) -> None:
        """A stream that was left is ignored."""
        if stream is not self._stream:
            return
        try:
            if isinstance(what, CallFailedError):
                raise what
            message = decode_answer(WatchResponse, what)
        except CallFailedError as failure:
            self._broke(stream, failure)
        else:
            stream.heard()
            self._heard(stream, message)

    def _heard(self, stream: EndpointStream, message: WatchResponse) -> None:
        self._state.heard(message)
        if self._failures:
            log.info("watching again, at %s", stream.endpoint)
        self._failures, self.trouble = 0, None
        self._attempts = Attempts(self._cluster.endpoints)

    def _broke(self, stream: EndpointStream, failure: CallFailedError) -> None:
        self._hang_up()
        self._failed(stream.endpoint, failure)

    def _failed(self, endpoint: str, failure: CallFailedError) -> None:
        diagnosis = classify(failure.code, failure.details)
        self.trouble = f"no watch stream: {endpoint}: {diagnosis.words}"
        if self._failures == 0:
            log.info("%s; the next member is asked", self.trouble)
        elif self._failures == len(self._cluster.endpoints):
            log.warning("etcd cannot be watched at present. %s", self._attempts)
        self._cluster.failed(endpoint, diagnosis, self._attempts)
        pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        self._open_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        self._failures += 1
        if self._attempts.all_hopeless:
            self._state.end(EtcdUnavailableError(f"etcd cannot be watched. {self._attempts}"))

    def _hang_up(self) -> None:
        self._state.broken()
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.hang_up()

    def _login(self, stream: EndpointStream) -> None:
        """Fetch a new token and hang up: a stream keeps the token with which it was opened."""
        self._hang_up()
        try:
            if self._cluster.user is not None:
                self._cluster.login(stream.logins, _LOGIN_S)
        except EtcdAuthError as refusal:
            self._state.end(refusal)
        except EtcdError as problem:
            self.trouble = f"no watch stream: {problem}"


def _closed() -> EtcdClosedError:
    return EtcdClosedError("the client was closed")
