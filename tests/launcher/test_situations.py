"""The situations in which torchrun is tested (tests/torchrun), as far as they are not in another file here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until

SETTINGS = "last_call_timeout=0.2,heartbeat_interval=0.2,heartbeat_timeout=2,join_timeout=60,is_host=false"
WORKER = """
import os, sys, time
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")), os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    if os.path.exists(mine := sys.argv[1] + os.environ["MINE"]):
        how = open(mine).read()
        sys.exit(int(how) if how.isdigit() else how)
    time.sleep(0.02)
"""
# Each of two fails as soon as the other one is gone; one that is asked to end takes its time, as for a last checkpoint.
HOLDS_ON = """
import os, signal, socket, sys, time
import rallypoint
me, stop = rallypoint.worker(), sys.argv[1]
def wait(*_):
    if me.world_size == 2:
        line.close()
    while not os.path.exists(stop):
        time.sleep(0.02)
    sys.exit(0)
print(me.rank, me.world_size, os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), flush=True)
if me.world_size == 1:
    wait()
if me.rank == 1:
    listener = socket.create_server(("127.0.0.1", 0))
    me.store.set("port", str(listener.getsockname()[1]))
    line = listener.accept()[0]
else:
    line = socket.create_connection(("127.0.0.1", int(me.store.get("port"))))
signal.signal(signal.SIGTERM, wait)
print("holds on", flush=True)
line.recv(1)
raise ConnectionResetError("Connection closed by peer")
"""


class Job:
    """Launchers that meet at a server of their own."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        self._launch, self.stop, self.port = launch, folder / "stop", free_port()

    def start(self, nodes: str, *more: str, name: str = "", program: str = WORKER) -> subprocess.Popen[str]:
        meeting = ("--nnodes", nodes, "--rdzv", f"127.0.0.1:{self.port}", "--run-id", "job", "--rdzv-conf", SETTINGS)
        command = (sys.executable, "-c", program, str(self.stop))
        return self._launch(*meeting, "--max-restarts", "0", *more, "--", *command, MINE=f".{name}")

    def end(self, name: str, how: str) -> None:
        """Let the worker of this launcher end with a code, or with last words and code 1."""
        written = self.stop.with_name("how")
        written.write_text(how)
        written.rename(self.stop.with_name(f"stop.{name}"))

    def finish(self, *launchers: subprocess.Popen[str]) -> None:
        self.stop.touch()
        assert [launcher.wait(PATIENCE_S) for launcher in launchers] == [0] * len(launchers)

    @contextmanager
    def served(self) -> Iterator[None]:
        """A server while the block lasts; it is killed at its end."""
        state = str(self.stop.with_name("state"))
        command = [sys.executable, "-m", "rallypoint", "serve", "--bind", f"127.0.0.1:{self.port}", "--state", state]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert server.stdout is not None
        try:
            assert any("listening" in line for line in server.stdout)
            yield
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


def started(launcher: subprocess.Popen[str]) -> tuple[int, int, int, int]:
    """Rank, size, restarts and pid of a worker that has just started."""
    assert launcher.stdout is not None
    rank, size, restarts, pid = map(int, launcher.stdout.readline().rpartition("] ")[2].split())
    return rank, size, restarts, pid


def by_rank(launchers: list[subprocess.Popen[str]]) -> dict[int, tuple[subprocess.Popen[str], int]]:
    """Launchers, and the pids of their workers, in the first world that has all of them: some may have begun without others."""
    found = {}
    for launcher in launchers:
        rank, size, _, pid = started(launcher)
        while size < len(launchers):
            rank, size, _, pid = started(launcher)
        found[rank] = (launcher, pid)
    return dict(sorted(found.items()))


def said(launcher: subprocess.Popen[str], words: str) -> None:
    assert launcher.stderr is not None
    lines = []
    for line in launcher.stderr:
        lines.append(line)
        if words in line:
            return
    raise AssertionError(f"not said: {words!r}; but:\n{''.join(lines)}")


