"""A worker in a ring of peers that talk all the time; one or two of them meet with a fault, the others with its consequences.

    rallypoint run -- python -m tests.launcher.fault_program PLAN

PLAN is JSON: by rank the fault, when it comes, and how long the worker then takes to end; and how the others put it when they
lose a peer.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import rallypoint

STEP_S = 0.02
PASSING = threading.Event()
"""Never set: what the plan says takes time, takes time."""


def main() -> None:
    """Talk until something happens."""
    plan = json.loads(sys.argv[1])
    me = rallypoint.worker()
    fault = plan["faults"].get(str(me.rank))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        me.store.set(f"port {me.rank}", str(listener.getsockname()[1]))
        to = socket.create_connection(("127.0.0.1", int(me.store.get(f"port {(me.rank + 1) % me.world_size}"))))
        came, _ = listener.accept()
    for line in (to, came):
        line.settimeout(plan["timeout_s"])
    me.store.add("ready", 1)
    while me.store.add("ready", 0) < me.world_size:
        PASSING.wait(STEP_S)
    began = time.monotonic()
    while True:
        if fault is not None and time.monotonic() - began >= fault["at_s"]:
            FAULTS[fault["kind"]](fault, (to, came))
        try:
            to.sendall(b"x")
            if not came.recv(1):
                raise ConnectionResetError("Connection closed by peer [127.0.0.1]")
        except (TimeoutError, OSError) as exc:
            PASSING.wait(plan["reactions"][me.rank]["after_s"])
            REACTIONS[plan["reactions"][me.rank]["how"]](exc)
        PASSING.wait(STEP_S)


# What goes wrong ------------------------------------------------------------------------------------------------------


def _exception(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    """The peers notice before the traceback is printed, where the connections are closed on the way."""
    try:
        raise ValueError("loss is nan")
    finally:
        _go(fault, lines)


def _exit_code(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    _go(fault, lines)
    print("the data set is empty", file=sys.stderr, flush=True)
    os._exit(17)


def _abort(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
    _go(fault, lines)
    os.abort()


def _segfault(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    _by(signal.SIGSEGV)


def _kill(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    _by(signal.SIGKILL)


def _hang(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> NoReturn:
    """It stands still, heeds nothing, and is killed by somebody."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    PASSING.wait(fault["hangs_s"])
    _by(signal.SIGKILL)


def _go(fault: dict[str, Any], lines: tuple[socket.socket, ...]) -> None:
    """The connections are gone, and the end of the process takes a while."""
    for line in lines:
        line.close()
    PASSING.wait(fault["ends_after_s"])


def _by(number: int) -> NoReturn:
    os.kill(os.getpid(), number)
    raise AssertionError("a signal that cannot be handled comes at once")


FAULTS: dict[str, Callable[[dict[str, Any], tuple[socket.socket, ...]], NoReturn]] = {
    "exception": _exception,
    "exit code": _exit_code,
    "abort": _abort,
    "segfault": _segfault,
    "kill": _kill,
    "hang": _hang,
}


# What comes of it on the others ---------------------------------------------------------------------------------------


def _raises(exc: Exception) -> NoReturn:
    raise exc


def _aborts(exc: Exception) -> NoReturn:
    """As a library in C++ does, from a thread of its own."""
    print(f"[E ProcessGroupNCCL.cpp:616] watchdog: {exc}", file=sys.stderr, flush=True)
    threading.Thread(target=os.abort).start()
    PASSING.wait(60)
    raise AssertionError("it has aborted")


def _says(exc: Exception) -> NoReturn:
    print(f"gave up on its peer: {exc}", file=sys.stderr, flush=True)
    os._exit(1)


def _wraps(exc: Exception) -> NoReturn:
    raise RuntimeError(f"[../gloo/transport/tcp/pair.cc:534] {exc}: Connection closed by peer [10.0.0.1]:4711") from exc


REACTIONS: dict[str, Callable[[Exception], NoReturn]] = {
    "raises": _raises,
    "aborts": _aborts,
    "says": _says,
    "wraps": _wraps,
}


if __name__ == "__main__":
    main()
