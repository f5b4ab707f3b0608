"""The guard: a small process that starts a launcher's workers, and sees to it that none of them outlives the launcher.

It runs as a script, with nothing but the standard library, so that it is there in a moment.  It is a *subreaper*: a process
that a worker leaves behind becomes its child, whatever sessions and groups it made for itself, so all that ever came of
the workers is below the guard and can be ended.  Where it may make a control group (cgroup v2), the workers run in that, and the
kernel kills all of them in one step, however fast they fork.  When the launcher is gone, be it by kill -9, the guard ends
everything and itself.  When the guard is killed, the kernel kills the workers with it.

The two exchange JSON over a pair of sockets, with the length in front; a worker's output is passed along as descriptors.
"""

from __future__ import annotations

import array
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # typing would take longer to import than most of the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ORPHAN_GRACE_S = 1.0
"""How long workers have to end after a SIGTERM, once the launcher is gone."""
SWEEP_S = 10.0
REMOVE_S = 2.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The launcher decides what becomes of these; a scheduler may send them to every process."""
_LENGTH = 4


class Guard:
    """One guard, for the launcher at the other end of a socket."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._group = ControlGroup.make(os.getpid())
        self._workers: set[int] = set()
        self._requests: dict[str, Callable[..., dict[str, Any]]] = {
            "start": self._start,
            "signal": self._signal,
            "sweep": self._sweep,
        }

    def serve(self, woken: int) -> None:
        """Do what the launcher asks, and tell it which workers have ended, until it is gone."""
        is_there, launcher = True, self._launcher.fileno()
        while is_there:
            readable, _, _ = select.select([launcher, woken], [], [])
            if woken in readable:
                os.read(woken, 4096)
            is_there = self._reap()
            if is_there and launcher in readable:
                request, descriptors = receive(self._launcher)
                is_there = request is not None and self._tell(self._requests[request.pop("do")](descriptors, **request))

    def end_everything(self, grace_s: float) -> None:
        """End all that came of the workers: first by SIGTERM, then for good."""
        for pid in living_below(self._group):
            kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while living_below(self._group) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.02)
        self._sweep([], SWEEP_S)
        self._group.remove()

    def _start(self, descriptors: list[int], **command: Any) -> dict[str, Any]:
        """Start a worker in a process group of its own; its pid, or why it could not be started."""
        try:
            failed_read, failed_write = os.pipe()
            parent, pid = os.getpid(), os.fork()
        except OSError as exc:
            for descriptor in descriptors:
                os.close(descriptor)
            return {"failed": exc.errno}
        if pid == 0:
            become(command, descriptors, failed_write, parent, self._group)
        os.close(failed_write)
        for descriptor in descriptors:
            os.close(descriptor)
        failed = os.read(failed_read, 16)
        os.close(failed_read)
        if failed:
            os.waitpid(pid, 0)
            return {"failed": int(failed)}
        self._workers.add(pid)
        return {"started": pid}

    def _signal(self, _: list[int], pid: int, number: int) -> dict[str, Any]:
        """Signal the process group of a worker; whether anything of it was left."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return {"signalled": False}
        return {"signalled": True}

    def _sweep(self, _: list[int], timeout_s: float) -> dict[str, Any]:
        """Kill everything below the guard; pid, state and name of what is left after that time."""
        return {"left": kill_descendants(timeout_s, self._group, self._reap)}

    def _reap(self) -> bool:
        """Collect what has ended, and tell of the workers among it; False where the launcher is gone."""
        is_there = True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return is_there
            if pid == 0:
                return is_there
            if pid in self._workers:
                self._workers.discard(pid)
                is_there = self._tell({"ended": pid, "status": status}) and is_there

    def _tell(self, answer: dict[str, Any]) -> bool:
        try:
            send(self._launcher, answer)
        except OSError:
            return False
        return True


def become(command: dict[str, Any], descriptors: list[int], failed: int, parent: int, group: ControlGroup) -> None:
    """Turn this forked child into the worker; what stands in the way is written as its number."""
    try:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)  # the guard was killed before it could be noticed
        group.enter()
        signal.set_wakeup_fd(-1)
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if command.get("cpus"):
            os.sched_setaffinity(0, command["cpus"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for place, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, place)
        os.execve(command["path"], command["arguments"], command["environment"])
    except OSError as exc:
        os.write(failed, str(exc.errno or errno.EINVAL).encode())
    except ValueError:
        os.write(failed, str(errno.EINVAL).encode())  # such as a zero byte in an argument
    finally:
        os._exit(127)


def descendants(root: int) -> list[int]:
    """The processes that live below another one; those that only wait to be reaped do not count."""
    children: dict[int, list[tuple[int, str]]] = {}
    with os.scandir("/proc") as entries:
        processes = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in processes:
        if (found := stat_of(pid)) is not None:
            children.setdefault(found[1], []).append((pid, found[0]))
    living, look = [], [root]
    while look:
        for pid, state in children.get(look.pop(), ()):
            look.append(pid)
            if state not in "ZX":
                living.append(pid)
    return living


class ControlGroup:
    """The workers' own control group; with an empty path there is none, because the system does not let us make one."""

    def __init__(self, path: str) -> None:
        self.path = path

    @staticmethod
    def of(guard: int, mounts: str = "/proc/self/mountinfo", groups: str = "/proc/self/cgroup") -> ControlGroup:
        """The group of a guard, below the one that this process is in; whether it is there or not."""
        own = own_group(mounts, groups)
        return ControlGroup(f"{own}/rallypoint-{guard}" if own else "")

    @staticmethod
    def make(guard: int) -> ControlGroup:
        """Make the group of a guard, where that is possible."""
        group = ControlGroup.of(guard)
        try:
            os.mkdir(group.path)  # noqa: PTH102  # pathlib would take longer to import than all else
            os.close(os.open(f"{group.path}/cgroup.kill", os.O_WRONLY))  # since Linux 5.14
        except OSError:
            group.remove()
            return ControlGroup("")
        return group

    def enter(self) -> None:
        """Let this process be in the group; what it starts is then, too."""
        self._write("cgroup.procs", b"0")

    def kill(self) -> None:
        """Kill all that is in the group, in one step."""
        self._write("cgroup.kill", b"1")

    def living(self) -> list[int]:
        """The processes of the group, but for those that only wait to be reaped."""
        found = [int(pid) for folder in self._folders() for pid in file_text(f"{folder}/cgroup.procs").split()]
        return [pid for pid in found if pid and (stat_of(pid) or ("X", 0))[0] not in "ZX"]

    def remove(self) -> None:
        """The group is not needed any more; one that cannot be emptied stays."""
        deadline = time.monotonic() + REMOVE_S
        while folders := self._folders():
            for folder in reversed(folders):
                remove_empty(folder)
            if not os.path.isdir(self.path) or time.monotonic() >= deadline:  # noqa: PTH112  # as above
                return
            time.sleep(0.01)  # the kernel takes a moment to forget what was in it, and tells nobody when it has

    def _folders(self) -> list[str]:
        """The group, and those that were made in it: a worker may be a launcher."""
        found = [self.path] if self.path else []
        for folder in found:
            found += folders_in(folder)
        return found

    def _write(self, name: str, what: bytes) -> None:
        """Without the group, whatever the reason is, the subreaper must do."""
        try:
            descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY)
        except OSError:
            return
        try:
            os.write(descriptor, what)
        except OSError:
            return
        finally:
            os.close(descriptor)


