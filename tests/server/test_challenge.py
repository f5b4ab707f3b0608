"""Rule 17j: an administrator proves that it knows the secret of the claim before it learns or changes anything."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from rallypoint import protocol
from rallypoint.core.model import Closing, Run
from rallypoint.messages.requests import CloseAsked, Joined
from rallypoint.messages.types import Bounds, Ending, Node
from rallypoint.server.admission import ServerLimits
from rallypoint.server.coordinator import Coordinator
from rallypoint.tokens import AccessRole, token_of
from tests.support.protocol_client import proof

SECRET = "the secret of the claim"
RUN = "a-private-run"
HELLO = protocol.Hello(protocol.VERSION, role=AccessRole.ADMIN)
NODE = protocol.Hello(protocol.VERSION, RUN, "a.1", 1, nonce="mine")
ASKS = [
    protocol.AskRuns(1),
    protocol.AskStatus(1, RUN),
    protocol.AskClose(1, RUN, "it is not wanted"),
    protocol.AskEvict(1, RUN, "a"),
    protocol.AskPeers(1, "s1"),
    protocol.AskHeard(1),
    protocol.Ping(),
    HELLO,
    protocol.Hello(protocol.VERSION, RUN, "a.1", 1),
    CloseAsked("a.1"),
]
LIMITS = ServerLimits(hello_s=10.0)


class Server:
    """A server without sockets, and its callers."""

    def __init__(self, *, secret: str = SECRET, claim_id: str = "c1", remote_admins: bool = True) -> None:
        numbers = itertools.count(1)
        self._callers = itertools.count(1)
        self.coordinator = Coordinator(
            monotonic=0.0,
            mint=lambda: f"m{next(numbers)}",
            only_run=RUN,
            remote_admins=remote_admins,
            restored=[(Run(run_id=RUN, incarnation="r1", bounds=Bounds(2, 2)), 1)],
            limits=LIMITS,
            claim_id=claim_id,
            token=token_of(secret),
        )

    @property
    def run(self) -> Run:
        return self.coordinator.runs.known[RUN].run

    def caller(self) -> Caller:
        return Caller(self, next(self._callers))

    def joined(self, name: str) -> None:
        """A node connects with the right proof, and waits."""
        node, caller = Node(id=f"{name}.1", name=name), self.caller()
        hello = protocol.Hello(protocol.VERSION, RUN, node.id, 1)
        welcome, *_ = caller.say(proof(SECRET, hello, caller.challenged(hello)), Joined(node, Bounds(2, 2)))
        assert isinstance(welcome, protocol.Welcome)


class Caller:
    """One connection, which reads as a client does: a message that cannot be read fails the test."""

    def __init__(self, server: Server, number: int) -> None:
        self._server, self.number = server, number
        self._reader = protocol.Reader()
        self._opened = False
        server.coordinator.opened(number, 0.0)

    def say(self, *messages: msgspec.Struct) -> list[protocol.FromServer]:
        """Say something in one piece; what is answered."""
        data = b"" if self._opened else protocol.MAGIC
        self._opened = True
        return self.send(data + b"".join(protocol.frame(message) for message in messages))

    def send(self, data: bytes) -> list[protocol.FromServer]:
        sends = self._server.coordinator.received(self.number, data, 0.1).sends
        return self.read(sends)

    def read(self, sends: list[tuple[int, bytes]]) -> list[protocol.FromServer]:
        mine = b"".join(data for caller, data in sends if caller == self.number)
        return [protocol.read(body, protocol.FROM_SERVER) for body in self._reader.feed(mine)]

    def challenged(self, hello: protocol.Hello = HELLO) -> str:
        """Say hello; the nonce of the challenge, which is all that is said."""
        (challenge,) = self.say(hello)
        assert isinstance(challenge, protocol.Challenge)
        return challenge.nonce

    def proven(self) -> Caller:
        """Say hello and prove to know the secret."""
        (welcome,) = self.say(proof(SECRET, HELLO, self.challenged()))
        assert isinstance(welcome, protocol.Welcome)
        return self

    @property
    def is_connected(self) -> bool:
        return self._server.coordinator.knows(self.number)


def turned_away(heard: list[protocol.FromServer], *, final: bool = False) -> str:
    """Why a caller was turned away, which is all that it hears, and is told without a word about the run."""
    (goodbye,) = heard
    assert isinstance(goodbye, protocol.Goodbye)
    assert goodbye.final is final
    assert RUN not in goodbye.why
    return goodbye.why


@pytest.mark.parametrize("remote_admins", [True, False])
def test_an_administrator_that_knows_the_secret_may_ask(remote_admins: bool) -> None:
    server = Server(remote_admins=remote_admins)
    server.joined("a")
    admin = server.caller().proven()
    (runs,) = admin.say(protocol.AskRuns(1))
    assert isinstance(runs, protocol.Runs)
    assert [line.run_id for line in runs.runs] == [RUN]
    (status,) = admin.say(protocol.AskStatus(2, RUN))
    assert isinstance(status, protocol.Status)
    assert [node.name for node in status.nodes] == ["a"]
    evicted = f"node 'a' was evicted from run {RUN!r} and is kept out for 30 s"
    assert admin.say(protocol.AskEvict(3, RUN, "a")) == [protocol.Done(3, True, evicted)]
    assert server.run.live == 0
    assert admin.say(protocol.AskClose(4, RUN, "it is not wanted")) == [protocol.Done(4, True)]
    assert server.run.closing == Closing(Ending.FAILED, "it is not wanted", 0.1)


@pytest.mark.parametrize("secret", ["another", SECRET.upper()])
def test_an_administrator_with_a_wrong_secret_is_sent_back_to_the_register(secret: str) -> None:
    admin = Server().caller()
    nonce = admin.challenged()
    why = turned_away(admin.say(proof(secret, HELLO, nonce)))
    assert why == "another server was meant: the secret is not that of this server's claim; read the record again"
    assert not admin.is_connected


@pytest.mark.parametrize("mac", ["", "0" * 64, "ä" * 64, "\U0001f511"])
def test_a_proof_may_be_any_text(mac: str) -> None:
    admin = Server().caller()
    admin.challenged()
    turned_away(admin.say(protocol.Proof(mac)))


def test_every_connection_is_challenged_anew() -> None:
    server = Server()
    assert len({server.caller().challenged() for _ in range(10)}) == 10


def test_a_proof_of_another_connection_is_refused() -> None:
    server = Server()
    for hello in (HELLO, NODE):
        heard_before = proof(SECRET, hello, server.caller().challenged(hello))
        replaying = server.caller()
        replaying.challenged(hello)
        turned_away(replaying.say(heard_before))


def test_all_that_a_node_said_before_is_of_no_use_to_one_who_says_it_again() -> None:
    """Also when the node is gone, and with the same node, connection and process."""
    server = Server()
    owner = server.caller()
    said = proof(SECRET, NODE, owner.challenged(NODE))
    assert isinstance(owner.say(said)[0], protocol.Welcome)
    server.coordinator.ended(owner.number, 0.1)
    replaying = server.caller()
    replaying.challenged(NODE)
    turned_away(replaying.say(said, Joined(Node(id="a.1", name="a"), Bounds(2, 2))))
    assert server.run.live == 0


@pytest.mark.parametrize("named", [{"node_id": "b.1"}, {"connection": 2}, {"process": "q"}, {"nonce": "another"}])
def test_a_proof_is_of_one_connection_of_one_node(named: dict[str, Any]) -> None:
    server = Server()
    caller = server.caller()
    nonce = caller.challenged(msgspec.structs.replace(NODE, **named))
    turned_away(caller.say(proof(SECRET, NODE, nonce)))


def test_a_proof_of_a_node_is_not_one_of_an_administrator() -> None:
    admin = Server().caller()
    turned_away(admin.say(proof(SECRET, NODE, admin.challenged())))


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: type(ask).__name__)
@pytest.mark.parametrize("hurried", [True, False])
def test_nothing_is_heard_before_the_proof(ask: msgspec.Struct, hurried: bool) -> None:
    server = Server()
    server.joined("a")
    before, admin = server.run, server.caller()
    if hurried:
        challenge, *heard = admin.say(HELLO, ask, protocol.AskRuns(2))
        assert isinstance(challenge, protocol.Challenge)
    else:
        admin.challenged()
        heard = admin.say(ask)
    assert turned_away(heard).startswith("this server is part of a job: ")
    assert not admin.is_connected
    assert server.run == before


def test_what_cannot_be_read_is_not_final_before_the_proof() -> None:
    admin = Server().caller()
    admin.challenged()
    assert "cannot be read" in turned_away(admin.send(protocol.framed(b'{"type": "what"}')))


def test_a_stranger_learns_nothing_of_the_run() -> None:
    """It may say that it is a node, of whatever run: without the secret that makes no difference."""
    for run_id in (RUN, "another"):
        stranger = Server().caller()
        stranger.challenged(protocol.Hello(protocol.VERSION, run_id, "a.1", 1))
        assert "secret" in turned_away(stranger.say(protocol.Ping()))
    admin = Server().caller()
    assert admin.challenged() == "m1"
    assert server_says(admin) == []


def server_says(admin: Caller) -> list[protocol.FromServer]:
    """What a server says by itself."""
    return admin.read(admin._server.coordinator.tick(1.0).sends)


def test_an_administrator_that_does_not_prove_is_not_waited_for() -> None:
    server = Server()
    admin, proven = server.caller(), server.caller().proven()
    admin.challenged()
    now, sends = 0.1, []
    while now < LIMITS.hello_s + 1.0:
        now = server.coordinator.wake_at(now)
        sends += server.coordinator.tick(now).sends
    turned_away(admin.read(sends))
    assert not admin.is_connected
    assert proven.is_connected


def test_a_challenged_caller_is_told_that_another_process_serves() -> None:
    server = Server()
    admin = server.caller()
    admin.challenged()
    assert turned_away(admin.read(server.coordinator.step_down("another process serves").sends))


def test_a_proof_is_given_once() -> None:
    server = Server()
    admin = server.caller()
    said = proof(SECRET, HELLO, admin.challenged())
    admin.say(said)
    assert "none was made" in turned_away(admin.say(said), final=True)
    assert "a connection opens with a hello" in turned_away(server.caller().say(said), final=True)


def test_another_version_is_named_before_the_secret() -> None:
    why = turned_away(Server().caller().say(protocol.Hello(protocol.VERSION + 1, RUN, "a.1", 1)), final=True)
    assert "run the same release" in why


@pytest.mark.parametrize("remote_admins", [True, False])
def test_without_a_secret_callers_are_welcome_or_not_as_before(remote_admins: bool) -> None:
    server = Server(secret="", claim_id="", remote_admins=remote_admins)
    (answer,) = server.caller().say(HELLO)
    assert isinstance(answer, protocol.Welcome if remote_admins else protocol.Goodbye)


@pytest.mark.parametrize(("claim_id", "standalone"), [("", True), ("c1", False)])
def test_an_elected_server_does_not_call_itself_standalone(claim_id: str, standalone: bool) -> None:
    (welcome,) = Server(secret="", claim_id=claim_id).caller().say(HELLO)
    assert isinstance(welcome, protocol.Welcome)
    assert (protocol.STANDALONE in welcome.capabilities) is standalone


def test_an_older_connection_of_a_node_is_told_so_in_words() -> None:
    server = Server(secret="")
    assert isinstance(server.caller().say(protocol.Hello(protocol.VERSION, RUN, "a.1", 2))[0], protocol.Welcome)
    assert turned_away(server.caller().say(protocol.Hello(protocol.VERSION, RUN, "a.1", 1))) == (
        "the node has a newer connection"
    )
