"""`rallypoint demo`: all of it really happens, and nothing of it is left."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rallypoint.cli.demo_processes import Demo
from tests.support.cli_processes import Started, free_port, start_cli
from tests.support.waiting import until

STEPS = [
    r"they count: round 1, node\d rank 0, node\d rank 1, node\d rank 2, node\d rank 3; node1 .* serves",
    r"they counted on after \d+ ms, from \d+: round 2, node\d rank 0, node\d rank 1, node\d rank 2, node\d rank 3$",
    r"every node says: rank \d on node3 failed first: it was ended by SIGKILL",
    r"they counted on after \d+ ms, from \d+: round 3, node\d rank 0, node\d rank 1, node\d rank 2$",
    r"they counted on after \d+ ms, from \d+: round 4, .*node5 rank 3$",
    r"node1, which serves, is killed",
    r"they counted on after \d+ ms, from \d+: round 5, node\d rank 0, node\d rank 1, node\d rank 2$",
    r"every launcher ended with exit code 0; 1 to \d+ add up to \d+: nothing lost or twice",
    r"^All of it happened, in \d+\.\d s\.$",
]


def _left_by(folder: Path) -> list[str]:
    """What is in the demo's folder, and the processes that were given it."""
    given = f"TMPDIR={folder}\0".encode()
    left = [str(path) for path in folder.iterdir()]
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended just now, or is somebody else's
            if given in environment.read_bytes():
                left.append(str(environment))
    return left


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo keeps its files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_all_of_it_happens_and_nothing_is_left(started: Started, folder: Path) -> None:
    demo = started.add(start_cli("demo"))
    for line in STEPS:
        demo.expect(line)
    assert demo.ends() == 0
    until(lambda: _left_by(folder) == [], "nothing is left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(started: Started, folder: Path, number: signal.Signals) -> None:
    demo = started.add(start_cli("demo"))
    demo.expect("they count")
    demo.popen.send_signal(number)
    assert demo.ends() == 128 + number
    assert _left_by(folder) == []


def test_a_signal_is_obeyed_only_where_nothing_is_half_done() -> None:
    """`Popen` takes a lock now and then; an exception in that moment would keep it locked for ever."""
    demo = Demo()
    with demo.running():
        child = demo.launch(
            "one", "--rdzv-conf", "join_timeout=60", "--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}"
        )
        demo.interrupt(signal.SIGTERM, None)
        child.kill()
        with pytest.raises(SystemExit, match="143"):
            demo.wait(lambda: False, "the end of all days")
    with pytest.raises(SystemExit, match="130"):
        demo.interrupt(signal.SIGINT, None)


def test_a_step_that_fails_fails_the_demo(started: Started, folder: Path) -> None:
    """A launcher that somebody else kills is noticed, and said."""
    demo = started.add(start_cli("demo"))
    demo.expect("they count")
    demo.popen.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, demo.popen.pid, os.WSTOPPED | os.WNOWAIT)
    os.kill(_last_launcher_of(demo.popen.pid), signal.SIGKILL)
    demo.popen.send_signal(signal.SIGCONT)
    demo.expect("rallypoint demo: this should not have happened: node4 ended with exit code -9: ", "stderr")
    assert demo.ends() == 1
    until(lambda: _left_by(folder) == [], "the guard of the one that was killed has ended its worker")


def _last_launcher_of(parent: int) -> int:
    return max(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def test_on_a_terminal_there_is_a_live_table(started: Started, folder: Path) -> None:
    demo = started.add(start_cli("demo", terminal=True))
    demo.expect("launcher .*pid .*round .*rank .*state")
    for line in STEPS:
        demo.expect(line)
    assert demo.ends() == 0
    shown = "".join(demo.said)
    for words in ("starting", "counting", "regrouping", "killed", "exit code 0"):
        assert words in shown
    assert _left_by(folder) == []
