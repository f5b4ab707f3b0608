"""The keys of an etcd cluster by its API v2, asked so that an answer which is lost is never taken for a refusal.

A client of python-etcd gives address, certificates and password; the asking is done here, because that client repeats a
write whose answer was lost, and then reports the write that happened as refused.  A member that does not answer is left
for another one.  A conditional write carries a value that nobody else writes, so that after a lost answer the keys
themselves tell what became of it.
"""

from __future__ import annotations

import base64
import random
import re
import ssl
import time
import weakref
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from rallypoint import forks
from rallypoint.net import is_address
from rallypoint.stores.errors import StoreError
from rallypoint.waiting import Deadline, interruptible

NO_KEY, COMPARE_FAILED, NOT_A_FILE, NOT_A_DIRECTORY, ALREADY_THERE = 100, 101, 102, 104, 105
FORBIDDEN, CLEARED = 110, 401
PAST = frozenset({"delete", "expire", "compareAndDelete"})

_ONE_ATTEMPT_S, _LONE_ATTEMPT_S = 5.0, 20.0
_CONNECT_S = 3.0
_MOST_IDLE = 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_QUICK_WRITE_S, _LONGEST_STEP_BACK_S = 0.001, 0.25
_HISTORY_S = 2.0


class EtcdAwayError(StoreError):
    """No member of the cluster answered in time."""


class NoApiV2Error(StoreError):
    """The cluster does not speak the API v2."""


class EtcdNode(msgspec.Struct, frozen=True):
    """A key and what is there; of a directory, also what it holds."""

    key: str = ""
    value: str = ""
    modified: int = msgspec.field(default=0, name="modifiedIndex")
    created: int = msgspec.field(default=0, name="createdIndex")
    is_directory: bool = msgspec.field(default=False, name="dir")
    nodes: tuple[EtcdNode, ...] = ()


class Answer(msgspec.Struct):
    """What etcd said: an error code or 0, the node, and the index of the cluster at that moment."""

    code: int = msgspec.field(default=0, name="errorCode")
    message: str = ""
    cause: str = ""
    action: str = ""
    node: EtcdNode | None = None
    at: int = msgspec.field(default=0, name="index")

    @property
    def nodes(self) -> tuple[EtcdNode, ...]:
        """What a directory holds; nothing where there is none."""
        return self.node.nodes if self.node is not None else ()


class Swapped(NamedTuple):
    """What became of a conditional write, and the index of it."""

    done: bool
    modified: int = 0


