"""Processes that do what they are told, line by line, and answer in JSON: what the benchmarks measure with."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Nobody waits for ever; a benchmark that expects an answer sooner says so.
ANSWER_S = 600.0
SERVER_START_S = 30.0


class Worker:
    """A Python module run as a process of its own, which does not outlive its `with` block.

    With `source`, the process imports Rallypoint from that folder; the installed version counts otherwise.

    By default it asks nobody for the names of addresses: torch looks up the name of every peer, and where the name
    service is slow, that would be all that is measured.
    """

    def __init__(self, module: str, *arguments: str, looks_up: bool = False, source: Path | None = None) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            self._command,
            env=environment(source) if looks_up else {**environment(source), "RES_OPTIONS": "attempts:0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            bufsize=1,
        )

    def tell(self, order: str) -> None:
        """Give an order; a process that has ended does not hear it, and `hear` says why it ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{order}\n")
            self.process.stdin.flush()

    def hear(self, within_s: float = ANSWER_S) -> Any:
        """Wait for an answer; TimeoutError where it does not come in time."""
        return json.loads(self.read_line(within_s))

    def read_line(self, within_s: float = ANSWER_S) -> str:
        """Wait for a line, whatever it says; TimeoutError where it does not come in time."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(within_s, 0.0))[0]:
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self._why_it_ended())
        return line

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def listens(self, port: int) -> bool:
        """Whether the process accepts connections on this port."""
        wanted = {f"socket:[{inode}]" for inode in _listening_sockets(port)}
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the folder was listed
                if str(descriptor.readlink()) in wanted:
                    return True
        return False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._complaints.close()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # an order that nobody read any more
                assert pipe is not None
                pipe.close()

    def _why_it_ended(self) -> str:
        status = self.process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"`{shlex.join(self._command)}` ended with {status}: {lines[-1] if lines else 'it said nothing'}"


def environment(source: Path | None) -> dict[str, str]:
    """The environment of a process that imports Rallypoint from `source`, or the installed one where that is None.

    PYTHONPATH comes before what is installed, an editable install included.
    """
    return dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": str(source)}


@contextmanager
def server(source: Path | None = None) -> Iterator[tuple[str, int]]:
    """A standalone server: its endpoint and its process id."""
    # Version 0.1 has no `rallypoint.__main__`.
    is_old = source is not None and not (source / "rallypoint" / "__main__.py").exists()
    module = "rallypoint.cli" if is_old else "rallypoint"
    with Worker(module, "serve", "--bind", "127.0.0.1:0", source=source) as process:
        line = process.read_line(SERVER_START_S)
        endpoint = re.search(r"127\.0\.0\.1:\d+", line)
        if endpoint is None:
            raise RuntimeError(f"`rallypoint serve` says {line.strip()!r}, but should say where it listens")
        yield endpoint[0], process.process.pid


def _listening_sockets(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on a port, on IPv4 or IPv6."""
    listening = "0A"
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == listening and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answer(what: Any) -> None:
    """Say something to the process that started this one."""
    print(json.dumps(what), flush=True)


def memory_mb(pid: int) -> float:
    """The largest amount of memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")


def cpu_s(pid: int) -> float:
    """How much processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendant(name: str, of: int | None = None) -> int:
    """The process of this name among those that this one, or another, has started."""
    pid = os.getpid() if of is None else of
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            if Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip() == name:
                return int(child)
            with suppress(LookupError):
                return descendant(name, int(child))
    raise LookupError(f"there is no process {name!r} among those that process {pid} has started")
