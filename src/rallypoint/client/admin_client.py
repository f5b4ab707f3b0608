"""Asks a server about its runs, or administers them, on a blocking socket; says within seconds if it is no server."""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rallypoint import protocol
from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rallypoint.net import written
from rallypoint.tls import NO_TLS, TlsFiles
from rallypoint.tokens import AccessRole, Side, Token, nonce, token_of

ANSWER_TIMEOUT_S = 3.0
FRAME_LIMIT = 1024 * 1024
"""A page of nodes with long names is larger than anything that a node is sent."""
UNANSWERED = "unanswered"
"""Why something was not done, beside the protocol's reasons: no server answered."""
PROBE_AFTER_S = 0.3
"""How long an endpoint may be silent before it is asked whether it is an HTTP server, which waits for a request."""
_CHUNK = 64 * 1024

A = TypeVar("A", protocol.Runs, protocol.Status, protocol.Done)


class NotDoneError(RendezvousError):
    """It was not done, and the sentence says why; `reason` is a name for it, if it has one."""

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.reason = reason


class AdminClient:
    """A connection that belongs to no node.  Each answer may take `timeout_s`, connecting as long or `connect_s`.

    `secret` is that of the claim of an elected server, from its register, and its token (rule 17j); a server at a fixed address
    may want a `token` and `tls`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = ANSWER_TIMEOUT_S,
        secret: str = "",
        *,
        connect_s: float | None = None,
        token: Token | None = None,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        self.where = written(host, port)
        self._timeout_s = timeout_s
        self._secret, self._token, self._tls = secret, token or token_of(secret), tls
        role = AccessRole.ADMIN if token is None or not token.run_id else token.role
        run_id = token.run_id if token is not None else ""
        # A node's token lets its holder look, as a viewer's does.
        role = AccessRole.VIEWER if role is AccessRole.NODE else role
        self._hello = protocol.Hello(protocol.VERSION, run_id, role=role, nonce=nonce())
        self._is_welcome = False
        self._is_probed = False
        self._reader = protocol.Reader(FRAME_LIMIT)
        self._heard: deque[protocol.FromServer] = deque()
        self._asked = 0
        self._socket = self._connect(host, port, timeout_s if connect_s is None else connect_s)
        try:
            self._say(protocol.MAGIC + protocol.frame(self._hello))
            # Nothing is asked before the welcome: what arrives after a goodbye would make the kernel discard it.
            greeting = self._hear(protocol.Welcome, protocol.Challenge)
            if isinstance(greeting, protocol.Challenge):
                self._prove(greeting)
            elif token is not None:
                raise RendezvousConnectionError(
                    f"the server at {self.where} wants no token, and this command has one: start the server with it, or "
                    f"leave it out here"
                )
            self._is_welcome = True
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def runs(self) -> protocol.Runs:
        """Which runs there are."""
        return self._ask(protocol.Runs, protocol.AskRuns)

    def status(self, run_id: str) -> protocol.Status:
        """Where a run stands."""
        return self._ask(protocol.Status, protocol.AskStatus, run_id)

    def statuses(self) -> list[protocol.Status]:
        """Where every run stands, of the first by name; one that ends between two questions is left out."""
        found = []
        for line in self.runs().runs:
            with suppress(NotDoneError):
                found.append(self.status(line.run_id))
        return found

    def close_run(self, run_id: str, why: str = "") -> None:
        """Close a run for everybody."""
        self._ask(protocol.Done, protocol.AskClose, run_id, why)

    def evict(self, run_id: str, node: str, for_s: float | None = None, why: str = "") -> str:
        """Give a node up, by its name or id, and keep it out for so long (None: the server decides); what was done."""
        return self._ask(protocol.Done, protocol.AskEvict, run_id, node, for_s, why).why

    def lift(self, run_id: str, node: str) -> str:
        """Let a node in again that was evicted, by its name or id; what was done."""
        return self._ask(protocol.Done, protocol.AskLift, run_id, node).why

    def _connect(self, host: str, port: int, connect_s: float) -> socket.socket:
        try:
            connection = socket.create_connection((host, port), connect_s)
            return (
                self._tls.make(is_server=False).wrap_socket(connection, server_hostname=host)
                if self._tls
                else connection
            )
        except TimeoutError:
            why = f"nothing answered within {connect_s:.2g} s"
        except ssl.SSLError as exc:
            raise RendezvousConnectionError(
                f"{self.where} and this command do not believe each other's certificates, or it has no TLS: {exc}"
            ) from exc
        except (OSError, UnicodeError) as exc:
            why = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        advice = "; is `rallypoint serve` running there, and does its port let you in?"
        raise RendezvousConnectionError(f"{self.where} cannot be reached: {why}{'' if self._secret else advice}")

    def _prove(self, challenge: protocol.Challenge) -> None:
        if self._token is None:
            raise RendezvousConnectionError(
                f"the server at {self.where} wants a token: name its file by --token-file, or put it into "
                f"RALLYPOINT_TOKEN; if it is part of a job that elects its server, name the register by which its nodes "
                f"find it, as --endpoint etcd://HOST:PORT, c10d://HOST:PORT or file:///PATH"
            )
        key = self._token.for_run(self._hello.run_id, self._hello.role)
        named = protocol.named(self._hello, challenge.nonce)
        if not key.is_proof(challenge.proof, Side.SERVER, *named):
            has = (
                "does not know the secret of the claim: another one was meant" if self._secret else "has another token"
            )
            raise RendezvousConnectionError(f"the server at {self.where} {has}")
        self._say(protocol.frame(protocol.Proof(key.prove(Side.CLIENT, *named))))
        self._hear(protocol.Welcome)

    def _ask(self, kind: type[A], ask: Callable[..., protocol.Ask], *details: object) -> A:
        self._asked += 1
        self._say(protocol.frame(ask(self._asked, *details)))
        answer = self._hear(protocol.Runs, protocol.Status, protocol.Done)
        if isinstance(answer, protocol.Done) and not answer.done:
            raise NotDoneError(f"{answer.why} at {self.where}", answer.reason)
        if not isinstance(answer, kind):
            raise RendezvousStateError(f"the server at {self.where} answered with {type(answer).__name__}, not in kind")
        return answer

    def _say(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as exc:
            raise self._failure(exc) from exc

    def _hear(self, *kinds: type[protocol.FromServer]) -> protocol.FromServer:
        """The next message of these kinds; a goodbye and whatever else goes wrong is an error."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            while not self._heard:
                self._receive(deadline)
            message = self._heard.popleft()
            if isinstance(message, protocol.Goodbye):
                raise RendezvousConnectionError(f"the server at {self.where} hung up: {message.why}")
            if isinstance(message, kinds):
                return message

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        wait = left if self._is_welcome or self._is_probed else min(left, PROBE_AFTER_S)
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(wait)
            data = self._socket.recv(_CHUNK)
        except OSError as exc:
            if isinstance(exc, TimeoutError) and wait < left:
                return self._refuse_http()
            raise self._failure(exc) from exc
        if not data:
            raise self._failure()
        try:
            self._heard.extend(protocol.read(body, protocol.FROM_SERVER) for body in self._reader.feed(data))
        except RendezvousStateError as exc:
            raise RendezvousConnectionError(f"what listens at {self.where} is something else: {exc}") from exc

    def _refuse_http(self) -> None:
        """Name an HTTP server at once: it waits for a request, and would be silent for as long as we are."""
        import asyncio

        from rallypoint.client.locator import Target

        self._is_probed = True
        host, port = self._socket.getpeername()[:2]
        if found := asyncio.run(Target((host,), port).what_answers()):
            raise RendezvousConnectionError(f"no rallypoint server is at {self.where}{found}; use another port")

    def _failure(self, problem: OSError | None = None) -> RendezvousConnectionError:
        """What to say of a connection that ended, or that is silent."""
        server, for_s = f"the server at {self.where}", f"{self._timeout_s:.2g} s"
        if self._is_welcome and isinstance(problem, TimeoutError):
            hangs = "it may hang, or wait for what it has decided to be recorded"
            return RendezvousConnectionError(f"{server} did not answer within {for_s}: {hangs}")
        if self._is_welcome:
            return RendezvousConnectionError(f"{server} ended before it answered")
        did = "closed the connection without a word"
        other = "such as torch's TCPStore, or a server that is just ending"
        if isinstance(problem, TimeoutError):
            did = f"took the connection and then said nothing for {for_s}"
            other = "such as a web server or torch's TCPStore, or a server that hangs"
        return RendezvousConnectionError(f"{self.where} {did}: it may be something else, {other}")
