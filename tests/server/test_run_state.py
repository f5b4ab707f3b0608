"""One run as a server hosts it: what is sent, what must be recorded first, who is given up."""

from __future__ import annotations

from rallypoint import record
from rallypoint.core.changes import Durability
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Broken, KeepWaiting, Placed, RunClosed
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, NodeMessage, Seat, Standing
from rallypoint.messages.types import Bounds, Reason
from rallypoint.server import run_state
from rallypoint.server.run_state import Output, RunState
from tests.support.run_driver import member

BOUNDS = Bounds(2, 3)


class Host:
    """A server that was up for long, and what came of the last input."""

    def __init__(self, started_at: float = -100.0) -> None:
        self.now = 0.0
        self.minted = 0
        self.places: dict[str, Announced] = {}
        self.out = Output(run_state.open_run("run", started_at, self.now))

    @property
    def state(self) -> RunState:
        return self.out.state

    def mint(self) -> str:
        self.minted += 1
        return str(self.minted)

    def receive(self, node_id: str, message: NodeMessage, connection: int = 1) -> None:
        self.out = run_state.receive(self.state, node_id, connection, message, self.now, self.mint())

    def join(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.receive(node_id, Joined(member(node_id), BOUNDS))

    def hold(self, *node_ids: str) -> None:
        """Members say that all is well."""
        for node_id in node_ids:
            if self.state.run.world is not None:
                self.places[node_id] = self.place(node_id)
            self.receive(node_id, self.places[node_id])

    def place(self, node_id: str) -> Announced:
        """What a member of the current world says of itself."""
        world, ranks = self.state.run.world, self.state.run.ranks
        assert world is not None, "nothing was sealed yet"
        seat = Seat(world.round, world.seal_id, world.size, ranks[node_id])
        return Announced(member(node_id), BOUNDS, Standing.HOLDS, incarnation=world.incarnation, seat=seat)

    def take_over(self) -> None:
        """Another server starts with what is recorded now, and nothing else."""
        written = record.of(self.state.run, epoch=1, write_id="w")
        self.now += 1000.0
        run = record.restored(written, self.now, written.settings.hold_s)
        self.out = Output(RunState(run))

    def wait(self, seconds: float, *alive: str) -> None:
        """Time passes as `wake_at` says; those alive keep speaking.  Stops when somebody is lost."""
        end = self.now + seconds
        while self.now < end:
            due = run_state.wake_at(self.state, self.now)
            assert due is None or due > self.now
            self.now = min(end, self.now + 0.25, end if due is None else due)
            self.hold(*alive)
            self.out = run_state.tick(self.state, self.now, self.mint())
            if self.out.losses:
                return


def hosting(*node_ids: str) -> Host:
    """A host with a sealed world of these three."""
    host = Host()
    host.join(*node_ids)
    assert host.state.run.phase is Phase.SEALED, host.out.why
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


def test_a_seal_and_a_close_must_be_recorded_before_they_are_told_and_nothing_else() -> None:
    """Rule 17c."""
    host, durability = Host(), []
    for node_id in "abc":
        host.join(node_id)
        durability.append(host.out.durability)
    host.hold("a")
    durability.append(host.out.durability)
    for by in "ab":
        host.receive(by, CloseAsked(by))
        durability.append(host.out.durability)
    nothing, a_seal_or_close = Durability.NONE, Durability.SEAL_OR_CLOSE
    assert durability == [nothing, nothing, a_seal_or_close, nothing, a_seal_or_close, nothing]


def test_a_finish_must_be_recorded_and_the_last_one_is_a_close() -> None:
    """Rule 17c: a finished node cannot announce itself to the next server."""
    host, durability = hosting("a", "b", "c"), []
    world = host.state.run.world
    assert world is not None
    finished = [Left(node_id, Reason.FINISHED, world.seal_id) for node_id in "aabc"]
    for left in finished:
        host.receive(left.node_id, left)
        durability.append(host.out.durability)
    assert durability == [Durability.FINISH, Durability.NONE, Durability.FINISH, Durability.SEAL_OR_CLOSE]


def test_other_leaves_and_losses_need_no_record() -> None:
    """Rule 17c: the next server misses the rank."""
    for reason in (Reason.WITHDREW, Reason.GAVE_UP):
        host = hosting("a", "b", "c")
        host.receive("c", Left("c", reason))
        assert [type(said) for _, said in host.out.sends] == [Broken, Broken]
        assert host.out.durability is Durability.NONE
    host = hosting("a", "b", "c")
    host.wait(20, "a", "b")
    assert [type(said) for _, said in host.out.sends] == [Broken, Broken]
    assert host.out.durability is Durability.NONE


def test_a_server_in_doubt_seals_nothing_and_says_why() -> None:
    """Rule 17e: it still tells a loss at once; when the doubt is over, what is due is sealed."""
    host = hosting("a", "b", "c")
    host.out = run_state.hinder(host.state, "the register cannot be reached", host.now, host.mint())
    assert host.state.run.current is not None
    host.receive("c", Left("c", Reason.WITHDREW))
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("b", Broken)]
    for node_id in "ab":
        place = host.place(node_id)
        host.receive(node_id, Joined(member(node_id), BOUNDS, incarnation=place.incarnation, seat=place.seat))
        assert host.state.run.phase is Phase.GATHERING
    told = dict(host.out.sends)["b"]
    assert isinstance(told, KeepWaiting)
    assert told.why == "the register cannot be reached"
    host.out = run_state.hinder(host.state, "", host.now, host.mint())
    assert {type(said) for _, said in host.out.sends} == {Placed}
    assert host.out.durability is Durability.SEAL_OR_CLOSE


