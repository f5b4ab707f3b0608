"""Workers as a launcher sees them: started and ended through the guard, told by signals, told of when they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from rallypoint.errors import RendezvousError
from rallypoint.launcher import guard

__all__ = ["GUARD_LOST", "GuardLostError", "ProcessGuard", "StartError", "Survivor", "WorkerEnded"]

ANSWER_S = 30.0


class StartError(RendezvousError):
    """A command could not be started; the message says why."""


class GuardLostError(RendezvousError):
    """The guard process has ended, and with it the workers."""


class WorkerEnded(msgspec.Struct, frozen=True):
    """A worker has ended: by itself with an exit code, or by a signal."""

    pid: int
    exit_code: int | None
    signal: int | None = None


class Survivor(msgspec.Struct, frozen=True):
    """A process that cannot be killed: in state D it waits for a device, and the kernel does not let go of it."""

    pid: int
    state: str
    name: str


class ProcessGuard:
    """The guard of one launcher.  `ended` is called, from a thread of its own, with each worker that has ended.

    A process that does nothing but launch `adopts` what a killed guard leaves behind, and ends all that is below it then.
    """

    def __init__(
        self, ended: Callable[[WorkerEnded], None], lost: Callable[[], None] = lambda: None, *, adopts: bool = False
    ) -> None:
        self._adopts = adopts
        self.folder = Path(tempfile.mkdtemp(prefix="rallypoint-"))
        """For the launcher's files; it goes with the guard."""
        ours, theirs = socket.socketpair()
        # It must not be reached by the terminal's Ctrl-C, nor by signals to the launcher's group: the launcher decides.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(theirs.fileno()), str(self.folder)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        if adopts:
            guard.become_subreaper()
        self._socket = ours
        self._ended, self._lost = ended, lost
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="rallypoint-guard", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._process.pid

    def start(
        self,
        path: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        cpus: Sequence[int] = (),
    ) -> int:
        """Start a worker; its process id, which is also that of its group.  StartError says why it cannot be started."""
        request = {
            "do": "start",
            "path": path,
            "arguments": list(arguments),
            "environment": dict(environment),
            "cpus": list(cpus),
        }
        answer = self._ask(request, (stdout, stderr))
        if "failed" in answer:
            raise StartError(f"{path} cannot be started: {os.strerror(answer['failed'])}")
        return int(answer["started"])

    def signal(self, pid: int, number: int) -> bool:
        """Signal a worker and its group; False where nothing of it is left."""
        return bool(self._ask({"do": "signal", "pid": pid, "number": number})["signalled"])

    def sweep(self, timeout_s: float = guard.SWEEP_S) -> list[Survivor]:
        """Kill whatever came of the workers, in whatever group; what cannot be killed within that time."""
        left = self._ask({"do": "sweep", "timeout_s": timeout_s}, timeout_s=timeout_s + ANSWER_S)["left"]
        return [Survivor(*survivor) for survivor in left]

    def close(self) -> None:
        """End everything that is left, and the guard."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a mere close would wait for the thread that reads
        self._reader.join()
        self._socket.close()
        try:
            was_killed = self._process.wait(guard.ORPHAN_GRACE_S + guard.SWEEP_S + 1) != 0
        except subprocess.TimeoutExpired:
            was_killed = True
            self._process.kill()
            self._process.wait()
        guard.remove_folder(str(self.folder))
        if was_killed:
            group = guard.ControlGroup.of(self.pid)
            look = None if self._adopts else guard.ControlGroup.living
            guard.kill_descendants(guard.SWEEP_S, group, look=look)
            group.remove()

    def _ask(
        self, request: dict[str, Any], descriptors: tuple[int, ...] = (), timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        with self._lock:
            try:
                guard.send(self._socket, request, descriptors)
            except OSError as exc:
                raise GuardLostError(GUARD_LOST) from exc
            try:
                answer = self._answers.get(timeout=timeout_s)
            except Empty:
                self._socket.shutdown(socket.SHUT_RDWR)  # a late answer must not be taken for the next one
                raise GuardLostError(f"the guard process did not answer within {timeout_s:g} s") from None
        if answer is None:
            self._answers.put(None)
            raise GuardLostError(GUARD_LOST)
        return answer

    def _read(self) -> None:
        while True:
            answer, _ = guard.receive(self._socket)
            if answer is None:
                break
            if "ended" in answer:
                status = answer["status"]
                by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                self._ended(WorkerEnded(answer["ended"], code, by_signal))
            else:
                self._answers.put(answer)
        self._answers.put(None)
        self._lost()


GUARD_LOST = "the guard process of this launcher was ended from outside, and with it the workers"
