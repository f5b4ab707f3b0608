"""The wire protocol, sans-IO: frames of JSON with their length in front.

A connection opens with a `Hello`; the server answers with a `Welcome`, or with a `Goodbye` that says why not.  A server
with a token answers with a `Challenge` first, which proves that it has the token, and welcomes a caller after the right
`Proof` (rule 16); the token of an elected server is the secret of its claim (rule 17j).  Then follow the core's own
messages in either direction (a heartbeat is a repeated announcement) and questions with numbered answers.  A message
that is not understood ends its connection, with a reason, and no other.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from rallypoint.errors import RendezvousStateError
from rallypoint.messages.notices import NodeNotice
from rallypoint.messages.requests import NodeMessage
from rallypoint.messages.types import Count, Name, Round, Seconds, Text, Token, Why
from rallypoint.net import HTTP_PROBE
from rallypoint.report import KeptOutLine, NodeLine, RunLine
from rallypoint.tokens import AccessRole
from rallypoint.verdict import Failure, Verdict

VERSION = 2
FRAME_LIMIT = 64 * 1024
PAGE_SIZE = 256
STANDALONE = "standalone"
"""A capability of servers that are not part of a job: nobody takes their place while they are away."""
UNKNOWN_RUN = "unknown-run"
CLOSED = "closed"
"""Why something was not done, for programs; other reasons have no name."""
_LENGTH = 4
MAGIC = b"RLYP"
"""What every connection starts with, in both directions: it tells another protocol from ours at the first bytes."""

_PROTOCOLS = {
    "a node that asks what listens here": (HTTP_PROBE[:8],),
    "HTTP": (b"HTTP/", b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"),
    "TLS": (b"\x16\x03",),
    "a client of torch's TCPStore": (b"\x00\xce\xf7\x85\x3c",),
    "SSH": (b"SSH-",),
}

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True, tag="hello", omit_defaults=True):
    """The first message.  A node names its run, its identity and the number of this connection; an administrator does not.

    `process` is a token of the node's process: it tells the server which nodes go when it goes.  `incarnation`, `epoch`
    and `claim_id` name the server that the node heard last (rule 17i).  `role` is what the caller wants to do, and `nonce`
    its part of the challenge (rule 16); an administrator whose token is for one run names that run.
    """

    protocol: int
    run_id: Token = ""
    node_id: Token = ""
    connection: Count = 0
    capabilities: tuple[Name, ...] = ()
    process: Token = ""
    incarnation: Token = ""
    epoch: Round = 0
    claim_id: Token = ""
    role: AccessRole = AccessRole.NODE
    nonce: Token = ""


class Peer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a world, as its peers see it."""

    rank: int
    name: str
    address: str = ""
    topology: str = ""


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """The answer to a challenge: the caller has the token."""

    mac: Token


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A node that has connected and not joined yet asks whether the server is there; a pong answers."""


class Numbered(msgspec.Struct, frozen=True):
    """A question, or the answer that has its number."""

    number: Count


class AskHeard(Numbered, frozen=True, tag="ask-heard"):
    """Answer when all that this node said before has been taken, and is recorded where it must be (rule 17c)."""


class AskPeers(Numbered, frozen=True, tag="ask-peers"):
    """Which members the world with this seal id has, from this rank on."""

    seal_id: Token
    start: Count = 0


class AskRuns(Numbered, frozen=True, tag="ask-runs"):
    """Which runs there are."""


class AskStatus(Numbered, frozen=True, tag="ask-status"):
    """Where a run stands."""

    run_id: Token


class AskClose(Numbered, frozen=True, tag="ask-close"):
    """Close a run for everybody."""

    run_id: Token
    why: Text = ""


class AskEvict(Numbered, frozen=True, tag="ask-evict", omit_defaults=True):
    """Give a node up, by its name or id, and keep it out for so long; None: the server decides."""

    run_id: Token
    node: Text
    for_s: Seconds | None = None
    why: Why = ""


class AskLift(Numbered, frozen=True, tag="ask-lift"):
    """Let a node in again that was evicted, by its name or id."""

    run_id: Token
    node: Text


class AskVerdict(Numbered, frozen=True, tag="ask-verdict", omit_defaults=True):
    """How the workers of this node failed in the world with this seal id, each `at` seconds ago; which of all failed first?"""

    seal_id: Token
    failures: Annotated[tuple[Failure, ...], Meta(max_length=64)] = ()


class Serving(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server of a run (rule 17i): its incarnation and claim; in doubt where the claim cannot be renewed (rule 17e)."""

    incarnation: Token = ""
    epoch: Round = 0
    claim_id: Token = ""
    in_doubt: bool = False


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The caller is to prove that it has the token.  The nonce is of this connection only; `proof` is that of the server."""

    nonce: Token
    proof: Token


class Welcome(msgspec.Struct, frozen=True, tag="welcome", omit_defaults=True):
    """The server takes the connection.  Of the world with `seal_id`, `ranks` are in the process that serves."""

    protocol: int
    server: Token
    capabilities: tuple[Name, ...] = ()
    serving: Serving = Serving()
    seal_id: Token = ""
    ranks: tuple[Count, ...] = ()


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye", omit_defaults=True):
    """The server ends the connection.  `final` means that trying again is of no use."""

    why: Text
    final: bool = False


class Pong(msgspec.Struct, frozen=True, tag="pong", omit_defaults=True):
    """I heard you.  It counts as a welcome: it names the server."""

    serving: Serving = Serving()


class Peers(Numbered, frozen=True, tag="peers"):
    """A page of a roster."""

    total: Count
    page: tuple[Peer, ...]


class Status(Numbered, frozen=True, tag="status", omit_defaults=True):
    """Where a run stands: at most a page of its nodes, and how many there are; at most a page of those kept out."""

    run: RunLine | None = None
    bounds: str = ""
    nodes: tuple[NodeLine, ...] = ()
    messages: dict[str, int] = {}
    kept_out: tuple[KeptOutLine, ...] = ()


class Runs(Numbered, frozen=True, tag="runs"):
    """All runs of a server, a page of them."""

    total: Count
    runs: tuple[RunLine, ...]


class Done(Numbered, frozen=True, tag="done", omit_defaults=True):
    """What was asked for was done, or was not; what there is to say of it, and the name of the reason if it has one."""

    done: bool
    why: Text = ""
    reason: Token = ""


class VerdictGiven(Numbered, frozen=True, tag="verdict", omit_defaults=True):
    """Which worker failed first; None while reports are awaited, and where nothing was reported."""

    verdict: Verdict | None = None
    is_awaited: bool = False


Ask = AskHeard | AskPeers | AskRuns | AskStatus | AskClose | AskEvict | AskLift | AskVerdict
Answer = Peers | Runs | Status | Done | VerdictGiven
FromNode = Hello | Proof | Ping | NodeMessage | Ask
FromServer = Challenge | Welcome | Goodbye | Pong | NodeNotice | Answer

_ENCODER = msgspec.json.Encoder()
FROM_NODE: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode)
FROM_SERVER: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)


def frame(message: Any) -> bytes:
    """A message as it goes over the wire."""
    return framed(_ENCODER.encode(message))


def framed(body: bytes) -> bytes:
    """The bytes of a message with their length in front."""
    return len(body).to_bytes(_LENGTH, "big") + body


def named(hello: Hello, nonce: str) -> tuple[str | int, ...]:
    """What a proof on a connection is of, beside the run and the role: nothing of it fits another connection (rule 16)."""
    return hello.node_id, hello.connection, hello.process, hello.nonce, nonce


def is_same_mac(given: str, right: str) -> bool:
    """Whether two are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), right.encode())