def folders_in(folder: str) -> list[str]:
    """The folders in a folder that may be gone."""
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def remove_empty(folder: str) -> None:
    """Remove a folder, if it is there and empty."""
    try:
        os.rmdir(folder)  # noqa: PTH106  # pathlib would take longer to import than all else
    except OSError:
        return


def own_group(mounts: str, groups: str) -> str:
    """The folder of the control group (v2) that this process is in; empty where there is none, or it is not mounted."""
    for line in file_text(mounts).splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            root, folder = before.split()[3:5]
            break
    else:
        return ""
    path = next((line[3:] for line in file_text(groups).splitlines() if line.startswith("0::")), "")
    if not path.startswith(root):
        return ""
    return f"{folder}/{path[len(root) :].strip('/')}".rstrip("/")


def kill_descendants(
    timeout_s: float,
    group: ControlGroup,
    reap: Callable[[], object] = bool,
    look: Callable[[ControlGroup], list[int]] | None = None,
) -> list[tuple[int, str, str]]:
    """Kill everything below this process, and in the group; pid, state and name of what is left after that time."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        reap()
        left = (look or living_below)(group)
        if not left or time.monotonic() >= deadline:
            return [(pid, *described(pid)) for pid in left]
        group.kill()
        for pid in left:
            kill(pid, signal.SIGKILL)
        time.sleep(pause_s)  # nothing tells when a process that is no child has ended
        pause_s = min(pause_s * 2, 0.05)


def living_below(group: ControlGroup) -> list[int]:
    """The processes that live below this one, or in the group."""
    # A process without a child has nothing below it: what somebody leaves behind becomes a child of the subreaper.
    return list({*descendants(os.getpid()), *group.living()}) if has_children() else group.living()


def has_children() -> bool:
    """Whether this process has a child that lives, or was not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def stat_of(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None where it is gone."""
    fields = proc_file(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if fields else None


def described(pid: int) -> tuple[str, str]:
    """State and name of a process, for people."""
    name = proc_file(pid, "comm").decode("utf-8", "replace").strip()
    return (stat_of(pid) or ("?", 0))[0], name or "?"


def proc_file(pid: int, name: str) -> bytes:
    """What the kernel tells of a process; nothing where it is gone."""
    return file_bytes(f"/proc/{pid}/{name}", 4096)


def file_text(path: str) -> str:
    """What a file of the kernel has in it; nothing where it is gone."""
    return file_bytes(path, 1 << 20).decode("utf-8", "replace")


def file_bytes(path: str, at_most: int) -> bytes:
    """The beginning of a file; nothing where it is gone.  (pathlib would take longer to import than all else.)"""
    parts: list[bytes] = []
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        while at_most > 0 and (part := os.read(descriptor, at_most)):
            parts.append(part)
            at_most -= len(part)
    except OSError:
        return b"".join(parts)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def kill(pid: int, number: int) -> None:
    """Signal one process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def send(to: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message with descriptors."""
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    to.sendmsg([len(body).to_bytes(_LENGTH, "big")], rights)
    to.sendall(body)


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None where the other side is gone."""
    descriptors = array.array("i")
    try:
        head, extra, _, _ = source.recvmsg(_LENGTH, socket.CMSG_LEN(2 * descriptors.itemsize))
        for level, kind, value in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(value)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        head += _exactly(source, _LENGTH - len(head)) if head else b""
        body = _exactly(source, int.from_bytes(head, "big"))
    except OSError:
        return None, []
    return (json.loads(body) if body else None), list(descriptors)


def _exactly(source: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = source.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def become_subreaper() -> None:
    """Let what a descendant leaves behind become a child of this process (Linux; elsewhere groups must do)."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Linux's prctl; nothing where there is none."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(option, value, 0, 0, 0)


def remove_folder(folder: str) -> None:
    """Remove a folder with its files, if it is there."""
    import shutil  # here, because it takes longer to import than all else

    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Guard the launcher whose socket and folder the command line names."""
    become_subreaper()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # a worker that had it would hide the guard's own end from the launcher
    guard = Guard(socket.socket(fileno=descriptor))
    try:
        guard.serve(woken)
    finally:
        guard.end_everything(ORPHAN_GRACE_S)
        remove_folder(sys.argv[2])


if __name__ == "__main__":
    main()
