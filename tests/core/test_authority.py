"""One run as an authority hosts it: what is sent, what must be durable, who is given up."""

from __future__ import annotations

from rallypoint.core import authority, codec
from rallypoint.core.authority import Authority, Output
from rallypoint.core.clock import AwakeClock
from rallypoint.core.events import Announced, CloseAsked, Joined, Left, Lost, Message, Seat, Standing
from rallypoint.core.model import Bounds, Phase, Reason
from rallypoint.core.notices import Broken, KeepWaiting, Placed, RunClosed
from tests.core.stage import member

BOUNDS = Bounds(2, 3)


class Host:
    """An authority that was up for long, and what came of the last input."""

    def __init__(self, started_at: float = -100.0) -> None:
        self.now = 0.0
        self.minted = 0
        self.out = Output(authority.open_run("run", started_at, self.now))

    @property
    def authority(self) -> Authority:
        return self.out.authority

    def mint(self) -> str:
        self.minted += 1
        return str(self.minted)

    def receive(self, node_id: str, message: Message, connection: int = 1) -> None:
        self.out = authority.receive(self.authority, node_id, connection, message, self.now, self.mint())

    def join(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.receive(node_id, Joined(member(node_id), BOUNDS))

    def hold(self, *node_ids: str) -> None:
        """Members say that all is well."""
        for node_id in node_ids:
            world, ranks = self.authority.run.world, self.authority.run.ranks
            assert world is not None, "nothing was sealed yet"
            seat = Seat(world.round, world.seal_id, world.size, ranks[node_id])
            self.receive(
                node_id, Announced(member(node_id), BOUNDS, Standing.HOLDS, incarnation=world.incarnation, seat=seat)
            )

    def wait(self, seconds: float, *alive: str) -> None:
        """Time passes as `wake_at` says; those alive keep speaking.  Stops when somebody is lost."""
        end = self.now + seconds
        while self.now < end:
            due = authority.wake_at(self.authority, self.now)
            assert due is None or due > self.now
            self.now = min(end, self.now + 0.25, end if due is None else due)
            self.hold(*alive)
            self.out = authority.tick(self.authority, self.now, self.mint())
            if self.out.losses:
                return


def hosting(*node_ids: str) -> Host:
    """A host with a sealed world of these three."""
    host = Host()
    host.join(*node_ids)
    assert host.authority.run.phase is Phase.SEALED, host.out.why
    return host


def test_what_is_to_be_sent_is_spelled_out_for_each_node() -> None:
    host = Host()
    host.join("a")
    [(to, said)] = host.out.sends
    assert to == "a"
    assert isinstance(said, KeepWaiting)
    host.join("b", "c")
    assert [(to, said.rank) for to, said in host.out.sends if isinstance(said, Placed)] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
    ]
    assert "all 3 nodes are here" in host.out.why


def test_a_seal_and_a_closing_must_be_durable_and_nothing_else() -> None:
    host, durable = Host(), []
    for node_id in "abc":
        host.join(node_id)
        durable.append(host.out.durable)
    host.hold("a")
    durable.append(host.out.durable)
    for by in "ab":
        host.receive(by, CloseAsked(by))
        durable.append(host.out.durable)
    assert durable == [False, False, True, False, True, False]


def test_a_closing_is_sent_to_everybody() -> None:
    host = hosting("a", "b", "c")
    host.receive("a", CloseAsked("a"))
    assert [(to, type(said)) for to, said in host.out.sends] == [(to, RunClosed) for to in "abc"]


def test_a_node_that_falls_silent_is_given_up_and_the_others_are_told() -> None:
    host = hosting("a", "b", "c")
    host.wait(20, "a", "b")
    assert [loss.node_id for loss in host.out.losses] == ["c"]
    assert host.now == 5.0
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("b", Broken)]
    assert "c was lost: nothing was heard of it for 5.0 s" in host.out.why


def test_a_connection_that_ends_is_a_loss_only_after_its_grace() -> None:
    host = hosting("a", "b", "c")
    host.out = authority.connection_ended(host.authority, "c", 1, host.now)
    assert (host.out.sends, host.out.losses) == ((), ())
    host.wait(1, "a", "b")
    assert [loss.node_id for loss in host.out.losses] == ["c"]
    assert host.now == 0.15


