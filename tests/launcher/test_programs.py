"""Real programs under `rallypoint run`: torch's and JAX's, on the embedded server and on etcd, and one that counts through kills."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rallypoint.cli.demo_counter import last_checkpoint
from rallypoint.launcher.exit_codes import LaunchExit
from rallypoint.launcher.guard import descendants
from tests.launcher.conftest import Launch
from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until

SETTINGS = "last_call_timeout=0.3,heartbeat_timeout=5,join_timeout=60"
COUNTER = "rallypoint.cli.demo_counter"
TRAIN = str(Path(__file__).parents[2] / "examples" / "train.py")
JAX_SUM = """
import os, jax
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
print("sum of", jax.process_count(), "ranks:", int(ranks.sum()), flush=True)
"""


# The quick suite runs one program on each.
EMBEDDED, ON_ETCD = (pytest.param(name, marks=pytest.mark.soak) for name in ("embedded", "etcd"))


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> str:
    """Where the launchers of a test meet."""
    return where(request.param)


def where(place: str) -> str:
    return f"127.0.0.1:{free_port()}" if place == "embedded" else f"etcd://{shared().endpoint}"


def meeting(endpoint: str, nodes: str, run_id: str, *more: str) -> list[str]:
    return ["--rdzv", endpoint, "--run-id", run_id, "--nnodes", nodes, "--rdzv-conf", ",".join([SETTINGS, *more])]


@pytest.mark.parametrize("endpoint", ["embedded", ON_ETCD], indirect=True)
def test_a_script_written_for_torchrun_trains_through_the_loss_of_a_worker(
    launch: Launch, endpoint: str, tmp_path: Path
) -> None:
    options = ["--checkpoint", str(tmp_path / "saved.pt"), "--steps", "40", "--every", "5", "--pause-s", "0.02"]
    both = [
        launch(*meeting(endpoint, "2", tmp_path.name), "--", sys.executable, TRAIN, *options, OMP_NUM_THREADS="1")
        for _ in range(2)
    ]
    said: list[dict[str, object]] = []
    assert both[0].stdout is not None
    victim = 0
    for line in both[0].stdout:
        said.append(json.loads(line.partition("] ")[2]))
        if said[-1]["event"] == "step" and said[-1]["step"] == 12 and not victim:
            victim = int(str(said[-1]["pid"]))
            os.kill(victim, signal.SIGKILL)
    assert [process.wait(PATIENCE_S) for process in both] == [0, 0]
    trained = [event for event in said if event["event"] == "training"]
    assert [event["world_size"] for event in trained] == [2, 2]
    assert trained[1]["step"] == 10, "it goes on from the checkpoint"
    assert max(int(str(event["step"])) for event in said if event["event"] == "step") == 39


@pytest.mark.parametrize("endpoint", ["etcd", EMBEDDED], indirect=True)
def test_processes_of_jax_find_each_other(launch: Launch, endpoint: str, tmp_path: Path) -> None:
    program = ("--nproc-per-node", "2", "--", sys.executable, "-c", JAX_SUM)
    both = [launch(*meeting(endpoint, "2", tmp_path.name), *program, JAX_PLATFORMS="cpu") for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    lines = [line.partition("] ")[2] for out, _ in told for line in out.splitlines()]
    assert [line for line in lines if line.startswith("sum")] == ["sum of 4 ranks: 6"] * 4


class Counters:
    """Launchers of the demo's counter; their output goes to files, because nobody reads it meanwhile."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self._endpoint, self._folder = endpoint, folder
        self.launchers: list[subprocess.Popen[bytes]] = []
        self._log = folder / "log"
        self._disturbed = 0
        """The newest round when something was last killed."""

    def start(self) -> None:
        limits = ("--max-restarts", "1000", "--no-progress", "1000", "--grace", "2")
        program = ("--", sys.executable, "-m", COUNTER, str(self._folder))
        command = [sys.executable, "-m", "rallypoint", "run", *meeting(self._endpoint, "2:3", self._folder.name)]
        with self._log.open("ab") as log:
            self.launchers.append(subprocess.Popen([*command, *limits, *program], stdout=log, stderr=log))

    def await_rounds(self, number: int) -> None:
        """Wait until so many rounds have saved a checkpoint."""
        try:
            until(lambda: len(list(self._folder.glob("round-*.json"))) >= number)
        except AssertionError as exc:
            raise AssertionError(self._log.read_text()[-6000:]) from exc

    def await_all(self) -> None:
        """Wait until all launchers are in one world: one that comes when the others have finished would wait in vain."""

        def are_all_in() -> bool:
            told = self._places()
            newest = max(number for number, _ in told)
            return newest > self._disturbed and [size for number, size in told if number == newest] == [3] * 3

        until(are_all_in, "three launchers are in the newest round")

    def _places(self) -> list[tuple[int, int]]:
        """Rounds in which launchers had a place, and how many nodes each had."""
        told = re.findall(r"round (\d+): this node is \d of (\d)", self._log.read_text())
        return [(int(number), int(size)) for number, size in told]

    def disturb(self, randomness: random.Random) -> None:
        """Kill a worker, or end a launcher, for which another one comes."""
        self._disturbed = max(number for number, _ in self._places())
        launcher = randomness.choice(self.launchers)
        how = randomness.choice(["worker", "killed", "asked"])
        if how == "worker":
            for pid in descendants(launcher.pid):
                with suppress(OSError):  # it ended just now
                    if COUNTER.encode() == Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2]:
                        os.kill(pid, signal.SIGKILL)
                        return
        launcher.send_signal(signal.SIGTERM if how == "asked" else signal.SIGKILL)
        # One that has just started ends by the signal itself.
        expected = (LaunchExit.PREEMPTED, -signal.SIGTERM) if how == "asked" else (-signal.SIGKILL,)
        assert launcher.wait(PATIENCE_S) in expected
        self.launchers.remove(launcher)
        self.start()

    def end(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()


@pytest.mark.parametrize(
    ("place", "rounds"),
    [
        ("embedded", 20),
        pytest.param("embedded", 100, marks=pytest.mark.soak),
        pytest.param("etcd", 100, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_lost_and_nothing_counted_twice_through_random_kills(
    place: str, rounds: int, tmp_path: Path
) -> None:
    randomness = random.Random(22)
    counters = Counters(where(place), tmp_path)
    try:
        for _ in range(3):
            counters.start()
        for number in range(1, rounds + 1):
            counters.await_rounds(number)
            counters.disturb(randomness)
        counters.await_all()
        (tmp_path / "enough").touch()
        assert [launcher.wait(PATIENCE_S) for launcher in counters.launchers] == [0] * 3
        counted, total = last_checkpoint(tmp_path)
        assert counted >= 2 * rounds
        assert total == counted * (counted + 1) // 2
    finally:
        counters.end()
