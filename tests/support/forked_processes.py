"""Processes forked from one that has imported already what they need, which would cost each of them more than most tests do.

A `ForkedProcess` is asked and told like a `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.support.forking_program import NEWS

ROOT = Path(__file__).resolve().parents[2]

NODES = (
    "tests.support.etcd_node_program",
    "tests.support.server_program",
    "tests.support.store_server_program",
    "tests.conformance.node_program",
    "tests.faults.waiting_program",
    "tests.stores.file_processes",
    "tests.etcd_v2.legacy_node_program",
    "rallypoint.elastic.etcd_rendezvous",
    "rallypoint.elastic.dynamic_rendezvous",
    "rallypoint.elastic.registry",
    *("rallypoint.api", "rallypoint.backends.etcd_v2_records", "rallypoint.backends.etcd_v3_records", "rich.live"),
    *(f"rallypoint.cli.{name}" for name in ("close", "evict", "runs", "serve", "server_log", "status", "token")),
)
TORCH = ("torch.distributed.run", "tests.support.gloo_rank", *NODES)


class Parent:
    """A process that imports these modules and forks at a word; it ends with this one."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking_program", str(theirs.fileno()), *modules],
                cwd=ROOT,
                # torch reads the number of threads once: threads would not survive a fork.
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def fork(self, program: Mapping[str, object], files: Sequence[int]) -> None:
        """Let it become a program, with these files."""
        with self._asking:
            socket.send_fds(self._control, [json.dumps(program).encode()], files)

    def end(self) -> None:
        """Nobody is forked any more; those that were live on."""
        self._control.close()
        self.process.wait()


@functools.cache
def parent(modules: tuple[str, ...]) -> Parent:
    """One for each process that runs tests."""
    return Parent(modules)


class ForkedProcess:
    """`python -m MODULE`, or `python -c CODE`, without the wait for its imports."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = os.environ,
        imported: tuple[str, ...] = NODES,
    ) -> None:
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        program = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(ROOT),
        }
        inputs, outputs, errors, news = (os.pipe() for _ in range(4))
        theirs = (inputs[0], outputs[1], errors[1], news[1])
        parent(imported).fork(program, theirs)
        for file in theirs:
            os.close(file)
        self.stdin = os.fdopen(inputs[1], "w", buffering=1, encoding="utf-8")
        self.stdout = os.fdopen(outputs[0], encoding="utf-8")
        self.stderr = os.fdopen(errors[0], encoding="utf-8")
        self._news = news[0]
        weakref.finalize(self, os.close, self._news)
        self.pid = self._hear()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it prints until it ends, with nothing to read: its output and its errors."""
        self.stdin.close()
        with ThreadPoolExecutor() as readers:
            said = [readers.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            finally:
                output, errors = (each.result() for each in said)
        self.stdout.close()
        self.stderr.close()
        return output, errors

    def poll(self) -> int | None:
        """The exit code, or minus the signal, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        ended = select.poll()
        ended.register(self._news)
        if self.returncode is None and not ended.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        with self._waiting:
            if self.returncode is None:
                self.returncode = self._hear()
        return self.returncode

    def _hear(self) -> int:
        news = os.read(self._news, NEWS.size)
        assert news, "the process that forks all others has ended; what it said is on stderr"
        return int(NEWS.unpack(news)[0])

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def has_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped, as by SIGSTOP."""
    tasks = Path(f"/proc/{pid}/task")
    states = [(task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] for task in tasks.iterdir()]
    return set(states) == {"T"}
