"""The thread behind watches: one stream for all watches of a cluster.

It opens the stream at one endpoint after the other, asks for a sign of life when the stream is quiet or calls to its
endpoint have failed, and breaks off when none comes.
"""

from __future__ import annotations

import logging
import random
import time
from functools import partial

from rallypoint.etcd_client.cluster import Cluster
from rallypoint.etcd_client.endpoints import Attempts
from rallypoint.etcd_client.errors import EtcdAuthError, EtcdClosedError, EtcdError, EtcdUnavailableError
from rallypoint.etcd_client.failures import FailureAction, classify
from rallypoint.etcd_client.message_stream import MessageStream, StreamThread
from rallypoint.etcd_client.messages import WatchResponse
from rallypoint.etcd_client.transport import CallFailedError
from rallypoint.etcd_client.watch_state import WatchedRange, WatchState

log = logging.getLogger("rallypoint.etcd_client")

_QUIET_S = 5.0  # so long may a stream send nothing before it is asked for a sign of life
_ANSWER_S = 3.0  # so long may any answer take
_SUSPECTED_ANSWER_S = 1.0  # the same where other calls to the endpoint have just failed
_LOGIN_S = 5.0
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class WatchStream(StreamThread[WatchResponse]):
    """All watches of a cluster.  Everything but `add`, `remove`, `go_on` and `close` runs on its own thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.opened_in = cluster.opened_in
        self.trouble: str | None = None
        """Why there is no stream at present, in words; None while all is well."""
        self._state = WatchState()
        self._failures = 0
        self._open_at = 0.0
        self._attempts = Attempts(cluster.endpoints)
        super().__init__(cluster, "/etcdserverpb.Watch/Watch", WatchResponse, "etcd-watches")
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

    def _due(self) -> float | None:
        if not self._state.watches:
            return None
        if self._stream is None:
            return self._open_at
        return self._stream.answer_by or self._stream.heard_at + _QUIET_S

    def _act(self) -> None:
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
                self._stream.send(request, _ANSWER_S if request.cancel_request is None else None)
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
        endpoint = self._cluster.rotation.current
        try:
            self._stream = self._open(endpoint, self._cluster.metadata(_LOGIN_S))
        except CallFailedError as failure:
            self._failed(endpoint, failure)
        except EtcdAuthError as refusal:
            self._state.end(refusal)
        except EtcdError as problem:  # no member gave a token: the same outage
            self._failed(endpoint, CallFailedError("UNAVAILABLE", str(problem)))
        else:
            self._state.opened()

    def _heard(self, stream: MessageStream, message: WatchResponse) -> None:
        self._state.heard(message)
        if self._failures:
            log.info("watching again, at %s", stream.endpoint)
        self._failures, self.trouble = 0, None
        self._attempts = Attempts(self._cluster.endpoints)

    def _broke(self, stream: MessageStream, failure: CallFailedError) -> None:
        self._hang_up()
        self._failed(stream.endpoint, failure)

    def _failed(self, endpoint: str, failure: CallFailedError) -> None:
        judgement = classify(failure.code, failure.details)
        self.trouble = f"no watch stream: {endpoint}: {judgement.words}"
        if self._failures == 0:
            log.info("%s; the next member is asked", self.trouble)
        elif self._failures == len(self._cluster.endpoints):
            log.warning("etcd cannot be watched at present. %s", self._attempts)
        has_new_certificates = self._cluster.failed(endpoint)
        is_hopeless = judgement.verdict is FailureAction.HOPELESS and not has_new_certificates
        self._attempts.note(endpoint, judgement.words, hopeless=is_hopeless)
        pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        self._open_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        self._failures += 1
        if self._attempts.all_hopeless:
            self._state.end(EtcdUnavailableError(f"etcd cannot be watched. {self._attempts}"))

    def _hang_up(self) -> None:
        self._state.broken()
        self._close_stream()

    def _run(self) -> None:
        super()._run()
        while not self._inbox.empty():  # watches that came at the last moment
            self._inbox.get()()
        for watched in self._state.watches:
            watched.items.put(_closed())

    def _login(self, stream: MessageStream) -> None:
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
