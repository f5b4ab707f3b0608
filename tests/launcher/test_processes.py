"""Workers and their guard: real processes, real signals, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rallypoint.launcher.guard import ControlGroup, descendants, own_group
from rallypoint.launcher.processes import GuardLostError, ProcessGuard, StartError, WorkerEnded
from tests.support.waiting import until

SHELL = "/bin/sh"


class Launched:
    """A guard, and what it told."""

    def __init__(self) -> None:
        self.ended: dict[int, WorkerEnded] = {}
        self.is_lost = threading.Event()
        self._heard = threading.Condition()
        self.guard = ProcessGuard(self._note, self.is_lost.set)

    def _note(self, ended: WorkerEnded) -> None:
        with self._heard:
            self.ended[ended.pid] = ended
            self._heard.notify_all()

    def start(self, script: str, out: int = 1, **environment: str) -> int:
        return self.guard.start(SHELL, ["sh", "-c", script], {"PATH": os.environ["PATH"], **environment}, out, 2)

    def wait(self, pid: int) -> WorkerEnded:
        with self._heard:
            assert self._heard.wait_for(lambda: pid in self.ended, 20)
        return self.ended[pid]


@pytest.fixture
def launched() -> Iterator[Launched]:
    launched = Launched()
    yield launched
    launched.guard.close()


def output_of(run: Callable[[int], int]) -> tuple[int, str]:
    """Run something that writes to a descriptor, until every copy of that is closed."""
    read, write = os.pipe()
    pid = run(write)
    os.close(write)
    with os.fdopen(read) as pipe:
        return pid, pipe.read()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()


def test_a_worker_has_its_environment_and_its_output_and_tells_how_it_ended(launched: Launched) -> None:
    pid, output = output_of(lambda out: launched.start('echo "$GREETING"; exit 3', out, GREETING="hello"))
    assert output == "hello\n"
    ended = launched.wait(pid)
    assert (ended.exit_code, ended.signal) == (3, None)


def test_a_signal_reaches_the_whole_group_of_a_worker(launched: Launched) -> None:
    pid, output = output_of(lambda out: _started(launched, out))
    assert output == "ready\n"
    ended = launched.wait(pid)
    assert (ended.exit_code, ended.signal) == (None, signal.SIGTERM)
    until(lambda: not launched.guard.signal(pid, signal.SIGTERM), "nothing of the group is left")


def _started(launched: Launched, out: int) -> int:
    """A worker with a child; both have the pipe, so it closes when both have ended."""
    pid = launched.start("sleep 600 & echo ready; wait", out)
    until(lambda: len(descendants(pid)) == 1)
    assert launched.guard.signal(pid, signal.SIGTERM)
    return pid


def test_what_a_worker_left_behind_is_swept_whatever_session_it_made(launched: Launched) -> None:
    pid = launched.start("setsid sh -c 'sleep 600 & sleep 600' & exit 0")
    assert launched.wait(pid).exit_code == 0
    until(lambda: len(descendants(launched.guard.pid)) == 3)
    assert launched.guard.sweep() == []
    assert descendants(launched.guard.pid) == []


def test_a_sweep_tells_of_the_workers_that_it_ended(launched: Launched) -> None:
    pid = launched.start("trap '' TERM; sleep 600")
    assert launched.guard.sweep() == []
    assert launched.wait(pid).signal == signal.SIGKILL


@pytest.mark.parametrize(
    ("path", "why"),
    [("/nowhere/program", "No such file or directory"), ("/etc/hostname", "Exec format error|Permission denied")],
)
def test_a_command_that_cannot_be_started_is_said(launched: Launched, path: str, why: str) -> None:
    with pytest.raises(StartError, match=f"{path} cannot be started: ({why})"):
        launched.guard.start(path, [path], {}, 1, 2)


def test_a_large_environment_is_no_trouble(launched: Launched) -> None:
    large = {f"V{i}": "x" * 100_000 for i in range(8)}
    pid, output = output_of(lambda out: launched.start('printf %s "$V7" | wc -c', out, **large))
    assert output.strip() == "100000"
    assert launched.wait(pid).exit_code == 0


def test_a_worker_may_be_bound_to_some_cpus(launched: Launched) -> None:
    cpu = min(os.sched_getaffinity(0))
    script = "import os; print(sorted(os.sched_getaffinity(0)))"

    def run(out: int) -> int:
        return launched.guard.start(sys.executable, [sys.executable, "-c", script], {}, out, 2, [cpu])

    assert output_of(run)[1] == f"[{cpu}]\n"


def test_closing_ends_everything(launched: Launched) -> None:
    pid = launched.start("setsid sleep 600 & sleep 600")
    until(lambda: len(descendants(pid)) == 2)
    everything = descendants(launched.guard.pid)
    launched.guard.close()
    assert not any(exists(process) for process in everything)


def test_killing_the_guard_ends_the_workers_and_is_told(launched: Launched) -> None:
    pid = launched.start("exec sleep 600")
    os.kill(launched.guard.pid, signal.SIGKILL)
    until(lambda: not exists(pid))
    assert launched.is_lost.wait(10)
    with pytest.raises(GuardLostError, match="ended from outside"):
        launched.start("exit 0")


LAUNCHER = """
import os, sys, time
from rallypoint.launcher.processes import ProcessGuard
guard = ProcessGuard(lambda ended: None)
pid = guard.start("/bin/sh", ["sh", "-c", sys.argv[1]], dict(os.environ), 1, 2)
print(guard.pid, pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "script", ["setsid sleep 600 & sleep 600", "trap '' TERM; setsid sleep 600 & while :; do sleep 1; done"]
)
def test_nothing_is_left_after_a_launcher_was_killed(script: str) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, script], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    guard_pid, pid = map(int, launcher.stdout.readline().split())
    until(lambda: len(descendants(pid)) >= 2)
    everything = [guard_pid, *descendants(guard_pid)]
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until(lambda: not any(exists(process) for process in everything))