def test_a_server_in_doubt_seals_nothing_in_the_next_incarnation_either() -> None:
    """Rule 17e: closing and founding do not end the doubt."""
    for forgotten in (False, True):
        host = hosting("a", "b", "c")
        host.out = run_state.hinder(host.state, "the register cannot be reached", host.now, host.mint())
        host.receive("a", CloseAsked("a"))
        for node_id in "abc":
            host.receive(node_id, Left(node_id, Reason.WITHDREW))
        if forgotten:
            host.wait(61)
        host.join("x", "y", "z")
        assert [said.why for _, said in host.out.sends if isinstance(said, KeepWaiting)] == [
            "the register cannot be reached"
        ]
        assert host.state.run.phase is Phase.GATHERING


def test_a_server_in_doubt_seals_nothing_after_a_hold_to_which_nobody_came() -> None:
    """Rule 17e: the end of an incarnation does not end the doubt."""
    host = hosting("a", "b", "c")
    host.take_over()
    host.out = run_state.hinder(host.state, "the register cannot be reached", host.now, host.mint())
    host.wait(7)
    assert host.state.run.last is not None
    host.join("x", "y", "z")
    assert [said.why for _, said in host.out.sends if isinstance(said, KeepWaiting)] == [
        "the register cannot be reached"
    ]
    assert host.state.run.phase is Phase.GATHERING


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
    host.out = run_state.connection_ended(host.state, "c", 1, host.now)
    assert (host.out.sends, host.out.losses) == ((), ())
    host.wait(1, "a", "b")
    assert [loss.node_id for loss in host.out.losses] == ["c"]
    assert host.now == 0.15


def test_who_hung_up_while_the_server_was_stalled_has_the_longer_time_to_come_back() -> None:
    host = hosting("a", "b", "c")
    for node_id in "bc":
        host.out = run_state.connection_ended(host.state, node_id, 1, host.now, our_fault=True)
    host.wait(2, "a")
    assert not host.out.losses
    # It comes back on another connection, and a node that hangs up after that is lost as quickly as ever.
    host.receive("c", CloseAsked("c", incarnation="gone"), connection=2)
    host.wait(2, "a", "c")
    assert not host.out.losses
    host.wait(20, "a", "c")
    assert [loss.node_id for loss in host.out.losses] == ["b"]
    assert host.now == 5.0


def test_one_node_that_hung_up_while_the_server_was_stalled_has_that_time_too() -> None:
    host = hosting("a", "b", "c")
    host.out = run_state.connection_ended(host.state, "c", 1, host.now, our_fault=True)
    host.wait(20, "a", "b")
    assert [loss.node_id for loss in host.out.losses] == ["c"]
    assert host.now == 5.0


