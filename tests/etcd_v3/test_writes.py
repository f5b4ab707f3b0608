"""What a run costs etcd: a write a node and round, watches of the outcome only, nothing while nothing changes, nothing after.

Each test has an etcd of its own, so that whatever is counted is this run's.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from rallypoint.core.model import Bounds, Reason
from rallypoint.etcd.board import Board, decode_board
from rallypoint.etcd.leading import REMARK_INTERVAL_S, _news
from tests.etcd.servers import Cluster
from tests.etcd_client.stage import etcd, etcdctl
from tests.etcd_v3.harness import EtcdNode, EtcdStage, Observer, by_rank, observing, renewed
from tests.etcd_v3.test_lasting import member
from tests.waiting import until

versions = pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])


@pytest.fixture
def alone(version: str, stage: EtcdStage) -> Iterator[Cluster]:
    """One member that nobody else uses."""
    with etcd(version) as cluster:
        yield cluster
        stage.end()


@pytest.fixture
def onlooker(alone: Cluster, run: str) -> Iterator[Observer]:
    with observing(alone.endpoints, run) as observer:
        yield observer


def revision(observer: Observer) -> int:
    """That of the whole store: every write of anybody counts."""
    return observer.client.range("any").revision


def leases(cluster: Cluster) -> int:
    (found,) = re.findall(r"found (\d+) leases", etcdctl(cluster, "lease", "list"))
    return int(found)


# A round --------------------------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("size", [4, 16])
def test_a_round_costs_a_write_a_node_and_a_few_more(alone: Cluster, run: str, onlooker: Observer, size: int) -> None:
    """The leader's few do not grow with the nodes: a board or two, a roster, and what it clears away."""
    with ExitStack() as ends, ThreadPoolExecutor(size) as pool:
        nodes = [member(alone.endpoints, run, Bounds(size, size), f"n{number}") for number in range(size)]
        for node in nodes:
            ends.callback(node.leave, Reason.WITHDREW, patience_s=0.0)
        for _ in range(2):
            before = revision(onlooker)
            places = list(pool.map(lambda node: node.join(30.0), nodes))
            assert len({place.seal_id for place in places}) == 1
            until(lambda: onlooker.is_quiet(0.3), "all is said")
            assert 1 <= revision(onlooker) - before <= size + 8  # what is said at the same time is written together


def written(observer: Observer, since: int) -> Counter[str]:
    """How often each key of the run was written or deleted after a revision; boards that tell news, and remarks, apart."""
    found: Counter[str] = Counter()
    shown: Board | None = None
    for change in observer.changes(since + 1):
        name = change.key.decode().removeprefix(observer.keys.run)
        if change.is_delete:
            name += " deleted"
        elif name == "out/board":
            board = decode_board(change.value, observer.run)
            name += " news" if shown is None or _news(board) != _news(shown) else " remark"
            shown = board
        found[re.sub(r"^out/worlds/[^/]*/", "out/worlds/", name)] += 1
    return found


@versions
def test_a_word_and_a_place_are_written_once_a_round_and_nothing_else_grows_with_the_nodes(
    stage: EtcdStage, alone: Cluster, run: str, onlooker: Observer
) -> None:
    """Each node is a process of its own, so that no word is written along with another."""
    nodes = stage.nodes(*"abcdef")
    for round_ in (1, 2):
        before, start = revision(onlooker), time.monotonic()
        for node in nodes:
            if round_ == 1:
                node.join(alone.endpoints, len(nodes), run)
            else:
                node.again()
        by_rank(nodes, round=round_)
        until(lambda: onlooker.is_quiet(2 * REMARK_INTERVAL_S), "all is said, and remarked upon")
        remarks = (time.monotonic() - start) / REMARK_INTERVAL_S
        found = written(onlooker, before)
        assert found.pop("out/board news") in (1, 2), "that it gathers, or is broken, and that it is sealed"
        assert found.pop("out/board remark", 0) <= remarks
        ids = [quote(node.standing()["node"], safe="") for node in nodes]
        assert found == {
            **{f"in/nodes/{node_id}": 1 for node_id in ids},
            **{f"out/told/{node_id}": 1 for node_id in ids},
            "out/worlds/000000": 1,
            **({"leader": 1} if round_ == 1 else {"out/worlds/000000 deleted": 1}),
        }


# Watches --------------------------------------------------------------------------------------------------------------


def watched(nodes: Sequence[EtcdNode], observer: Observer) -> dict[str, set[str]]:
    """What each node watches, without the run's name and the node's own."""
    found = {}
    for node in nodes:
        node.order("confess")
        lines = node.expect("confessed")["watches"]
        keys = (re.match(r"b'([^']*)'", line) for line in lines)
        names = (match[1].removeprefix(observer.keys.run) for match in keys if match is not None)
        found[node.standing()["node"]] = {re.sub(r"^out/told/.*", "out/told", name) for name in names}
    return found