@pytest.fixture
def job(launch: Launch, tmp_path: Path) -> Job:
    return Job(launch, tmp_path)


def test_workers_keep_their_process_ids_while_the_server_is_killed_and_restarted(job: Job) -> None:
    with job.served():
        both = [job.start("2") for _ in range(2)]
        pids = [started(launcher)[3] for launcher in both]
    with job.served():
        third = job.start("2")
        said(third, "standing by")  # so the server knows the run again
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        job.finish(*both)
        assert third.wait(PATIENCE_S) == 0
    assert all(launcher.stdout is not None and launcher.stdout.read() == "" for launcher in both), "nobody started anew"


def test_a_launcher_that_starts_before_the_server_waits_for_it(job: Job) -> None:
    early = job.start("1")
    said(early, "waiting for")
    with job.served():
        assert started(early)[:3] == (0, 1, 0)
        job.finish(early)


def test_a_run_id_is_used_again_at_once_after_everything_was_killed(job: Job) -> None:
    with job.served():
        old = [job.start("2") for _ in range(2)]
        for launcher in old:
            started(launcher)
        for launcher in old:
            launcher.kill()
        fresh = [job.start("2") for _ in range(2)]
        assert sorted(started(launcher)[:3] for launcher in fresh) == [(0, 2, 0), (1, 2, 0)]
        job.finish(*fresh)


def test_a_spare_takes_the_place_of_a_killed_node(job: Job) -> None:
    with job.served():
        both = [job.start("2") for _ in range(2)]
        ranks = {started(launcher)[0]: launcher for launcher in both}
        spare = job.start("2")
        said(spare, "standing by")
        ranks[1].kill()
        assert [started(ranks[0])[:3], started(spare)[:3]] == [(0, 2, 0), (1, 2, 0)]
        job.finish(ranks[0], spare)


def test_a_paused_launcher_comes_back_as_a_newcomer_and_its_old_workers_are_gone(job: Job) -> None:
    with job.served():
        both = [job.start("1:2") for _ in range(2)]
        ranks = by_rank(both)
        paused, old_pid = ranks[1]
        paused.send_signal(signal.SIGSTOP)
        assert started(ranks[0][0])[:3] == (0, 1, 0)
        paused.send_signal(signal.SIGCONT)
        assert [started(ranks[0][0])[:3], started(paused)[:3]] == [(0, 2, 0), (1, 2, 0)]
        assert not Path(f"/proc/{old_pid}").exists()
        job.finish(ranks[0][0], paused)


def two_that_hold_on(job: Job) -> dict[int, tuple[subprocess.Popen[str], int]]:
    """Launchers, and pids of their workers, by rank.  A silent node is lost later than a verdict waits for a report."""
    slow = SETTINGS.replace("heartbeat_timeout=2", "heartbeat_timeout=4")
    ranks = by_rank([job.start("1:2", "--rdzv-conf", slow, program=HOLDS_ON) for _ in range(2)])
    for launcher, _ in ranks.values():
        assert launcher.stdout is not None
        assert launcher.stdout.readline().endswith("holds on\n")
    return ranks


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_fails_while_the_loss_of_its_peer_is_undecided_is_not_charged(job: Job, victim: int) -> None:
    """The machine does not answer any more, but for the kernel, which ends connections; rank 0 has the round's store."""
    with job.served():
        ranks = two_that_hold_on(job)
        (silent, pid), (left, _) = ranks[victim], ranks[1 - victim]
        silent.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        said(left, "of this node failed because of that, and it is not charged")
        assert started(left)[:3] == (0, 1, 0)
        silent.kill()
        job.finish(left)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_fails_because_its_peer_was_asked_to_end_is_not_charged(job: Job, victim: int) -> None:
    with job.served():
        ranks = two_that_hold_on(job)
        asked, left = ranks[victim][0], ranks[1 - victim][0]
        asked.send_signal(signal.SIGTERM)
        said(left, "was stopped by SIGTERM: the workers of this node failed because of that, and it is not charged")
        assert asked.poll() is None, "its worker still saves"
        job.stop.touch()
        assert asked.wait(PATIENCE_S) == 83
        assert started(left)[:3] == (0, 1, 0)
        job.finish(left)