def test_what_is_said_on_a_replaced_connection_is_ignored() -> None:
    host = hosting("a", "b", "c")
    host.receive("a", CloseAsked("a", incarnation="gone"), connection=2)
    before = host.state
    host.receive("a", CloseAsked("a"), connection=1)
    assert host.state is before
    assert host.out.sends == ()
    assert "a spoke on a connection that it has replaced" in host.out.why
    host.out = run_state.connection_ended(before, "a", 1, host.now)
    host.wait(1, "b", "c")
    assert host.out.losses == ()


def test_who_leaves_is_not_given_up_later() -> None:
    host = hosting("a", "b", "c")
    world = host.state.run.world
    assert world is not None
    host.receive("c", Left("c", Reason.FINISHED, world.seal_id))
    host.wait(20, "a", "b")
    assert host.out.losses == ()


def test_a_word_that_nothing_has_changed_keeps_a_node_alive() -> None:
    host = hosting("a", "b", "c")
    run = host.state.run
    beats = {"c": 4.0}
    for now in (5.0, 5.25, 8.9):
        host.now = now
        host.hold("a", "b")
        host.out = run_state.tick(host.state, host.now, host.mint(), beats=beats)
        assert host.out.losses == ()
        assert host.state.run is run
    host.now = 9.0
    host.hold("a", "b")
    host.out = run_state.tick(host.state, host.now, host.mint(), beats=beats)
    assert [loss.node_id for loss in host.out.losses] == ["c"]


def test_an_administrator_can_close_a_run_or_give_up_a_node() -> None:
    host = hosting("a", "b", "c")
    host.out = run_state.apply(host.state, Lost("c", "the administrator said so"), host.now, host.mint())
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("b", Broken)]
    host.wait(20, "a", "b")
    assert host.out.losses == ()
    host.out = run_state.apply(host.state, CloseAsked("the administrator"), host.now, host.mint())
    assert host.out.durability is Durability.SEAL_OR_CLOSE


def test_a_server_that_has_just_started_listens_first() -> None:
    assert Host(started_at=-6.9).state.run.phase is Phase.RECOVERING
    assert Host(started_at=-7.0).state.run.phase is Phase.GATHERING


def test_members_of_a_record_have_the_hold_to_speak_up_and_the_others_are_told_who_did_not() -> None:
    """Rule 17f."""
    host = hosting("a", "b", "c")
    host.hold("a", "b")
    host.take_over()
    host.wait(6.9, "a", "b")
    assert [type(said) for _, said in host.out.sends] == []
    host.wait(0.1)
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("b", Broken)]
    assert "only 2 of 3 ranks of round 1 still hold it" in host.out.why
    assert host.now == 1007.0


def test_a_rank_that_falls_silent_again_while_the_server_recovers_is_given_up() -> None:
    host = hosting("a", "b", "c")
    host.hold("a", "b", "c")
    host.take_over()
    host.hold("a", "b")
    host.wait(5, "a")
    assert [loss.node_id for loss in host.out.losses] == ["b"]
    host.hold("c")
    assert [(to, type(said)) for to, said in host.out.sends] == [("a", Broken), ("c", Broken)]


def test_a_run_is_idle_when_nobody_is_in_it_or_near_it() -> None:
    host = Host()
    assert run_state.is_idle(host.state)
    host.join("a")
    assert not run_state.is_idle(host.state)
    host.receive("a", Left("a", Reason.WITHDREW))
    assert run_state.is_idle(host.state)
    host.join("a")
    host.receive("b", Joined(member("b"), Bounds(1, 1)))
    host.receive("a", Left("a", Reason.WITHDREW))
    assert not run_state.is_idle(host.state)
    host.wait(20)
    assert run_state.is_idle(host.state)


def test_a_closed_run_is_idle_only_after_its_tombstone() -> None:
    host = hosting("a", "b", "c")
    host.receive("a", CloseAsked("a"))
    for node_id in "abc":
        host.receive(node_id, Left(node_id, Reason.WITHDREW))
    host.wait(59)
    assert not run_state.is_idle(host.state)
    host.wait(1.1)
    assert run_state.is_idle(host.state)
    assert not run_state.is_idle(Host(started_at=0.0).state)
