"""A leader writes only while it leads and knows the board, and decides nothing by time before it has read what is in etcd."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import msgspec
import pytest

from rallypoint.core import codec
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Phase, Run, Settings
from rallypoint.core.notices import Refused
from rallypoint.etcd import estate
from rallypoint.etcd.board import decode_board, encode_board
from rallypoint.etcd.leader import Leader
from rallypoint.etcd.leading import Draft, Leading, Saying
from rallypoint.etcd_client import EtcdClient, Lease, Resync, Watch
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import SOON_S
from tests.etcd_v3.harness import Observer
from tests.waiting import until

LAST_CALL_S = 0.3


class HeldLeader(Leader):
    """A leader that stands still before each of its writes until it is let go; if it is deaf, no news arrive either."""

    def __init__(self, observer: Observer, client: EtcdClient, lease: Lease, created: int, *, deaf: bool) -> None:
        self.is_deaf = deaf
        self.is_free = False
        self.starts = 0
        self.ended = threading.Event()
        self._drafts: queue.Queue[Draft] = queue.Queue()
        self._may_write = threading.Semaphore(0)
        super().__init__(client, observer.keys, observer.run, "a", lease, created, self.ended.set)

    def holds(self) -> Draft:
        """Wait until it is about to write; what."""
        return self._drafts.get(timeout=SOON_S)

    def let_go(self) -> None:
        """It may write what it holds."""
        self._may_write.release()

    def set_free(self) -> None:
        """It may write all that it wants to."""
        self.is_free = True
        self.let_go()

    @property
    def shown(self) -> int:
        return self._shown

    def _lead(self) -> None:
        self.starts += 1
        super()._lead()

    def _write(self, leading: Leading, draft: Draft) -> None:
        if not self.is_free:
            self._drafts.put(draft)
            assert self._may_write.acquire(timeout=SOON_S)
        super()._write(leading, draft)

    def _news(self, watch: Watch) -> Iterator[Sequence[Saying] | Resync]:
        return iter(()) if self.is_deaf else super()._news(watch)


class Scene:
    """A run whose nodes are words that a test writes into etcd; one node really leads."""

    def __init__(self, observer: Observer, client: EtcdClient) -> None:
        self.observer, self.client, self.keys = observer, client, observer.keys
        self._leader: HeldLeader | None = None

    def joins(self, name: str, bounds: Bounds) -> Lease:
        """A node joins; the lease that its word hangs on."""
        lease = self.client.grant(60)
        joined = Joined(Node(id=name, name=name, store=f"h:{name}"), bounds, Settings(last_call_s=LAST_CALL_S))
        self.client.put(self.keys.node(name), codec.encode_message(joined), lease=lease)
        return lease

    def leads(self, *, deaf: bool = False) -> HeldLeader:
        lease = self.client.grant(60)
        created = self.client.put(self.keys.leader, "a", lease=lease).revision
        self._leader = HeldLeader(self.observer, self.client, lease, created, deaf=deaf)
        return self._leader

    def close(self) -> None:
        if self._leader is not None:
            self._leader.set_free()
            self._leader.retire(0, SOON_S)


@pytest.fixture
def scene(cluster: Cluster, observer: Observer) -> Iterator[Scene]:
    with EtcdClient(cluster.endpoints, timeout_s=SOON_S) as client:
        scene = Scene(observer, client)
        yield scene
        scene.close()


def holds_a_world(scene: Scene) -> HeldLeader:
    """A leader that has published a board, and is about to publish the next one, with a world."""
    scene.joins("a", Bounds(2, 2))
    leader = scene.leads()
    assert leader.holds().board is not None
    leader.let_go()
    scene.joins("b", Bounds(2, 2))
    draft = leader.holds()
    assert draft.board is not None
    assert (draft.board.phase, len(draft.parts), sorted(draft.told)) == (Phase.SEALED, 1, ["a", "b"])
    return leader


def holds_what_one_node_is_told(scene: Scene) -> HeldLeader:
    """A leader of a world that is about to tell somebody something that is no news for the others."""
    leader = holds_a_world(scene)
    leader.let_go()
    scene.client.put(scene.keys.node("x"), "this is no message", lease=scene.client.grant(60))
    draft = leader.holds()
    assert (draft.board, list(draft.told)) == (None, ["x"])
    return leader


writes = pytest.mark.parametrize("holding", [holds_a_world, holds_what_one_node_is_told])


@writes
def test_who_is_no_longer_the_leader_writes_nothing_and_is_deposed(
    scene: Scene, holding: Callable[[Scene], HeldLeader], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has touched the board: the leader's key alone tells."""
    leader = holding(scene)
    scene.client.delete(scene.keys.leader)
    scene.client.put(scene.keys.leader, "b", lease=scene.client.grant(60))
    before = scene.observer.everything()
    with caplog.at_level(logging.INFO, logger="rallypoint.etcd"):
        leader.let_go()
        assert leader.ended.wait(SOON_S)
    assert scene.observer.everything() == before
    assert (leader.is_over, leader.starts) == (True, 1), "it does not try again"
    assert f"run {scene.observer.run!r}: another node leads it now" in caplog.messages