class _NoAnswerError(Exception):
    """A member gave no answer; `sent`: the request left this machine, and nobody knows what became of it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Keys:
    """The keys of one cluster.  Methods may be called from any thread; each tries for as long as its deadline lasts."""

    def __init__(self, client: Any) -> None:
        # Nothing here holds the client: it is what the table of all of them is keyed by.
        self._start, self._machines = str(client.key_endpoint), f"{client.version_prefix}/machines"
        self._tls: Mapping[str, Any] = client.http.connection_pool_kw
        self._context: ssl.SSLContext | None = None
        self.request_timeout_s = float(client.read_timeout) or 60.0
        self.headers: dict[str, str] = {}
        if client.username:
            user = base64.b64encode(f"{client.username}:{client.password}".encode()).decode()
            self.headers = {"Authorization": f"Basic {user}"}
        self._idle: dict[str, list[HTTPConnection]] = {}
        weakref.finalize(self, _hang_up, self._idle)
        self._members = [str(client.base_uri)]
        self._is_lone = self._has_learnt = False
        self._seen = 0  # the index that the cluster has come to
        forks.release_in_children(self)

    def forked(self) -> None:
        """In a forked child: these connections are the parent's."""
        _hang_up(self._idle)

    @staticmethod
    def of(client: Any) -> Keys:
        """The one that belongs to a client: all its users share what is known of the members."""
        try:
            return _made[client]
        except KeyError:
            return _made.setdefault(client, Keys(client))

    @property
    def member(self) -> str:
        """The address that is asked first."""
        return self._members[0]

    def connect(self, member: str, timeout_s: float) -> HTTPConnection:
        """A connection to a member; OSError if nothing listens there, or one side does not trust the other."""
        url = urlsplit(member)
        place = url.hostname or "localhost", url.port or 2379
        if url.scheme != "https":
            connection = HTTPConnection(*place, timeout=timeout_s)
        else:
            if self._context is None:
                # What python-etcd was told about certificates, by the names of urllib3.
                self._context = ssl.create_default_context(cafile=self._tls.get("ca_certs"))
                if self._tls.get("cert_file"):
                    self._context.load_cert_chain(self._tls["cert_file"], self._tls.get("key_file"))
            connection = HTTPSConnection(*place, timeout=timeout_s, context=self._context)
        if is_address(place[0]):
            connection.connect()
        else:
            # A name service that hangs does not keep Ctrl-C from ending the wait.
            interruptible(connection.connect)
        return connection

    def send(self, connection: HTTPConnection, method: str, place: str, fields: Mapping[str, str]) -> None:
        """Send a request; nothing is ever sent twice."""
        text, target, headers = urlencode(fields), quote(place), dict(self.headers)
        if method == "PUT":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, target, text.encode("ascii"), headers)
        else:
            connection.request(method, f"{target}?{text}" if text else target, headers=headers)

    def where(self, path: str) -> str:
        """A key's path in the API."""
        return f"{self._start}{re.sub('/+', '/', path)}"

    def turn_away(self, member: str) -> None:
        """This member does not answer: ask another one first from now on."""
        if len(self._members) > 1 and self._members[0] == member:
            self._members = [*self._members[1:], member]

    def also(self, members: Iterable[str]) -> None:
        """Further addresses of the same cluster."""
        self._members = list(dict.fromkeys([*self._members, *members]))

    def read(self, path: str, deadline: Deadline, *, recursive: bool = False) -> Answer:
        """What is there now, confirmed by a majority; the node is None where nothing is."""
        self._learn(deadline)
        fields = {"recursive": "true"} if recursive else {}
        if not self._is_lone:
            fields["quorum"] = "true"
        return self._ask("GET", path, fields, deadline, "read", NO_KEY, NOT_A_DIRECTORY)[0]

    def write(self, path: str, value: str, deadline: Deadline, *, ttl_s: int | None = None) -> int:
        """Set a key, whatever is there; its new index."""
        since, fields = self._seen, _fields(ttl_s, value=value)
        while (answer := self._attempt("PUT", path, fields, deadline)) is None:
            if found := self._find(path, value, since, deadline):
                return found
        if answer.code or answer.node is None:
            raise _refusal("write", path, answer)
        return answer.node.modified

    def swap(
        self,
        path: str,
        value: str,
        deadline: Deadline,
        *,
        before: str | None = None,
        index: int | None = None,
        ttl_s: int | None = None,
    ) -> Swapped:
        """Write if the key has the value `before`, or this index, or, given neither, if nothing is there.

        What is written must be unlike anything that others write: by it the write is recognised after a lost answer.
        """
        since, fields = index or self._seen, _fields(ttl_s, value=value, prevValue=before)
        if before is None:
            fields |= {"prevExist": "false"} if index is None else {"prevIndex": str(index)}
        unclear = False
        while (answer := self._attempt("PUT", path, fields, deadline)) is None:
            unclear = True
        if answer.code == 0 and answer.node is not None:
            return Swapped(True, answer.node.modified)
        if unclear and (found := self._find(path, value, since, deadline)):
            return Swapped(True, found)
        if answer.code not in (COMPARE_FAILED, ALREADY_THERE, NO_KEY):
            raise _refusal("write", path, answer)
        return Swapped(False)

    def make_directory(self, path: str, deadline: Deadline, *, ttl_s: int | None = None) -> bool:
        """Make a directory where nothing is; whether it was made now."""
        fields = _fields(ttl_s, dir="true", prevExist="false")
        answer, _ = self._ask("PUT", path, fields, deadline, "make the directory", ALREADY_THERE, NOT_A_FILE)
        return answer.code == 0

    def prolong(self, path: str, ttl_s: int, deadline: Deadline, *, directory: bool = False) -> bool:
        """Let a key live for so long from now, without an event for those who watch it; False where it is gone."""
        fields = _fields(ttl_s, prevExist="true", refresh="true", dir="true" if directory else None)
        return self._ask("PUT", path, fields, deadline, "prolong", NO_KEY)[0].code == 0

    def delete(self, path: str, deadline: Deadline, *, index: int | None = None, before: str | None = None) -> bool:
        """Delete a key, if it has this index or this value; whether it is gone by that."""
        fields = _fields(None, prevIndex=None if index is None else str(index), prevValue=before)
        answer, unclear = self._ask("DELETE", path, fields, deadline, "delete", COMPARE_FAILED, NO_KEY)
        return unclear if answer.code == NO_KEY else answer.code == 0

    def _ask(
        self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline, asked: str, *expected: int
    ) -> tuple[Answer, bool]:
        """The answer, and whether it is unclear what became of an attempt before it; StoreError for other codes."""
        unclear = False
        while (answer := self._attempt(method, path, fields, deadline)) is None:
            unclear = True
        if answer.code not in (0, *expected):
            raise _refusal(asked, path, answer)
        return answer, unclear

    def _attempt(self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline) -> Answer | None:
        """Ask until the request has left; None where its answer was lost."""
        while True:
            try:
                return self._once(method, path, fields, deadline)
            except _NoAnswerError as exc:
                failure = exc
            self._pause(deadline, failure, f"{method} {path}")
            if failure.sent:
                return None

    def _pause(self, deadline: Deadline, exc: _NoAnswerError, asked: str) -> None:
        """After a failure: wait a little, or give up."""
        left_s = deadline.left_s()
        if left_s <= 0:
            raise EtcdAwayError(f"etcd did not answer within {deadline.timeout_s:g} s ({asked}): {exc}") from exc
        spent_s = max(deadline.timeout_s - left_s, _FIRST_PAUSE_S)
        time.sleep(min(left_s, random.uniform(0.5, 1.0) * min(spent_s, _LONGEST_PAUSE_S)))

    def _find(self, path: str, value: str, since: int, deadline: Deadline) -> int:
        """Whether a value was written after an index, though it may be gone again: the index of that write, or 0."""
        now = self.read(path, deadline)
        if now.node is not None and now.node.value == value:
            return now.node.modified
        last, index = now.at if now.node is None else now.node.modified, since + 1
        while index <= last:
            fields, limit = {"wait": "true", "waitIndex": str(index)}, min(deadline.left_s(), _HISTORY_S)
            try:
                event = self._once("GET", path, fields, Deadline.after(limit))
            except _NoAnswerError as exc:
                if exc.sent:
                    return 0  # nothing more has happened to it
                self._pause(deadline, exc, f"the history of {path}")
                continue
            if event.code == CLEARED:
                raise EtcdAwayError(
                    f"whether {path} was written is not known: the answer was lost, and etcd's history of 1,000 events "
                    f"does not reach back that far"
                )
            if event.code or event.node is None:
                return 0
            if event.node.value == value and event.action not in PAST:
                return event.node.modified
            index = event.node.modified + 1
        return 0

    def _once(self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline) -> Answer:
        member = self.member
        attempt_s = min(max(deadline.left_s(), 0.01), _ONE_ATTEMPT_S if len(self._members) > 1 else _LONE_ATTEMPT_S)
        try:
            response, body = self._exchange(member, method, self.where(path), fields, attempt_s)
            answer = read_answer(response, body, member)
            if answer is None:
                raise _NoAnswerError(f"{member} answered {response.status}: {body[:200]!r}", sent=True)
        except _NoAnswerError:
            self.turn_away(member)
            raise
        self._seen = max(self._seen, answer.at)
        return answer

    def _learn(self, deadline: Deadline) -> None:
        """Find out, once, who else is in the cluster; a cluster of one needs no majority."""
        if self._has_learnt:
            return
        timeout_s = min(deadline.left_s() + 0.01, _ONE_ATTEMPT_S)
        try:
            response, body = self._exchange(self.member, "GET", self._machines, {}, timeout_s)
        except _NoAnswerError:
            return
        if response.status == 200:
            members = [uri.strip() for uri in body.decode(errors="replace").split(",") if uri.strip()]
            self._is_lone = len(members) == 1
            if not self._is_lone:
                self.also(members)
        self._has_learnt = response.status < 500

    def _exchange(
        self, member: str, method: str, place: str, fields: Mapping[str, str], timeout_s: float
    ) -> tuple[HTTPResponse, bytes]:
        """Send a request over a connection that is free, and hear the answer."""
        idle = self._idle.setdefault(member, [])
        try:
            connection = idle.pop()
        except IndexError:
            try:
                connection = self.connect(member, min(timeout_s, _CONNECT_S))
            except OSError as exc:
                raise _NoAnswerError(_words(exc, member), sent=False) from exc
        try:
            connection.sock.settimeout(timeout_s)
            self.send(connection, method, place, fields)
            response = connection.getresponse()
            body = response.read()
        except BaseException as exc:
            connection.close()
            _hang_up({member: idle})
            if isinstance(exc, OSError | HTTPException):
                raise _NoAnswerError(_words(exc, member), sent=not isinstance(exc, ssl.SSLError)) from exc
            raise
        if connection.sock is not None and len(idle) < _MOST_IDLE:  # None: the member wants it closed
            idle.append(connection)
        else:
            connection.close()
        return response, body


