"""A worker that cannot be killed: no process can be put into state D here, so the sweep is made to say that there is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rallypoint.launcher.guard import ControlGroup, kill_descendants
from tests.launcher.conftest import Launch
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S

PROGRAM = """
import sys
from rallypoint.cli import main
from rallypoint.launcher.processes import ProcessGuard, Survivor

ProcessGuard.sweep = lambda *_: [Survivor(4711, "D", "python")]
raise SystemExit(main(["run", *sys.argv[1:], "--", "sh", "-c", "exit 5"]))
"""


def test_a_worker_that_cannot_be_killed_is_named_and_its_node_leaves(launch: Launch) -> None:
    conf = "last_call_timeout=0.2,join_timeout=60"
    meeting = ("--nnodes", "1:2", "--rdzv", f"127.0.0.1:{free_port()}", "--rdzv-conf", conf)
    other = launch(*meeting, "--", "sh", "-c", "echo of $WORLD_SIZE; exec sleep 600")
    assert other.stdout is not None
    assert other.stdout.readline() == "of 1\n"
    command = [sys.executable, "-c", PROGRAM, *meeting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 84
    assert "these processes cannot be killed: 4711 (python, state D)" in done.stderr
    assert [other.stdout.readline().rpartition("] ")[2] for _ in range(2)] == ["of 2\n", "of 1\n"]
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=PATIENCE_S)
    assert other.returncode == 83


def test_a_sweep_ends_in_bounded_time_and_describes_what_is_left() -> None:
    with subprocess.Popen(["true"]) as done:
        os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
        # Signals do nothing to one that has ended and was not reaped, as to one in state D.
        left = kill_descendants(0.1, ControlGroup(""), look=lambda _: [done.pid])
        assert left == [(done.pid, "Z", "true")]
