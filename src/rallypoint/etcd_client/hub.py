"""One cluster as one process sees it: lines, whose turn it is, the token.  All clients of the same cluster share it.

A call is tried at one endpoint after the other until its deadline.  A write whose answer was lost is never sent again
unless the caller says that it may be: it may have happened.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from rallypoint.etcd_client.answers import Verdict, judge
from rallypoint.etcd_client.endpoints import Rotation, Tls, Tries, User
from rallypoint.etcd_client.errors import (
    EtcdAmbiguousError,
    EtcdAuthError,
    EtcdClosedError,
    EtcdError,
    EtcdHopelessError,
    EtcdMessageError,
    EtcdRefusedError,
    EtcdUnavailableError,
)
from rallypoint.etcd_client.messages import AuthenticateRequest, AuthenticateResponse, StatusRequest
from rallypoint.etcd_client.transport import CallFailedError, Line, Lines, check_process
from rallypoint.etcd_client.wire import Message, decode, encode

AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
STATUS = "/etcdserverpb.Maintenance/Status"

Metadata = tuple[tuple[str, str], ...]

# With it, a member that is cut off from the others says so at once instead of letting the call wait.
_LEADER: Metadata = (("hasleader", "true"),)
_SHORTEST_TRY_S = 0.5
_LONGEST_TRY_S = 2.5
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_SILENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
_LOGINS = 2
_END_S = 1.0
_SENT_BEFORE = "; it had been sent before, and that answer was lost: the earlier one may have happened"

M = TypeVar("M", bound=Message)
P = TypeVar("P", bound="Part")


class Kind(Enum):
    """What may be done with a request whose answer was lost."""

    READ = "changes nothing: send it again"
    AGAIN = "changes something, and may be sent again; without an answer it is open whether it did"
    ONCE = "changes something, and must not be sent again"


@dataclass(frozen=True)
class Reply:
    """What came of asking one endpoint once; `logins` is how often a token had been fetched by then."""

    endpoint: str
    logins: int
    outcome: bytes | CallFailedError


class Part(Protocol):
    """Something that a hub has one of, and ends with it."""

    def __init__(self, hub: Hub) -> None: ...

    def close(self) -> None:
        """Stop."""


class Hub:
    """What the clients of one cluster share in a process."""

    def __init__(self, endpoints: tuple[str, ...], tls: Tls | None, user: User | None, *, spread: bool) -> None:
        self.endpoints = endpoints
        self.user = user
        self.pid = os.getpid()
        # Many processes are given the same list: let them not all begin with the first.
        self.rotation = Rotation(endpoints, random.randrange(len(endpoints)) if spread else 0)
        self.lines = Lines(tls)
        self.closing = threading.Event()
        self.is_closing = False  # the same, for those who ask it for each call
        self.suspicions: list[Callable[[str], None]] = []
        self._proven: set[str] = set()
        self._is_warm = False
        self._token: Metadata = ()
        self._login = 0  # how often a token was fetched
        self._login_lock = threading.Lock()
        self._refusals, self._refusal = 0, ""  # how often none was given, and why at last
        self._parts: dict[type[Any], Any] = {}
        self._parts_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._threads_lock = threading.Lock()

    # Calls ------------------------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        request: Message,
        answer: type[M],
        timeout_s: float,
        kind: Kind = Kind.READ,
        *,
        leader: bool = True,
        anonymous: bool = False,
        only: str | None = None,
    ) -> M:
        """Ask until somebody answers; what may be sent only once is sent to somebody who is there.

        What is `anonymous` goes without a token until etcd asks for one.
        """
        data = encode(request)
        endpoints = self.endpoints if only is None else (only,)
        deadline, left_s = time.monotonic() + timeout_s, timeout_s
        tries: Tries | None = None  # made with the first trouble, and most calls have none
        while True:
            if tries is None:
                endpoint, rounds = only or self.rotation.line[0], 0
            else:
                endpoint, rounds = only or self.rotation.after(tries.asked), tries.rounds
                left_s = deadline - time.monotonic()
            if left_s <= 0 or self.is_closing:
                raise self._no_answer(method, timeout_s, tries or Tries(endpoints))
            try_s = min(left_s, _try_s(len(endpoints), timeout_s, rounds))
            login, sent = self._login, False
            try:
                line = self.lines.known.get(endpoint) or self.lines.to(endpoint)
                metadata = _LEADER if leader else ()
                if self.user is not None and not anonymous:
                    metadata += self._present_token(left_s)
                if kind is Kind.ONCE:
                    if endpoint not in self._proven:
                        self._prove(line, try_s)
                    try_s = max(deadline - time.monotonic(), 0.001)
                sent = True
                found = decode(answer, line.call(method, data, try_s, metadata))
                if endpoint not in self._proven:
                    self._proven.add(endpoint)
                return found
            except EtcdMessageError as problem:
                tries = tries or Tries(endpoints)
                tries.note(endpoint, f"no answer of etcd's: {problem}", hopeless=True)
                self.failed(endpoint)
                tries.ambiguous |= kind is not Kind.READ
                if tries.ambiguous and kind is Kind.ONCE:
                    raise self._no_answer(method, timeout_s, tries) from problem
            except CallFailedError as failure:
                tries = tries or Tries(endpoints)
                judgement = judge(failure.code, failure.details)
                where = f"({_name(method)} at {endpoint}){_SENT_BEFORE if tries.ambiguous else ''}"
                tries.note(endpoint, judgement.words, hopeless=judgement.verdict is Verdict.HOPELESS)
                if judgement.verdict is Verdict.FINAL:
                    raise judgement.error(f"{judgement.words} {where}") from failure
                if judgement.verdict is Verdict.LOGIN:
                    tries.logins += 1
                    if self.user is None or method == AUTHENTICATE or tries.logins > _LOGINS:
                        raise EtcdAuthError(f"{judgement.words} {where}") from failure
                    anonymous = False
                    self.login(login, deadline - time.monotonic())
                    continue
                if self.failed(endpoint):
                    tries.note(endpoint, judgement.words)  # there is hope
                tries.ambiguous |= sent and kind is not Kind.READ and judgement.verdict is Verdict.MAYBE
                if tries.ambiguous and kind is Kind.ONCE:
                    raise self._no_answer(method, timeout_s, tries) from failure
            if tries.all_hopeless:
                raise self._no_answer(method, timeout_s, tries)
            if tries.all_asked(endpoint):
                pause_s = _PAUSES_S[min(tries.rounds, len(_PAUSES_S)) - 1] * random.uniform(0.5, 1.0)
                self.closing.wait(min(pause_s, max(deadline - time.monotonic(), 0)))

    def _prove(self, line: Line, timeout_s: float) -> None:
        """Whether anybody is there; who refuses to say more to this user is.  Newer versions of etcd want one for this."""
        try:
            line.call(STATUS, encode(StatusRequest()), timeout_s, self._token)
        except CallFailedError as failure:
            if judge(failure.code, failure.details).error is not EtcdAuthError:
                raise

    def ask(self, method: str, request: Message, timeout_s: float, answered: Callable[[Reply], None]) -> None:
        """Ask once, the endpoint whose turn it is, without waiting; `answered` is called on a thread of grpc's.

        The deadline is that of one try, so that a member that is stopped does not hold up whoever waits for the answer; if it
        gives none, another one is asked next.
        """
        check_process(self.pid)
        endpoint, logins = self.rotation.current, self._login
        try:
            metadata = self.metadata(0, anonymous=logins == 0)
            line = self.lines.to(endpoint)
            try_s = min(_try_s(len(self.endpoints), timeout_s, 0), timeout_s, _LONGEST_TRY_S)

            def hear(said: bytes | CallFailedError) -> None:
                if isinstance(said, CallFailedError) and said.code in _SILENT:
                    self.rotation.failed(endpoint)
                answered(Reply(endpoint, logins, said))

            line.ask(method, encode(request), try_s, metadata, hear)
        except CallFailedError as failure:
            answered(Reply(endpoint, logins, failure))

    def warm_up(self) -> None:
        """Begin to connect, once; whoever calls next finds the way open, or hears then what is wrong."""
        if not self._is_warm:
            self._is_warm = True
            self.ask(STATUS, StatusRequest(), _LONGEST_TRY_S, lambda _: None)

    def failed(self, endpoint: str) -> bool:
        """An endpoint did not answer: the others are asked first from now on, and watches there look to it.

        Whether the certificates were replaced meanwhile, so that it may answer now.
        """
        self.rotation.failed(endpoint)
        self._proven.discard(endpoint)
        for suspect in self.suspicions:
            suspect(endpoint)
        return self.lines.renew()

    def _no_answer(self, method: str, timeout_s: float, tries: Tries) -> EtcdError:
        if tries.ambiguous:
            return EtcdAmbiguousError(
                f"{_name(method)} was sent and its answer was lost: it may or may not have happened; read back before "
                f"doing it again. {tries}"
            )
        if self.is_closing:
            return EtcdClosedError(f"the client was closed during {_name(method)}")
        if tries.all_hopeless:
            return EtcdHopelessError(f"etcd gave no answer to {_name(method)}. {tries}")
        return EtcdUnavailableError(f"etcd gave no answer to {_name(method)} within {timeout_s:g} s. {tries}")

    # The token --------------------------------------------------------------------------------------------------------

    def metadata(self, timeout_s: float, *, anonymous: bool = False) -> Metadata:
        """What is sent along with a call or a stream; the first one of a user fetches its token."""
        return _LEADER if self.user is None or anonymous else _LEADER + self._present_token(timeout_s)

    def _present_token(self, timeout_s: float) -> Metadata:
        if self._login == 0:
            self.login(0, timeout_s)
        return self._token

    @property
    def logins(self) -> int:
        """How often a token was fetched: what `login` wants to be told."""
        return self._login

    def login(self, seen: int, timeout_s: float) -> None:
        """Fetch a token, unless somebody has done so since `seen` logins.

        One asks for all: who waits for another meanwhile has the token from it, or hears that etcd refuses; if it gets no
        answer, the next one asks for as long as it has time itself.
        """
        deadline, refusals = time.monotonic() + timeout_s, self._refusals
        if not self._login_lock.acquire(timeout=max(timeout_s, 0)):
            raise EtcdUnavailableError(
                f"etcd gave no answer to Authenticate within {max(timeout_s, 0):g} s, which another call of this process "
                f"was waiting for"
            )
        try:
            if self._login != seen:
                return
            if self._refusals != refusals:
                raise EtcdAuthError(self._refusal)
            self._fetch_token(deadline - time.monotonic())
            self._login += 1
        except EtcdAuthError as refusal:
            self._refusals, self._refusal = self._refusals + 1, str(refusal)
            raise
        finally:
            self._login_lock.release()

    def _fetch_token(self, timeout_s: float) -> None:
        assert self.user is not None
        request = AuthenticateRequest(self.user.name, self.user.password)
        try:
            answer = self.call(AUTHENTICATE, request, AuthenticateResponse, timeout_s, anonymous=True)
        except EtcdRefusedError as refusal:
            if "authentication is not enabled" not in str(refusal):
                raise
            self._token = ()  # everybody may do everything there
        else:
            self._token = (("token", answer.token),)

    # Parts and users --------------------------------------------------------------------------------------------------

    def part(self, kind: type[P]) -> P:
        """The one keeper, or watcher, of this hub."""
        check_process(self.pid)
        with self._parts_lock:
            if self.closing.is_set():
                raise EtcdClosedError("the client is closed")
            if kind not in self._parts:
                self._parts[kind] = kind(self)
            part: P = self._parts[kind]
            return part

    def start(self, run: Callable[[], None], name: str) -> None:
        """A thread that belongs to this hub; RuntimeError where there is none to be had."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        with self._threads_lock:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]

    def close(self) -> None:
        """End everything; keys and leases stay as they are."""
        if self.pid != os.getpid():
            return
        self.is_closing = True
        self.closing.set()
        with self._parts_lock:
            parts = list(self._parts.values())
        for part in parts:
            part.close()
        self.lines.close()
        self._await_threads()

    def _await_threads(self) -> None:
        """What a thread still holds of grpc's is gone when it ends, and need not be collected at the end of the process."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))


@lru_cache(maxsize=64)
def _try_s(endpoints: int, timeout_s: float, rounds: int) -> float:
    """How long one endpoint may take before the next one is asked; longer when all have failed, for the answer may be large."""
    longest_s = _LONGEST_TRY_S if endpoints > 1 else timeout_s
    return max(_SHORTEST_TRY_S, min(longest_s, timeout_s / (endpoints + 1))) * (1 << rounds)


def _name(method: str) -> str:
    return method.rpartition("/")[2]


# One hub a process for each cluster -----------------------------------------------------------------------------------

_Key = tuple[tuple[str, ...], Tls | None, User | None, bool]
_lock = threading.Lock()
_hubs: dict[_Key, tuple[Hub, int]] = {}


def open_hub(endpoints: tuple[str, ...], tls: Tls | None, user: User | None, *, spread: bool) -> Hub:
    """The hub of a cluster; whoever gets it gives it back with `release_hub`."""
    key = (endpoints, tls, user, spread)
    with _lock:
        hub, users = _hubs.get(key) or (Hub(endpoints, tls, user, spread=spread), 0)
        check_process(hub.pid)
        _hubs[key] = (hub, users + 1)
        return hub


def release_hub(hub: Hub) -> None:
    """The last one turns out the light."""
    with _lock:
        for key, (known, users) in list(_hubs.items()):
            if known is hub:
                if users > 1:
                    _hubs[key] = (hub, users - 1)
                    return
                del _hubs[key]
    hub.close()


def _renew_lock() -> None:
    """A lock that was held in the moment of a fork would never be let go in the child."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
