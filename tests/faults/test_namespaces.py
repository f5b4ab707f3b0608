"""What needs a clock or a network of its own (rules 6, 10): as root, in namespaces that end with their processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support.node_processes import NIMBLE, ROOT, Processes, by_rank

pytestmark = pytest.mark.root

SKEW_S = 20
AHEAD = ("unshare", "--time", "--monotonic", str(SKEW_S), "--boottime", str(SKEW_S), "--fork", "--kill-child")
ALONE = ("unshare", "--net", "--fork", "--kill-child")


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Check that this machine lets us have them, and say what is missing."""
    if shutil.which("unshare") is None:
        pytest.fail("There is no `unshare`: install util-linux (apt-get install util-linux).", pytrace=False)
    for command in (AHEAD, ALONE):
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.fail(
                f"`{' '.join(command)}` does not work here ({tried.stderr.strip()}): it needs root, util-linux 2.36 and a "
                f"kernel of 5.6 or later; in a container, the right to make namespaces (CAP_SYS_ADMIN).",
                pytrace=False,
            )


@pytest.mark.parametrize("who", ["a node", "the host"])
def test_a_clock_that_is_twenty_seconds_ahead_costs_nobody_its_place(processes: Processes, who: str) -> None:
    server = processes.server()
    endpoint = server.endpoint
    a, b, ahead = *processes.nodes("a", "b"), processes.node("ahead", before=AHEAD)
    skew_s = ahead.ask("clock", "clock")["monotonic"] - a.ask("clock", "clock")["monotonic"]
    assert SKEW_S - 5 < skew_s < SKEW_S + 5
    given = dict(NIMBLE)
    if who == "the host":
        server.kill()
        ahead.join(endpoint, "2:3", **given, is_host=True)
        ahead.expect("stderr")
    else:
        ahead.join(endpoint, "2:3", **given)
    for node in (a, b):
        node.join(endpoint, "2:3", **given)
    nodes = by_rank([a, b, ahead], round=1)
    # Three time-outs go by.
    for node in nodes:
        node.order("bide", seconds=3.0)
    for node in nodes:
        assert not node.expect("bided")["news"]
        node.ask("reach", "reached")
        assert node.waiting() == 0
        assert node.heard("changed") == []
    b.kill()
    for node in (a, ahead):
        node.changed()
        node.again()
    by_rank([a, ahead], round=2)


@pytest.mark.parametrize("count", [1000, pytest.param(4000, marks=pytest.mark.soak)])
def test_all_of_very_many_nodes_that_connect_in_one_instant_are_accepted(count: int) -> None:
    ran = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.faults.connection_flood", str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outcome = json.loads(ran.stdout)
    assert outcome["placed"]
    assert outcome["after"] == outcome["before"]