# A control group of their own ----------------------------------------------------------------------------------------

# It is another process every moment, so a guard that looks and kills comes too late; after a while it ends by itself.
RUNAWAY = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
ends_at = time.monotonic() + 20
while time.monotonic() < ends_at:
    if os.fork():
        os._exit(0)
"""


@pytest.mark.root
def test_what_forks_faster_than_anybody_can_look_is_ended_by_its_control_group(launched: Launched) -> None:
    def run(out: int) -> int:
        return launched.guard.start(sys.executable, [sys.executable, "-c", RUNAWAY], {}, out, 2)

    assert output_of(run)[1] == "ready\n"
    assert launched.guard.sweep() == []
    group = group_folder(launched)
    assert group.exists()
    launched.guard.close()
    assert not group.exists()


@pytest.mark.root
def test_a_launcher_inside_a_worker_has_a_group_in_the_group(launched: Launched) -> None:
    inner = f"{sys.executable} -m rallypoint run -- sh -c 'setsid sleep 600 & echo ready; sleep 600' 2>/dev/null & wait"
    said = b""
    read, write = os.pipe()
    pid = launched.start(inner, write)
    os.close(write)
    while b"ready" not in said:
        said += os.read(read, 100)
    os.close(read)
    until(lambda: len(descendants(pid)) == 5)
    everything = descendants(launched.guard.pid)
    launched.guard.close()
    assert not any(exists(process) for process in everything)
    assert not group_folder(launched).exists()


@pytest.mark.root
def test_a_killed_guard_leaves_no_group_behind(launched: Launched) -> None:
    launched.start("setsid sleep 600 & sleep 600")
    until(lambda: len(descendants(launched.guard.pid)) == 3)
    everything = descendants(launched.guard.pid)
    os.kill(launched.guard.pid, signal.SIGKILL)
    assert launched.is_lost.wait(10)
    launched.guard.close()
    until(lambda: not any(exists(process) for process in everything))
    until(lambda: not group_folder(launched).exists())


def group_folder(launched: Launched) -> Path:
    own = own_group("/proc/self/mountinfo", "/proc/self/cgroup")
    return Path(own) / f"rallypoint-{launched.guard.pid}"


@pytest.mark.parametrize(
    ("mount", "group", "folder"),
    [
        (
            "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw",
            "0::/user.slice/a",
            "/sys/fs/cgroup/user.slice/a",
        ),
        ("30 25 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw", "0::/docker/1/job", "/sys/fs/cgroup/job"),
        ("30 25 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw", "0::/other", ""),
        ("30 25 0:26 / /unified rw - cgroup2 cgroup2 rw", "4:memory:/x\n0::/", "/unified"),
        ("30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", "4:memory:/x", ""),
    ],
)
def test_the_own_group_is_found_where_it_is_mounted(tmp_path: Path, mount: str, group: str, folder: str) -> None:
    mounts, groups = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/root rw\n{mount}\n")
    groups.write_text(f"{group}\n")
    assert own_group(str(mounts), str(groups)) == folder


def test_without_a_group_nothing_is_done() -> None:
    group = ControlGroup("")
    group.enter()
    group.kill()
    group.remove()
    assert group.living() == []
