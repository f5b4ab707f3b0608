"""The keys of an etcd cluster by its API v2, asked so that an answer which is lost is never taken for a refusal.

Given is a client of python-etcd, for its address, certificates and password; the asking is done here, because that
client repeats a write whose answer was lost, and then reports the write that happened as refused.  A member that
does not answer is left for another one.  A conditional write carries a value that nobody else writes, so that after a
lost answer the keys themselves tell what became of it.
"""

from __future__ import annotations

import base64
import json
import random
import re
import secrets
import socket
import ssl
import time
import weakref
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from rallypoint import forks
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.http_connection import HttpConnection, HttpResponse, connect, request, tls_context
from rallypoint.waiting import Deadline

NO_KEY, COMPARE_FAILED, NOT_A_FILE, NOT_A_DIRECTORY, ALREADY_THERE = 100, 101, 102, 104, 105
FORBIDDEN, CLEARED = 110, 401

_ONE_ATTEMPT_S, _LONE_ATTEMPT_S = 5.0, 20.0
_CONNECT_S = 3.0
_MOST_IDLE = 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_QUICK_WRITE_S, _LONGEST_STEP_BACK_S = 0.001, 0.25
_HISTORY_S = 2.0
PAST = frozenset({"delete", "expire", "compareAndDelete"})

# Letters that base64 does not have, and that every decoder of it passes over, torch's among them.
_MARKS = "-_.~"
_MARK_LETTERS = 24


class EtcdAwayError(StoreError):
    """No member of the cluster answered in time.  `unclear`: a write may have happened all the same."""

    def __init__(self, message: str, *, unclear: bool = False) -> None:
        super().__init__(message)
        self.unclear = unclear


class NoApiV2Error(StoreError):
    """The cluster does not speak the API v2."""


class EtcdNode(NamedTuple):
    """A key and what is there; of a directory, also what it holds."""

    key: str
    value: str
    modified: int
    created: int
    is_directory: bool
    nodes: tuple[EtcdNode, ...]


class Answer(NamedTuple):
    """What etcd said: an error code or 0, the node, and the index of the cluster at that moment."""

    code: int
    cause: str
    action: str
    node: EtcdNode | None
    at: int


class Swapped(NamedTuple):
    """What became of a conditional write; where it was refused, the value that stood in its way, if etcd said so."""

    done: bool
    modified: int = 0
    there: str | None = None


class _UnsentError(Exception):
    """The request did not leave this machine."""


class _LostAnswerError(Exception):
    """The request left, and nobody knows what became of it."""


def mark() -> str:
    """Letters that make a base64 text unlike any other, without changing what it says."""
    # The system is asked once: each time that it is, other threads of the process come first.
    number = secrets.randbits(2 * _MARK_LETTERS)
    return "".join(_MARKS[number >> 2 * place & 3] for place in range(_MARK_LETTERS))


def unmarked(text: str) -> str:
    """The base64 text without its mark."""
    return text.rstrip(_MARKS)