@versions
def test_everybody_watches_the_outcome_a_few_the_leader_and_the_leader_alone_what_is_said(
    stage: EtcdStage, alone: Cluster, run: str, onlooker: Observer
) -> None:
    nodes = stage.nodes(*"abcdefg")
    for node in nodes:
        node.join(alone.endpoints, 7, run)
    by_rank(nodes)
    until(lambda: (board := onlooker.board()) is not None and len(board.successors) == 3, "they are named")
    board, leader = onlooker.board(), onlooker.leader()
    assert board is not None

    def is_as_it_ought_to_be() -> bool:
        return watched(nodes, onlooker) == {
            node_id: {"out/board", "out/told"}
            | ({"in/"} if node_id == leader else set())
            | ({"leader"} if node_id in board.successors else set())
            for node_id in (node.standing()["node"] for node in nodes)
        }

    until(is_as_it_ought_to_be, f"the leader {leader} and the successors {board.successors} watch more than the others")
    # And that is all, in etcd's own words; but for one who led before its own watch of the board had begun, which has two.
    with urllib.request.urlopen(f"http://{alone.endpoint}/metrics", timeout=10) as page:
        (total,) = re.findall(r"^etcd_debugging_mvcc_watcher_total (\d+)", page.read().decode(), re.MULTILINE)
    assert int(total) - (2 * len(nodes) + 3 + 1) in (0, 1)


# Idling ---------------------------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("case", ["a world is up", "a spare stands by", "the run is closed"])
def test_the_history_does_not_grow_while_nothing_changes(
    stage: EtcdStage, alone: Cluster, run: str, onlooker: Observer, case: str
) -> None:
    nodes = stage.nodes("a", "b")
    for node in nodes:
        node.join(alone.endpoints, 2, run)
    by_rank(nodes)
    if case == "a spare stands by":
        (spare,) = stage.nodes("spare")
        spare.join(alone.endpoints, 2, run, role="spare")
        spare.expect("joins")
        until(lambda: onlooker.words() == 3, "it is here")
        nodes.append(spare)
    if case == "the run is closed":
        nodes[0].ask("close", "closed")
        for node in nodes:
            assert node.changed()["closed"]
    # What the leader clears away after it has told everybody.
    until(lambda: onlooker.is_quiet(2 * REMARK_INTERVAL_S), "all is said, and remarked upon")
    before = revision(onlooker)
    for _ in range(4):
        renewed(nodes)
    assert revision(onlooker) == before


# Afterwards -----------------------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("ending", ["killed", "finished", "closed"])
def test_no_key_and_no_lease_is_left_of_a_run(
    stage: EtcdStage, alone: Cluster, run: str, onlooker: Observer, ending: str
) -> None:
    nodes = stage.nodes("a", "b")
    for node in nodes:
        node.join(alone.endpoints, 2, run, run_lease=3, closed_ttl=1.0)
    by_rank(nodes)
    assert leases(alone) == 3, "the nodes' and the run's"
    if ending == "finished":
        for node in nodes:
            node.order("finish")
        for node in nodes:
            assert node.expect("left")["done"]
    else:
        if ending == "closed":
            nodes[0].ask("close", "closed")
        for node in nodes:
            node.kill()
    until(onlooker.is_empty, "no key is left")
    until(lambda: leases(alone) == 0, "and no lease")


KEEPS_A_STORE = """
import sys
import rallypoint
from rallypoint.etcd import leader
leader.RUN_LEASE_S = 3
place = rallypoint.join("etcd://" + sys.argv[1], run=sys.argv[2], nodes=2, lease_ttl=2, store="etcd",
                        etcd_prefix="/test", local_addr="127.0.0.1", join_timeout=30)
place.store.set(f"greeting{place.rank}", b"x" * 100_000)
print("stored", flush=True)
place.changed.wait()
"""


@versions
def test_no_key_and_no_lease_is_left_of_a_killed_run_that_kept_its_store_in_etcd(
    alone: Cluster, run: str, onlooker: Observer
) -> None:
    command = [sys.executable, "-c", KEEPS_A_STORE, alone.endpoints, run]
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == "stored\n"
        stored = onlooker.client.range(f"{onlooker.keys.run}stores/", prefix=True).kvs
        assert stored
        assert all(kv.lease for kv in onlooker.everything())
    finally:
        for node in nodes:
            node.send_signal(signal.SIGKILL)
            node.wait()
            assert node.stdout is not None
            node.stdout.close()
    until(onlooker.is_empty, "no key is left")
    until(lambda: leases(alone) == 0, "and no lease")