def test_who_hung_up_while_the_authority_was_stalled_has_the_longer_time_to_come_back() -> None:
    host = hosting("a", "b", "c")
    stalled = AwakeClock(looked=host.now, last_stall_s=10.0, woke=host.now)
    host.out = authority.connection_ended(host.authority, "b", 1, host.now, stalled)
    host.out = authority.connection_ended(host.out.authority, "c", 1, host.now, stalled)
    host.wait(2, "a")
    assert not host.out.losses
    # It comes back on another connection, and whoever hangs up after that is lost as quickly as ever.
    host.receive("c", CloseAsked("c", incarnation="gone"), connection=2)
    host.wait(2, "a", "c")
    assert not host.out.losses
    host.wait(20, "a", "c")
    assert [loss.node_id for loss in host.out.losses] == ["b"]
    assert host.now == 5.0


def test_what_is_said_on_a_replaced_connection_is_ignored() -> None:
    host = hosting("a", "b", "c")
    host.receive("a", CloseAsked("a", incarnation="gone"), connection=2)
    before = host.authority
    host.receive("a", CloseAsked("a"), connection=1)
    assert host.authority is before
    assert host.out.sends == ()
    assert "a spoke on a connection that it has replaced" in host.out.why
    host.out = authority.connection_ended(before, "a", 1, host.now)
    host.wait(1, "b", "c")
    assert host.out.losses == ()


def test_who_leaves_is_not_given_up_later() -> None:
    host = hosting("a", "b", "c")
    world = host.authority.run.world
    assert world is not None
    host.receive("c", Left("c", Reason.FINISHED, world.seal_id))
    host.wait(20, "a", "b")
    assert host.out.losses == ()


def test_a_word_that_nothing_has_changed_keeps_a_node_alive() -> None:
    host = hosting("a", "b", "c")
    run = host.authority.run
    beats = {"c": 4.0}
    for now in (5.0, 5.25, 8.9):
        host.now = now
        host.hold("a", "b")
        host.out = authority.tick(host.authority, host.now, host.mint(), beats=beats)
        assert host.out.losses == ()
        assert host.authority.run is run
    host.now = 9.0
    host.hold("a", "b")
    host.out = authority.tick(host.authority, host.now, host.mint(), beats=beats)
    assert [loss.node_id for loss in host.out.losses] == ["c"]


def test_an_administrator_can_close_a_run_or_give_up_a_node() -> None:
    host = hosting("a", "b", "c")
    host.out = authority.apply(host.authority, Lost("c", "the administrator said so"), host.now, host.mint())
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("b", Broken)]
    host.wait(20, "a", "b")
    assert host.out.losses == ()
    host.out = authority.apply(host.authority, CloseAsked("the administrator"), host.now, host.mint())
    assert host.out.durable


def test_an_authority_that_has_just_started_listens_first() -> None:
    assert Host(started_at=-6.9).authority.run.phase is Phase.RECOVERING
    assert Host(started_at=-7.0).authority.run.phase is Phase.GATHERING


def test_members_of_a_record_are_presumed_to_be_there_until_they_fail_to_speak_up() -> None:
    host = hosting("a", "b", "c")
    record = codec.encode_run(host.authority.run, host.now)
    host.now = 1000.0
    host.out = Output(authority.restore(codec.decode_run(record, host.now), host.now))
    assert host.authority.run.phase is Phase.SEALED
    host.hold("a", "b")
    assert host.out.sends == ()
    host.wait(60, "a", "b")
    assert [loss.node_id for loss in host.out.losses] == ["c"]
    assert host.now == 1007.0


def test_waiting_nodes_of_a_record_are_presumed_to_be_there_too() -> None:
    host = Host()
    host.join("a")
    run = codec.decode_run(codec.encode_run(host.authority.run, host.now), host.now)
    host.out = Output(authority.restore(run, host.now))
    host.wait(60)
    assert [loss.node_id for loss in host.out.losses] == ["a"]
    assert host.authority.run.live == 0


def test_a_run_is_idle_when_nobody_is_in_it_or_near_it() -> None:
    host = Host()
    assert authority.is_idle(host.authority)
    host.join("a")
    assert not authority.is_idle(host.authority)
    host.receive("a", Left("a", Reason.WITHDREW))
    assert authority.is_idle(host.authority)
    host.join("a")
    host.receive("b", Joined(member("b"), Bounds(1, 1)))
    host.receive("a", Left("a", Reason.WITHDREW))
    assert not authority.is_idle(host.authority)
    host.wait(20)
    assert authority.is_idle(host.authority)


def test_a_closed_run_is_idle_only_after_its_tombstone() -> None:
    host = hosting("a", "b", "c")
    host.receive("a", CloseAsked("a"))
    for node_id in "abc":
        host.receive(node_id, Left(node_id, Reason.WITHDREW))
    host.wait(59)
    assert not authority.is_idle(host.authority)
    host.wait(1.1)
    assert authority.is_idle(host.authority)
    assert not authority.is_idle(Host(started_at=0.0).authority)
