"""A worker that cannot be killed: no process can be put into state D here, so the sweep is made to say that there is one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from rallypoint.cli import main
from rallypoint.launcher.processes import ProcessGuard, Survivor

ProcessGuard.sweep = lambda *_: [Survivor(4711, "D", "python")]
raise SystemExit(main(["run", "--", "sh", "-c", "exit 5"]))
"""


def test_a_worker_that_cannot_be_killed_is_named_and_its_node_leaves() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 84
    assert "these processes cannot be killed: 4711 (python, state D)" in done.stderr
