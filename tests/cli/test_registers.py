"""`status`, `runs`, `close` and `evict` by the same URLs as `rallypoint.join`, on real nodes that elect their server."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli_processes import Process, Started, answer, answer_json, free_port, refused
from tests.support.etcd_servers import shared

PLACE = """
import sys, rallypoint
with rallypoint.join(sys.argv[1], run=sys.argv[2], node_name="node1", last_call_timeout=0,
                     local_addr="127.0.0.1") as place:
    print("placed", flush=True)
    place.changed.wait()
    print("changed:", place._member.view.why, flush=True)
"""
AGAIN = """
import sys, rallypoint
endpoint, run, name = sys.argv[1:]
with rallypoint.join(endpoint, run=run, nodes="1:3", node_name=name, last_call_timeout=60, join_timeout=60,
                     local_addr="127.0.0.1") as place:
    while True:
        seal_id, ranks = place._member.link.session.server_ranks
        serves = place.fence.endswith(seal_id) and place.rank in ranks
        print("placed among", place.world_size, "and serves" if serves else "", flush=True)
        place.changed.wait()
        place.again()
"""
HANDLER = """
import sys
from rallypoint.elastic import RendezvousParameters, get_rendezvous_handler
from rallypoint.api import Change
endpoint, run, kind = sys.argv[1:]
handler = get_rendezvous_handler(RendezvousParameters(
    "c10d", endpoint, run, 1, 1, "127.0.0.1", store_type=kind, node_name="node1"))