class Keys:
    """The keys of one cluster.  Methods may be called from any thread; each tries for as long as its deadline lasts."""

    def __init__(self, client: Any) -> None:
        # Nothing here holds the client: it is what the table of all of them is keyed by.
        self._start, self._machines = str(client.key_endpoint), f"{client.version_prefix}/machines"
        self._tls: Mapping[str, Any] = client.http.connection_pool_kw
        self.request_timeout_s = float(client.read_timeout) or 60.0
        self.headers = _authorization(client.username, client.password)
        self._context: ssl.SSLContext | None = None
        self._idle: dict[str, list[HttpConnection]] = {}
        weakref.finalize(self, _hang_up, self._idle)
        self._members = [str(client.base_uri)]
        self._lone = False
        self._learnt = False
        self._seen = 0
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

    def connect(self, member: str, timeout_s: float) -> socket.socket:
        """A new connection to a member."""
        if self._context is None and member.startswith("https:"):
            self._context = tls_context(self._tls)
        return connect(member, self._context, timeout_s)

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, path: str, deadline: Deadline, *, recursive: bool = False) -> Answer:
        """What is there now, confirmed by a majority; the node is None where nothing is."""
        self._learn(deadline)
        fields = {"recursive": "true"} if recursive else {}
        if not self._lone:
            fields["quorum"] = "true"
        answer = self.ask("GET", path, fields, deadline)
        if answer.code not in (0, NO_KEY, NOT_A_DIRECTORY):
            raise refusal("read", path, answer)
        return answer

    # Writing --------------------------------------------------------------------------------------------------------

    def write(self, path: str, value: str, deadline: Deadline, *, ttl_s: int | None = None) -> int:
        """Set a key, whatever is there; its new index."""
        since, fields = self._seen, _fields(value, ttl_s)
        while True:
            try:
                answer = self._once("PUT", path, fields, deadline)
            except _UnsentError as exc:
                self._turn(deadline, exc, f"write {path}", unclear=False)
                continue
            except _LostAnswerError as exc:
                self._turn(deadline, exc, f"write {path}", unclear=True)
                found = self._find(path, value, since, deadline)
                if found:
                    return found
                continue
            if answer.code or answer.node is None:
                raise refusal("write", path, answer)
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
        since = index or self._seen
        fields = _fields(value, ttl_s)
        if before is not None:
            fields["prevValue"] = before
        elif index is not None:
            fields["prevIndex"] = str(index)
        else:
            fields["prevExist"] = "false"
        answer, unclear = self._until_answered("PUT", path, fields, deadline)
        if answer.code == 0 and answer.node is not None:
            return Swapped(True, answer.node.modified)
        if unclear:
            found = self._find(path, value, since, deadline)
            if found:
                return Swapped(True, found)
        if answer.code in (COMPARE_FAILED, ALREADY_THERE, NO_KEY):
            there = _in_the_way(answer.cause, before) if answer.code == COMPARE_FAILED else None
            return Swapped(False, there=there)
        raise refusal("write", path, answer)

    def make_directory(self, path: str, deadline: Deadline, *, ttl_s: int | None = None) -> bool:
        """Make a directory where nothing is; whether it was made now."""
        fields = {"dir": "true", "prevExist": "false"}
        if ttl_s is not None:
            fields["ttl"] = str(ttl_s)
        answer = self.ask("PUT", path, fields, deadline)
        if answer.code not in (0, ALREADY_THERE, NOT_A_FILE):
            raise refusal("make the directory", path, answer)
        return answer.code == 0

    def prolong(self, path: str, ttl_s: int, deadline: Deadline, *, directory: bool = False) -> bool:
        """Let a key live for so long from now, without a word to those who watch it; False where it is gone."""
        fields = {"ttl": str(ttl_s), "prevExist": "true", "refresh": "true"}
        if directory:
            fields["dir"] = "true"
        answer = self.ask("PUT", path, fields, deadline)
        if answer.code not in (0, NO_KEY):
            raise refusal("prolong", path, answer)
        return answer.code == 0

    def delete(self, path: str, deadline: Deadline, *, index: int | None = None, before: str | None = None) -> bool:
        """Delete a key, if it has this index or this value; whether it is gone by that."""
        fields = {} if index is None else {"prevIndex": str(index)}
        if before is not None:
            fields["prevValue"] = before
        answer, unclear = self._until_answered("DELETE", path, fields, deadline)
        if answer.code == NO_KEY:
            return unclear
        if answer.code not in (0, COMPARE_FAILED):
            raise refusal("delete", path, answer)
        return answer.code == 0

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline) -> Answer:
        """Ask until there is an answer; only for what may be asked twice."""
        return self._until_answered(method, path, fields, deadline)[0]

    def _until_answered(
        self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline
    ) -> tuple[Answer, bool]:
        """The answer, and whether it is unclear what became of an attempt before it."""
        unclear = False
        while True:
            failure: Exception
            try:
                return self._once(method, path, fields, deadline), unclear
            except _UnsentError as exc:
                failure = exc
            except _LostAnswerError as exc:
                failure, unclear = exc, method != "GET"
            self._turn(deadline, failure, f"{method} {path}", unclear)

    def where(self, path: str) -> str:
        """A key's path in the API."""
        return f"{self._start}{re.sub('/+', '/', path)}"

    def turn_away(self, member: str) -> None:
        """This member does not answer: ask another one first from now on."""
        if len(self._members) > 1 and self._members[0] == member:
            self._members = [*self._members[1:], member]

    def also(self, members: Iterable[str]) -> None:
        """Further addresses of the same cluster."""
        self._members.extend(uri for uri in members if uri not in self._members)

    def noted(self, index: int) -> None:
        """The cluster has come to this index."""
        self._seen = max(self._seen, index)

    def _learn(self, deadline: Deadline) -> None:
        """Find out, once, who else is in the cluster; a cluster of one needs no majority."""
        if self._learnt:
            return
        member = self.member
        sent = request("GET", member, self._machines, {}, self.headers)
        try:
            response = self._exchange(member, sent, min(deadline.left_s() + 0.01, _ONE_ATTEMPT_S))
        except (_UnsentError, _LostAnswerError):
            return
        if response.status == 200:
            others = [uri.strip() for uri in response.body.decode(errors="replace").split(",") if uri.strip()]
            self._lone = len(others) == 1
            known = self._members
            self._members = [*known, *(uri for uri in others if uri not in known)] if len(others) > 1 else known
        self._learnt = response.status < 500

    def _once(self, method: str, path: str, fields: Mapping[str, str], deadline: Deadline) -> Answer:
        member = self.member
        attempt_s = min(max(deadline.left_s(), 0.01), _ONE_ATTEMPT_S if len(self._members) > 1 else _LONE_ATTEMPT_S)
        try:
            response = self._exchange(
                member, request(method, member, self.where(path), fields, self.headers), attempt_s
            )
            answer = read_answer(response.status, response.headers, response.body, member)
            if answer is None:
                raise _LostAnswerError(f"{member} answered {response.status}: {response.body[:200]!r}")
        except (_UnsentError, _LostAnswerError):
            self.turn_away(member)
            raise
        self.noted(answer.at)
        return answer

    def _exchange(self, member: str, sent: bytes, timeout_s: float) -> HttpResponse:
        """Send a request over a connection that is free, and hear the answer."""
        idle = self._idle.setdefault(member, [])
        try:
            connection = idle.pop() if idle else HttpConnection(self.connect(member, min(timeout_s, _CONNECT_S)))
        except IndexError:
            connection = HttpConnection(self.connect(member, min(timeout_s, _CONNECT_S)))  # another thread was faster
        except ssl.SSLError as exc:
            raise _UnsentError(f"{member} and this client do not trust each other ({exc})") from exc
        except OSError as exc:
            raise _UnsentError(_words(exc, member)) from exc
        try:
            response = connection.ask(sent, timeout_s)
        except BaseException as exc:
            for spoiled in [connection, *idle]:
                spoiled.close()
            idle.clear()
            if isinstance(exc, ssl.SSLError):
                raise _UnsentError(f"{member} and this client do not trust each other ({exc})") from exc
            if isinstance(exc, OSError):
                raise _LostAnswerError(_words(exc, member)) from exc
            raise
        if response.headers.get("Connection", "").lower() == "close" or len(idle) >= _MOST_IDLE:
            connection.close()
        else:
            idle.append(connection)
        return response

    def _turn(self, deadline: Deadline, exc: Exception, asked: str, unclear: bool) -> None:
        """After a failure: wait a little, or give up."""
        left_s = deadline.left_s()
        if left_s <= 0:
            raise EtcdAwayError(
                f"etcd did not answer within {deadline.timeout_s:g} s ({asked}): {exc}", unclear=unclear
            ) from exc
        spent = max(deadline.timeout_s - left_s, _FIRST_PAUSE_S)
        time.sleep(min(left_s, random.uniform(0.5, 1.0) * min(spent, _LONGEST_PAUSE_S)))

    def _find(self, path: str, value: str, since: int, deadline: Deadline) -> int:
        """Whether a value was written after an index, though it may be gone again: the index of that write, or 0."""
        answer = self.read(path, deadline)
        if answer.node is not None and answer.node.value == value:
            return answer.node.modified
        last = answer.node.modified if answer.node is not None else answer.at
        index = since + 1
        while index <= last:
            try:
                event = self._once(
                    "GET", path, {"wait": "true", "waitIndex": str(index)}, Deadline.of(_at_most(deadline, _HISTORY_S))
                )
            except _UnsentError as exc:
                self._turn(deadline, exc, f"the history of {path}", unclear=True)
                continue
            except _LostAnswerError:
                return 0  # nothing more has happened to it
            if event.code == CLEARED:
                raise EtcdAwayError(
                    f"whether {path} was written is not known: the answer was lost, and etcd's history of 1,000 events "
                    f"does not reach back that far",
                    unclear=True,
                )
            if event.code or event.node is None:
                return 0
            if event.node.value == value and event.action not in PAST:
                return event.node.modified
            index = event.node.modified + 1
        return 0


