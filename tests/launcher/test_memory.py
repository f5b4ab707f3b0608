"""A worker that the kernel kills because memory ran out: in a control group that really is short of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.launcher.guard import own_group
from rallypoint.launcher.memory import oom_kills

LIMIT = 160 * 1024 * 1024
MEMORY_V1 = Path("/sys/fs/cgroup/memory")
EATS = "chunks = []\nwhile True: chunks.append(bytearray(1 << 20))"


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group whose processes may have little memory; of version 1 or 2, as the system has it."""
    name = f"rallypoint-test-{os.getpid()}"
    if (MEMORY_V1 / "memory.limit_in_bytes").exists():
        group, limit, swap = MEMORY_V1 / name, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    else:
        root = Path(own_group("/proc/self/mountinfo", "/proc/self/cgroup"))
        root = next(folder for folder in (root, *root.parents) if not (folder.parent / "cgroup.procs").exists())
        (root / "cgroup.subtree_control").write_text("+memory")
        group, limit, swap = root / name, "memory.max", "memory.swap.max"
    group.mkdir()
    (group / limit).write_text(str(LIMIT))
    if (group / swap).exists():
        (group / swap).write_text(str(LIMIT) if group.parent == MEMORY_V1 else "0")
    yield group
    group.rmdir()


@pytest.mark.root
def test_a_worker_that_is_killed_for_want_of_memory_is_said_to_be(little_memory: Path) -> None:
    enter = f'echo $$ > {little_memory}/cgroup.procs && exec "$@"'
    command = [sys.executable, "-m", "rallypoint", "run", "--max-restarts", "0", "--", sys.executable, "-c", EATS]
    done = subprocess.run(["sh", "-c", enter, "sh", *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 137, done.stderr
    assert re.search(r"rank 0 on \S+ failed first: it was killed because memory ran out", done.stderr), done.stderr


def proc(folder: Path, cgroup: str, mount: str, oom: int = 7) -> Path:
    """A stand-in for /proc."""
    (folder / "self").mkdir()
    (folder / "self" / "cgroup").write_text(cgroup)
    (folder / "self" / "mountinfo").write_text(f"30 25 0:26 / {mount} rw - cgroup2 cgroup2 rw\n" if mount else "")
    (folder / "vmstat").write_text(f"pgfault 12\noom_kill {oom}\n")
    return folder


def test_the_nearest_group_that_counts_is_asked(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "groups" / "job" / "step").mkdir(parents=True)
    (tmp_path / "groups" / "job" / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    here = proc(tmp_path / "proc", "0::/job/step\n", str(tmp_path / "groups"))
    assert oom_kills(here, tmp_path) == 3


def test_version_1_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "v1" / "job").mkdir(parents=True)
    (tmp_path / "v1" / "job" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    here = proc(tmp_path / "proc", "3:cpu:/x\n4:memory:/job\n0::/\n", "")
    assert oom_kills(here, tmp_path / "v1") == 5


def test_without_a_group_the_machine_is_asked(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert oom_kills(proc(tmp_path / "proc", "0::/\n", ""), tmp_path) == 7