_made: weakref.WeakKeyDictionary[Any, Keys] = weakref.WeakKeyDictionary()


def read_answer(response: HTTPResponse, body: bytes, member: str) -> Answer | None:
    """What a member said; None where it could not answer: without a leader, or in the middle of something."""
    status = response.status
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except msgspec.DecodeError as exc:
        if status == 404:
            raise NoApiV2Error(
                f"etcd at {member} does not speak the API v2: start it with --enable-v2 (etcd 3.5 and older; 3.6 has no "
                f"such API), or use the backend 'etcd-v3', which speaks the API v3"
            ) from exc
        if 300 <= status < 500:
            said = body[:200].decode(errors="replace")
            raise StoreError(f"etcd at {member} refused a request ({status}): {said}") from exc
        return None
    if status >= 500 or 300 <= answer.code < 400:
        return None
    if status in (401, 403) and not answer.code:
        answer.code = FORBIDDEN
    answer.cause, answer.at = answer.cause or answer.message, int(response.headers["X-Etcd-Index"] or answer.at)
    return answer


def _refusal(asked: str, path: str, answer: Answer) -> StoreError:
    if answer.code == FORBIDDEN:
        return StoreError(f"etcd does not let this client {asked} {path}: {answer.cause}; check its user and password")
    return StoreError(f"etcd refused to {asked} {path}: {answer.cause or 'no reason given'} (error {answer.code})")