@writes
def test_who_does_not_know_the_board_writes_nothing_and_reads_it_again(
    scene: Scene, holding: Callable[[Scene], HeldLeader]
) -> None:
    """The leader leads still: the board's revision alone tells."""
    leader = holding(scene)
    found = scene.client.get(scene.keys.board)
    assert found is not None
    board = msgspec.structs.replace(decode_board(found.value, scene.observer.run), token="somebody's")
    rewritten = scene.client.put(scene.keys.board, encode_board(board), lease=board.lease).revision
    before = scene.observer.everything()
    leader.let_go()
    draft = leader.holds()
    assert scene.observer.everything() == before
    assert (leader.starts, leader.shown) == (2, rewritten), "it has read the board, and what it holds stands on that"
    leader.set_free()
    until(lambda: scene.observer.everything() != before, "it writes that")
    if draft.board is not None:
        until(lambda: scene.observer.board() == draft.board, "its board stands on the other's")
    else:
        told = scene.client.get(scene.keys.told("x"))
        assert told is not None
        assert isinstance(codec.decode_notice(told.value), Refused)
    assert not leader.is_over


def test_a_node_that_is_gone_by_the_last_call_is_in_no_world_though_its_leader_did_not_hear_of_it(scene: Scene) -> None:
    leases = [scene.joins(name, Bounds(2, 4)) for name in ("a", "b", "c")]
    leader = scene.leads(deaf=True)
    board = leader.holds().board
    assert board is not None
    assert board.phase is Phase.GATHERING
    scene.client.revoke(leases[2])  # its leader knows it, and hears nothing from now on
    leader.set_free()

    def is_sealed() -> bool:
        board = scene.observer.board()
        return board is not None and board.phase is Phase.SEALED

    until(is_sealed, "the last call is over")
    sealed = scene.observer.board()
    assert sealed is not None
    assert sealed.world is not None
    roster = estate.read_roster(scene.client, scene.keys, scene.observer.run, sealed.world)
    assert sorted(seated.node.id for seated in roster) == ["a", "b"]


class Dozer(Leader):
    """A leader with nothing to do that wakes so much later than planned; `readings` is how often it has read."""

    def __init__(self, client: EtcdClient, lease: Lease, late_s: float, clock: list[float]) -> None:
        self._client, self._lease, self.readings = client, lease, 0

        class Late(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None
                clock[0] += timeout + late_s
                return False

        self._wake = Late()

    def _read_all(self, leading: Leading) -> None:
        self.readings += 1


@pytest.mark.parametrize(("late_s", "readings"), [(0.5, 0), (1.5, 1), (3600.0, 1)])
def test_who_was_stopped_for_a_while_reads_before_it_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, late_s: float, readings: int
) -> None:
    lease, clock = scene.client.grant(60), [100.0]
    run = Leading(Run(run_id="run"), lambda: "token")
    assert run.wake_at() is None, "nothing is due"
    with scene.client.watch(scene.keys.said, prefix=True) as watch, monkeypatch.context() as stopped:
        dozer = Dozer(scene.client, lease, late_s, clock)
        stopped.setattr("rallypoint.etcd.leader.time", SimpleNamespace(monotonic=lambda: clock[0]))
        dozer._listen(run, watch)
    assert dozer.readings == readings
