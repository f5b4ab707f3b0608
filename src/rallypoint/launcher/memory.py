"""Whether the kernel killed processes because memory ran out: asked before and after a worker ended by SIGKILL."""

from __future__ import annotations

from pathlib import Path

from rallypoint.launcher.guard import file_text, own_group

__all__ = ["oom_kills"]

PROC = Path("/proc")
MEMORY_V1 = Path("/sys/fs/cgroup/memory")


def oom_kills(proc: Path = PROC, memory_v1: Path = MEMORY_V1) -> int:
    """How many processes were killed because memory ran out; of this control group, where it counts its own.

    Otherwise of the whole machine: then a worker that somebody else killed in the same moment is taken for one of them.
    """
    own = own_group(str(proc / "self" / "mountinfo"), str(proc / "self" / "cgroup"))
    if own:
        # The counter of a group includes those of the groups in it, as that of the workers.
        for folder in (Path(own), *Path(own).parents):
            if (count := _counter(folder / "memory.events")) is not None:
                return count
    lines = file_text(str(proc / "self" / "cgroup")).splitlines()
    group = next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")), None)
    if group is not None and (count := _counter(memory_v1 / group.strip("/") / "memory.oom_control")) is not None:
        return count
    return _counter(proc / "vmstat") or 0


def _counter(file: Path) -> int | None:
    """The number behind `oom_kill` in a file of the kernel; None where there is none."""
    for line in file_text(str(file)).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdigit():
            return int(number)
    return None