_made: weakref.WeakKeyDictionary[Any, Keys] = weakref.WeakKeyDictionary()


def read_answer(status: int, headers: Mapping[str, str], body: bytes, member: str) -> Answer | None:
    """What a member said; None where it could not answer: without a leader, or in the middle of something."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        if status == 404:
            raise NoApiV2Error(
                f"etcd at {member} does not speak the API v2: start it with --enable-v2 (etcd 3.5 and older; 3.6 has no "
                f"such API), or use the backend 'etcd-v3', which speaks the API v3"
            )
        if 300 <= status < 500:
            raise StoreError(f"etcd at {member} refused a request ({status}): {body[:200].decode(errors='replace')}")
        return None
    code = int(said.get("errorCode", 0))
    if status >= 500 or 300 <= code < 400:
        return None
    if status in (401, 403) and not code:
        code = FORBIDDEN
    index = int(headers.get("X-Etcd-Index") or said.get("index") or 0)
    node = said.get("node")
    return Answer(
        code if status >= 400 or code else 0,
        str(said.get("cause") or said.get("message") or ""),
        str(said.get("action", "")),
        _node(node) if isinstance(node, dict) else None,
        index,
    )


def refusal(asked: str, path: str, answer: Answer) -> StoreError:
    """A refusal as an error."""
    if answer.code == FORBIDDEN:
        return StoreError(f"etcd does not let this client {asked} {path}: {answer.cause}; check its user and password")
    return StoreError(f"etcd refused to {asked} {path}: {answer.cause or 'no reason given'} (error {answer.code})")


def step_back(conflicts: int, write_s: float, deadline: Deadline) -> None:
    """Wait after so many conflicts in a row, where a write takes `write_s`: others are at it as well.

    With each conflict the guess of how many they are doubles; they share the time of as many writes.
    """
    pause_s = min(2.0 ** min(conflicts, 5) * max(write_s, _QUICK_WRITE_S), _LONGEST_STEP_BACK_S, deadline.left_s())
    time.sleep(random.uniform(0.0, pause_s))


def token() -> str:
    """A name that nobody else has."""
    return secrets.token_hex(12)


def _hang_up(lines: dict[str, list[HttpConnection]]) -> None:
    for idle in lines.values():
        while idle:
            idle.pop().close()


def _authorization(name: str | None, password: str | None) -> dict[str, str]:
    if not name:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def _node(said: Mapping[str, Any]) -> EtcdNode:
    return EtcdNode(
        str(said.get("key", "")),
        str(said.get("value", "")),
        int(said.get("modifiedIndex", 0)),
        int(said.get("createdIndex", 0)),
        bool(said.get("dir", False)),
        tuple(_node(node) for node in said.get("nodes", ())),
    )


def _fields(value: str, ttl_s: int | None) -> dict[str, str]:
    return {"value": value} if ttl_s is None else {"value": value, "ttl": str(ttl_s)}


def _in_the_way(cause: str, before: str | None) -> str | None:
    """etcd says "[expected != found]"."""
    start = f"[{before} != "
    if before is None or not cause.startswith(start) or not cause.endswith("]"):
        return None
    return cause[len(start) : -1]


def _at_most(deadline: Deadline, limit_s: float) -> timedelta:
    return timedelta(seconds=min(deadline.left_s(), limit_s))


def _words(exc: Exception, member: str) -> str:
    text = str(exc)
    return text if member.partition("://")[2].partition(":")[0] in text else f"{member}: {text or type(exc).__name__}"