def step_back(conflicts: int, write_s: float, deadline: Deadline) -> None:
    """Wait after so many conflicts in a row, where a write takes `write_s`: others are at it as well.

    With each conflict the guess of how many they are doubles; they share the time of as many writes.
    """
    pause_s = min(2.0 ** min(conflicts, 5) * max(write_s, _QUICK_WRITE_S), _LONGEST_STEP_BACK_S, deadline.left_s())
    time.sleep(random.uniform(0.0, pause_s))


def _hang_up(connections: dict[str, list[HTTPConnection]]) -> None:
    for idle in connections.values():
        while idle:
            idle.pop().close()


def _fields(ttl_s: int | None, **fields: str | None) -> dict[str, str]:
    ttl = {} if ttl_s is None else {"ttl": str(ttl_s)}
    return {name: text for name, text in fields.items() if text is not None} | ttl


def _words(exc: OSError | HTTPException, member: str) -> str:
    if isinstance(exc, HTTPException) and not isinstance(exc, OSError):
        return f"what answers at {member} is no etcd: {exc!r}"
    if isinstance(exc, ssl.SSLError):
        return f"{member} and this client do not trust each other ({exc})"
    text = str(exc)
    return text if member.partition("://")[2].partition(":")[0] in text else f"{member}: {text or type(exc).__name__}"