class Reader:
    """Cuts what arrives into frames.

    Each side opens with `MAGIC`, so that another protocol is recognised before its first bytes are taken for a length.
    """

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._opened = False

    @property
    def is_between_frames(self) -> bool:
        """Whether all that came has been cut up."""
        return self._opened and not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are complete with these bytes."""
        buffer = self._buffer
        buffer += data
        if not self._opened:
            if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
                raise RendezvousStateError(f"the other side does not speak Rallypoint's protocol: {what_is(buffer)}")
            if len(buffer) < len(MAGIC):
                return
            del buffer[: len(MAGIC)]
            self._opened = True
        while len(buffer) >= _LENGTH:
            length = int.from_bytes(buffer[:_LENGTH], "big")
            if length > self._limit:
                raise RendezvousStateError(f"a message of {length} bytes was announced, {self._limit} are allowed")
            if len(buffer) < _LENGTH + length:
                return
            body = bytes(buffer[_LENGTH : _LENGTH + length])
            del buffer[: _LENGTH + length]
            yield body


def read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A frame as a message; anything wrong with it is a `RendezvousStateError` that says what."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        raise RendezvousStateError(f"a message cannot be read: {exc}") from exc


def what_is(data: bytes | bytearray) -> str:
    """What the first bytes of another protocol look like, in words."""
    start = bytes(data[:8])
    known = next((name for name, openings in _PROTOCOLS.items() if start.startswith(openings)), None)
    return f"it starts with {start!r}" if known is None else f"it looks like {known}"
