"""A store server with a secret, and how both sides of a connection prove that they know it; sans-IO.

torch's wire format has no place for a proof, so this comes before the format begins:

    client   OPENING, its nonce
    server   its nonce, its proof
    client   its proof, and from there on the wire format

The server proves first, so a client tells nothing to something else that took the port; and the client's first request
goes out behind its own proof, so that a connection takes one round trip, as it does without a secret.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.stores.tcp import wire
from rallypoint.stores.tcp.replies import Take
from rallypoint.stores.tcp.server_core import StoreServerCore, StoreSession
from rallypoint.stores.tcp.wire import ProtocolError, StoreLimits
from rallypoint.tokens import Side, Token, nonce

OPENING = b"RLYS"
"""No client of torch's begins like this: its first byte is a zero."""
_NONCE, _PROOF = 32, 64
_ANSWER = _NONCE + _PROOF


class Caller:
    """The client's side."""

    def __init__(self, secret: str) -> None:
        self._token, self._nonce = Token(secret.encode()), nonce()
        self.opening = OPENING + self._nonce.encode()

    def prove(self, take: Take) -> bytes:
        """Read the server's answer; what to send now.  ProtocolError where the server does not know the secret."""
        answer = take(_ANSWER).decode("latin-1")
        theirs, proof = answer[:_NONCE], answer[_NONCE:]
        if not self._token.is_proof(proof, Side.SERVER, self._nonce, theirs):
            raise ProtocolError("it did not prove that it knows this store's secret: another server is there by now")
        mine = self._token.prove(Side.CLIENT, self._nonce, theirs)
        return mine.encode() + wire.request(wire.Query.VALIDATE, number=wire.MAGIC)


class GuardedSession(StoreSession):
    """One connection: who it is has to be shown first."""

    __slots__ = ("begun", "core", "nonces")

    def __init__(self, name: str, limits: StoreLimits) -> None:
        super().__init__(name, limits)
        self.core: StoreServerCore | None = None
        """What answers it; None until it has shown who it is."""
        self.begun = bytearray()
        self.nonces: tuple[str, str] | None = None


class GuardedStoreCore(StoreServerCore):
    """The keys of those who know the secret.

    Others are turned away; or, where torch's own clients are to be served beside, get keys of their own from `others`.
    """

    def __init__(self, secret: str, limits: StoreLimits | None = None, others: StoreServerCore | None = None) -> None:
        super().__init__(limits)
        self._token, self._others = Token(secret.encode()), others

    def connect(self, name: str) -> GuardedSession:
        return GuardedSession(name, self.limits)

    def receive(
        self, session: StoreSession, data: bytes, unread_bytes: int = 0
    ) -> tuple[Sequence[bytes], Sequence[StoreSession]]:
        assert isinstance(session, GuardedSession), "this core has made it"
        if session.core is None and session.refusal is None:
            answer, data = self._greet(session, data)
            if not data:
                return answer, ()
        if session.core is self:
            return super().receive(session, data, unread_bytes)
        return session.core.receive(session, data, unread_bytes) if session.core is not None else ((), ())

    def disconnect(self, session: StoreSession) -> Sequence[StoreSession]:
        assert isinstance(session, GuardedSession), "this core has made it"
        if session.core is None or session.core is self:
            return super().disconnect(session)
        return session.core.disconnect(session)

    def _greet(self, session: GuardedSession, data: bytes) -> tuple[Sequence[bytes], bytes]:
        """What a connection is answered that has not shown who it is, and what it said beyond that."""
        begun = session.begun
        begun += data
        if session.nonces is None:
            if not OPENING.startswith(begun[: len(OPENING)]):
                session.core = self._others
                if self._others is None:
                    session.refusal = "it does not know this store's secret"
                    return (), b""
                return (), bytes(begun)
            if len(begun) < len(OPENING) + _NONCE:
                return (), b""
            theirs, mine = begun[len(OPENING) : len(OPENING) + _NONCE].decode("latin-1"), nonce()
            del begun[: len(OPENING) + _NONCE]
            session.nonces = theirs, mine
            return (mine.encode() + self._token.prove(Side.SERVER, theirs, mine).encode(),), b""
        if len(begun) < _PROOF:
            return (), b""
        if not self._token.is_proof(begun[:_PROOF].decode("latin-1"), Side.CLIENT, *session.nonces):
            session.refusal = "it did not prove that it knows this store's secret"
            return (), b""
        session.core = self
        return (), bytes(begun[_PROOF:])
