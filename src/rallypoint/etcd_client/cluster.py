"""One cluster as a client and its twins see it: channels, the order of endpoints, the token.

A call is tried at one endpoint after the other until its deadline.  A write whose answer was lost is never sent again
unless the caller says that it may be: it may have happened.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from rallypoint.etcd_client import errors
from rallypoint.etcd_client.codec import Message, decode, encode
from rallypoint.etcd_client.endpoints import Attempts, Tls, User
from rallypoint.etcd_client.failures import Diagnosis, FailureAction, classify
from rallypoint.etcd_client.messages import AuthenticateRequest, AuthenticateResponse, Response
from rallypoint.etcd_client.transport import CallFailedError, Channel, Channels, Metadata, check_process
from rallypoint.forks import OpenedIn

log = logging.getLogger("rallypoint.etcd_client")

AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
STATUS = "/etcdserverpb.Maintenance/Status"

# With it, a member that is cut off from the others says so at once instead of letting the call wait.
_HAS_LEADER: Metadata = (("hasleader", "true"),)
_SHORTEST_TRY_S = 0.5
_LONGEST_TRY_S = 2.5
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_LOGINS = 2
_CLOSE_S = 1.0
_REVOKE = "etcd-revoke"  # the name of the threads that do so
_SENT_BEFORE = "; it had been sent before, and that answer was lost: the earlier one may have happened"

M = TypeVar("M", bound=Message)
S = TypeVar("S")


class RetryKind(Enum):
    """What may be done with a request whose answer was lost."""

    READ = "changes nothing: send it again"
    AGAIN = "changes something, and may be sent again; without an answer it is open whether it did"
    ONCE = "changes something, and must not be sent again"


class Cluster:
    """What a client and its twins share.  It counts its users; the last one that releases it closes it."""

    def __init__(self, endpoints: tuple[str, ...], tls: Tls | None, user: User | None, *, spread: bool) -> None:
        self.endpoints = endpoints
        self.user = user
        self.opened_in = OpenedIn()
        # Many processes are given the same list; they should not all begin with its first member.
        first = random.randrange(len(endpoints)) if spread else 0
        self.order = (*endpoints[first:], *endpoints[:first])
        """All calls stay with the first endpoint while it answers; one that fails goes last."""
        self.channels = Channels(tls)
        self.closing = threading.Event()
        self.logins = 0
        """How often a token was fetched; `login` compares it."""
        self.when_failed: list[Callable[[str], None]] = []
        """Called with an endpoint that did not answer, on the thread that asked it."""
        self._proven: set[str] = set()  # endpoints that have answered since they last failed
        self._token: Metadata = ()
        self._login_lock = threading.Lock()
        self._lock = threading.RLock()  # for the next three
        self._users = 1
        self._watch_stream: Any = None
        self._threads: list[threading.Thread] = []

    def call(
        self, method: str, request: Message, answer: type[M], timeout_s: float, kind: RetryKind = RetryKind.READ
    ) -> M:
        """Ask one endpoint after the other until one answers."""
        check_process(self.opened_in)
        data, deadline = encode(request), time.monotonic() + timeout_s
        attempts = Attempts(self.endpoints)
        while True:
            endpoint, left_s = attempts.next_of(self.order), deadline - time.monotonic()
            if left_s <= 0 or self.closing.is_set():
                raise self._no_answer(method, timeout_s, attempts)
            logins, sent = self.logins, False
            try:
                channel = self.channels.to(endpoint)
                metadata = _HAS_LEADER if method == AUTHENTICATE else self.metadata(left_s)
                try_s = min(left_s, self._try_s(timeout_s, attempts.rounds))
                if kind is RetryKind.ONCE:
                    # It can be sent to one endpoint only, so it is sent to one that answers, and may take all the time.
                    self._prove(channel, try_s)
                    try_s = max(deadline - time.monotonic(), 0.001)
                sent = True
                found = decode_answer(answer, channel.call(method, data, try_s, metadata))
                self._proven.add(endpoint)
                return found
            except CallFailedError as failure:
                diagnosis = classify(failure.code, failure.details)
                where = f"({_name(method)} at {endpoint}){_SENT_BEFORE if attempts.ambiguous else ''}"
                if diagnosis.action is FailureAction.FINAL:
                    raise diagnosis.error(f"{diagnosis.words} {where}") from failure
                if diagnosis.action is FailureAction.LOGIN:
                    attempts.note(endpoint, diagnosis.words)
                    attempts.logins += 1
                    if self.user is None or method == AUTHENTICATE or attempts.logins > _LOGINS:
                        raise errors.EtcdAuthError(f"{diagnosis.words} {where}") from failure
                    self.login(logins, deadline - time.monotonic())
                    continue
                self.failed(endpoint, diagnosis, attempts)
                attempts.ambiguous |= sent and kind is not RetryKind.READ and diagnosis.action is FailureAction.MAYBE
                if attempts.all_hopeless or (attempts.ambiguous and kind is RetryKind.ONCE):
                    raise self._no_answer(method, timeout_s, attempts) from failure
            if attempts.ends_round(endpoint):
                pause_s = _PAUSES_S[min(attempts.rounds, len(_PAUSES_S)) - 1] * random.uniform(0.5, 1.0)
                self.closing.wait(min(pause_s, max(deadline - time.monotonic(), 0)))

    def _try_s(self, timeout_s: float, rounds: int) -> float:
        """How long one endpoint may take before the next is asked; longer when all have failed: the answer may be large."""
        longest_s = _LONGEST_TRY_S if len(self.endpoints) > 1 else timeout_s
        return max(_SHORTEST_TRY_S, min(longest_s, timeout_s / (len(self.endpoints) + 1))) * (1 << rounds)

    def _prove(self, channel: Channel, timeout_s: float) -> None:
        """Find out whether the endpoint answers.  Newer versions of etcd refuse their status to some users: an answer, too."""
        try:
            if channel.endpoint not in self._proven:
                channel.call(STATUS, encode(Message()), timeout_s, self._token)
        except CallFailedError as failure:
            if classify(failure.code, failure.details).error is not errors.EtcdAuthError:
                raise

    def warm_up(self) -> None:
        """Begin to connect without waiting; a failure is reported by the first call, not here."""

        def connect() -> None:
            with suppress(errors.EtcdError):
                self.call(STATUS, Message(), Response, _LONGEST_TRY_S)

        with suppress(RuntimeError):
            self.start(connect, "etcd-connect")

    def failed(self, endpoint: str, diagnosis: Diagnosis, attempts: Attempts) -> None:
        """An endpoint did not answer: the others are asked first from now on, and the watch stream checks its own."""
        self.order = (*(other for other in self.order if other != endpoint), endpoint)
        self._proven.discard(endpoint)
        for tell in self.when_failed:
            tell(endpoint)
        has_new_certificates = self.channels.reload_certificates()
        is_hopeless = diagnosis.action is FailureAction.HOPELESS and not has_new_certificates
        attempts.note(endpoint, diagnosis.words, hopeless=is_hopeless)

    def _no_answer(self, method: str, timeout_s: float, attempts: Attempts) -> errors.EtcdError:
        if attempts.ambiguous:
            return errors.EtcdAmbiguousError(
                f"{_name(method)} was sent and its answer was lost: it may or may not have happened; read back before "
                f"doing it again. {attempts}"
            )
        if self.closing.is_set():
            return errors.EtcdClosedError(f"the client was closed during {_name(method)}")
        if attempts.all_hopeless:
            return errors.EtcdHopelessError(f"etcd gave no answer to {_name(method)}. {attempts}")
        return errors.EtcdUnavailableError(f"etcd gave no answer to {_name(method)} within {timeout_s:g} s. {attempts}")

    def metadata(self, timeout_s: float) -> Metadata:
        """What is sent along with a call or stream; the first call of a user fetches its token."""
        if self.user is not None and self.logins == 0:
            self.login(0, timeout_s)
        return _HAS_LEADER + self._token

    def login(self, seen: int, timeout_s: float) -> None:
        """Fetch a token, unless another thread has done so since `seen` logins; one thread asks, the others wait for it."""
        assert self.user is not None
        deadline = time.monotonic() + timeout_s
        if not self._login_lock.acquire(timeout=max(timeout_s, 0)):
            raise errors.EtcdUnavailableError(
                f"etcd gave no answer to Authenticate within {max(timeout_s, 0):g} s, which another call of this process "
                f"was waiting for"
            )
        try:
            if self.logins != seen:
                return
            request = AuthenticateRequest(self.user.name, self.user.password)
            try:
                answer = self.call(AUTHENTICATE, request, AuthenticateResponse, deadline - time.monotonic())
                self._token = (("token", answer.token),)
            except errors.EtcdRefusedError as refusal:
                if "authentication is not enabled" not in str(refusal):
                    raise
                self._token = ()  # this etcd has no users, and allows everything
            self.logins += 1
        finally:
            self._login_lock.release()

    def watch_stream(self, open_stream: Callable[[Cluster], S]) -> S:
        """The one stream for the watches of this cluster; opened when it is first asked for."""
        check_process(self.opened_in)
        with self._lock:
            if self.closing.is_set():
                raise errors.EtcdClosedError("the client is closed")
            self._watch_stream = stream = self._watch_stream or open_stream(self)
            return stream

    def start(self, run: Callable[[], None], name: str) -> None:
        """A thread that belongs to this cluster; RuntimeError where the system has none left."""
        check_process(self.opened_in)
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        with self._lock:
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def revoke_in_background(self, revoke: Callable[[], None]) -> None:
        """Run `revoke` on a thread of its own; `close` gives it a moment to finish."""

        def run() -> None:
            try:
                revoke()
            except errors.EtcdError as problem:
                log.info("a lease was not revoked, and expires by itself: %s", problem)

        with suppress(RuntimeError):  # without a thread, the lease expires by itself
            self.start(run, _REVOKE)

    def retain(self) -> Cluster:
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Count one user less; the last one ends everything.  Keys and leases stay as they are."""
        if not self.opened_in.is_this_process:
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
        _join([thread for thread in self._threads if thread.name == _REVOKE])
        self.closing.set()
        with self._lock:  # after this, none is opened
            watch_stream = self._watch_stream
        if watch_stream is not None:
            watch_stream.close()
        self.channels.close()
        # The threads' references to grpc's objects end with them, and need not be collected at the end of the process.
        _join(self._threads)


def _join(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + _CLOSE_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0))


def decode_answer(answer: type[M], data: bytes) -> M:
    """The answer in these bytes; a call whose answer cannot be read has failed."""
    try:
        return decode(answer, data)
    except errors.EtcdMessageError as problem:
        raise CallFailedError("DATA_LOSS", f"no answer of etcd's: {problem}") from problem


def _name(method: str) -> str:
    return method.rpartition("/")[2]