def test_a_report_is_repeated_to_a_server_that_has_not_heard_it(job: Job) -> None:
    with job.served():
        both = [job.start("2", name=name) for name in ("good", "bad")]
        pids = [started(launcher)[3] for launcher in both]
        # It names a peer, so the verdict waits for the other node, of which no worker has failed.
        job.end("bad", "Connection closed by peer")
        until(lambda: not Path(f"/proc/{pids[1]}").exists(), "the worker has failed")
    with job.served():
        said(both[1], "failed first: it ended with code 1: Connection closed by peer")
        assert [launcher.wait(PATIENCE_S) for launcher in both] == [1, 1]


def test_who_gives_up_where_others_can_go_on_leaves_alone(job: Job) -> None:
    with job.served():
        good, bad = job.start("1:2", name="good"), job.start("1:2", "--restart-window", "60", name="bad")
        until(lambda: started(good)[1] == 2, "both are in")
        job.end("bad", "7")
        assert bad.wait(PATIENCE_S) == 7
        assert started(good)[:3] == (0, 1, 0)
        job.finish(good)


def test_who_gives_up_where_all_are_needed_takes_the_run_along(job: Job) -> None:
    with job.served():
        good, bad = job.start("2", name="good"), job.start("2", name="bad")
        assert sorted([started(good)[0], started(bad)[0]]) == [0, 1]
        job.end("bad", "7")
        assert [good.wait(PATIENCE_S), bad.wait(PATIENCE_S)] == [7, 7], "the first failing worker's code, everywhere"


def test_workers_whose_launcher_is_killed_do_not_hold_the_others_up(job: Job) -> None:
    with job.served():
        nodes = [job.start("2:3") for _ in range(3)]
        ranks = by_rank(nodes)
        victim, pid = ranks.pop(2)
        os.kill(victim.pid, signal.SIGKILL)
        survivors = [launcher for launcher, _ in ranks.values()]
        assert [started(launcher)[:2] for launcher in survivors] == [(0, 2), (1, 2)]
        until(lambda: not Path(f"/proc/{pid}").exists(), "its worker is gone")
        job.finish(*survivors)


@pytest.mark.parametrize("victim", ["the other", "itself"])
def test_who_has_finished_serves_the_others_until_they_are_gone_or_it_is_asked_to_go(job: Job, victim: str) -> None:
    with job.served():
        nodes = {name: job.start("2", name=name) for name in ("one", "two")}
        (_, name), (_, last) = sorted((started(launcher)[0], name) for name, launcher in nodes.items())
        done, other = nodes[name], nodes[last]
        job.end(name, "0")
        said(done, "and stays until")  # rank 0 has the round's store
        if victim == "itself":
            done.send_signal(signal.SIGTERM)
            assert done.wait(PATIENCE_S) == 83
            job.finish(other)
        else:
            other.kill()
            assert done.wait(PATIENCE_S) == 0


def test_the_address_that_is_named_is_that_of_the_node(launch: Launch) -> None:
    launcher = launch("--local-addr", "127.0.0.2", "--", "sh", "-c", "echo $MASTER_ADDR $JAX_COORDINATOR_ADDRESS")
    out, err = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 0, err
    assert [address.partition(":")[0] for address in out.split()] == ["127.0.0.2"] * 2


def test_an_endpoint_that_is_something_else_is_named(launch: Launch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        settings = "join_timeout=4,heartbeat_interval=0.2,heartbeat_timeout=1"
        launcher = launch("--rdzv", f"127.0.0.1:{server.server_port}", "--rdzv-conf", settings, "--", "true")
        _, err = launcher.communicate(timeout=PATIENCE_S)
        server.shutdown()
    assert launcher.returncode == 80
    assert "an HTTP server is there" in err