store = handler.next_rendezvous().store
assert type(store).__module__.startswith("torch"), store
store.set("looks like a document", "e30=")
print("placed", flush=True)
Change(handler._member).wait()
print("changed:", handler._member.view.why, flush=True)
"""


class Meeting:
    """A medium with a node of one run, alone in its world: how the node is started, and the endpoint for commands."""

    def __init__(self, program: str, *arguments: str, endpoint: str, run: str = "llama") -> None:
        self.command = ("-c", program, *arguments)
        self.run = run
        self.endpoint = endpoint
        self.at = ("--endpoint", endpoint)


def _c10d(folder: Path) -> Meeting:
    endpoint = f"c10d://127.0.0.1:{free_port()}"
    return Meeting(PLACE, endpoint, "llama", endpoint=endpoint)


def _c10d_torch(folder: Path) -> Meeting:
    place = f"127.0.0.1:{free_port()}"
    return Meeting(HANDLER, place, "llama", "tcp", endpoint=f"c10d://{place}")


def _file(folder: Path) -> Meeting:
    endpoint = f"file://{folder / 'store'}"
    return Meeting(PLACE, endpoint, "llama", endpoint=endpoint)


def _file_torch(folder: Path) -> Meeting:
    path = str(folder / "store")
    return Meeting(HANDLER, path, "llama", "file", endpoint=f"file://{path}")


def _etcd_v2(folder: Path) -> Meeting:
    endpoint, run = f"etcd-v2://{shared().endpoint}", f"team-{uuid.uuid4().hex}/llama"
    return Meeting(PLACE, endpoint, run, endpoint=endpoint, run=run)


MEETINGS: dict[str, Callable[[Path], Meeting]] = {
    "c10d": _c10d,
    "c10d, torch's store": _c10d_torch,
    "file": _file,
    "file, torch's store": _file_torch,
    "etcd-v2": _etcd_v2,
}


@pytest.fixture(params=MEETINGS)
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> Meeting:
    return MEETINGS[request.param](tmp_path)


@pytest.fixture
def node(started: Started, meeting: Meeting) -> Process:
    alone = started.add(Process(*meeting.command))
    alone.expect("placed")
    return alone


def test_status_runs_and_evict(node: Process, meeting: Meeting) -> None:
    run, at = meeting.run, meeting.at
    first, header, row, messages = answer("status", run, *at).splitlines()
    assert first == f"run {run!r} (sealed, nodes 1): round 1 runs with 1 node"
    assert header.split() == ["node", "rank", "standing", "address", "id"]
    assert re.fullmatch(r"node1 +0 +holds its world +127\.0\.0\.1 +node1\.[0-9a-f]+_[0-9]+", row)
    assert messages.startswith("the server's messages so far: ")
    listed = [line for line in answer("runs", *at).splitlines() if line.startswith(f"{run} ")]
    assert [re.sub(" +", " ", line) for line in listed] == [f"{run} sealed 1 1 round 1 runs with 1 node"]
    assert run in {each["run_id"] for each in answer_json("status", *at)}  # etcd is shared with other tests
    assert refused("status", "other", *at) == f"there is no run 'other' at {meeting.endpoint}"
    assert refused("evict", run, "node7", *at).startswith(f"there is no node 'node7' in run {run!r}")
    assert answer("evict", run, "node1", *at).startswith(f"node 'node1' was evicted from run {run!r}")
    node.expect("changed: node1 ")


def test_close_tells_the_nodes_why_and_frees_the_run_id(node: Process, meeting: Meeting, started: Started) -> None:
    told = answer("close", meeting.run, *meeting.at, "--why", "the budget is spent")
    # The node ends at once, and with it the server, and a store that it served.
    assert re.match(rf"run {meeting.run!r}: closed( as failed: the budget is spent.*)?$", told)
    node.expect("changed: the budget is spent")
    node.ends()
    # Long before the time is over for which a closed run is remembered.
    started.add(Process(*meeting.command)).expect("placed")


@pytest.mark.parametrize("medium", ["file", "etcd-v2"])
def test_an_eviction_is_kept_by_the_server_and_ends_with_it(started: Started, tmp_path: Path, medium: str) -> None:
    meeting = MEETINGS[medium](tmp_path)
    run, at, names = meeting.run, meeting.at, ("node1", "node2", "node3")
    command = ("-c", AGAIN, meeting.endpoint, run)
    nodes = {name: started.add(Process(*command, name)) for name in names}
    serves = {name: "serves" in node.expect(r"placed among 3.*")[0] for name, node in nodes.items()}
    server, other, out = sorted(names, key=lambda name: not serves[name])
    assert sum(serves.values()) == 1
    told = answer("evict", run, out, "--for", "1h", "--why", "its card fails", *at)
    assert told == f"node {out!r} was evicted from run {run!r} and is kept out for 1 h\n"
    for name in (server, other):
        nodes[name].expect("placed among 2")
    status = answer("status", run, *at)
    assert f"round 2 runs with 2 nodes ({out} is kept out by an administrator)\n" in status
    assert re.search(
        rf"^{out} +evicted, kept out for another (1 h|59 min \d+ s): its card fails ", status, re.MULTILINE
    )
    (kept_out,) = answer_json("status", run, *at)["kept_out"]
    assert (kept_out["name"], kept_out["why"]) == (out, "its card fails")
    assert 3500 < kept_out["left_s"] <= 3600
    # What the server knew of it ends with the server.
    nodes[server].popen.kill()
    for name in (other, out):
        nodes[name].expect("placed among 2")
    assert answer_json("status", run, *at)["kept_out"] == []


@pytest.mark.parametrize("medium", ["file", "etcd-v2"])
def test_when_all_nodes_were_killed_the_record_is_shown(started: Started, tmp_path: Path, medium: str) -> None:
    """A store file that nobody uses any more is not started anew by those who look."""
    meeting = MEETINGS[medium](tmp_path)
    node = started.add(Process(*meeting.command))
    node.expect("placed")
    node.popen.kill()
    node.ends()
    for _ in range(2):
        told = answer_json("status", meeting.run, *meeting.at)
        assert (told["phase"], told["live"]) == ("sealed", 0)
        assert "this is the record of epoch 1: round 1 was sealed with 1 node" in told["situation"]
    said = refused("close", meeting.run, *meeting.at)
    assert said.startswith(f"nothing was done to run {meeting.run!r} at {meeting.endpoint}: no server answers: ")


def test_nobody_waits_for_torch_or_asyncio(started: Started, tmp_path: Path) -> None:
    meeting = MEETINGS["file, torch's store"](tmp_path)
    started.add(Process(*meeting.command)).expect("placed")
    program = (
        "import sys\n"
        "from rallypoint.cli import main\n"
        f"assert main(['status', 'llama', '--endpoint', {meeting.endpoint!r}]) == 0\n"
        "print(*sorted({'asyncio', 'torch'} & set(sys.modules)), file=sys.stderr, end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "round 1 runs with 1 node" in done.stdout
    assert done.stderr == "", "these take long to import, and nothing here needs them"
