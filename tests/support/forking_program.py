"""Forks processes that have their imports behind them: `python -m tests.support.forking_program FD MODULE…`.

It imports the modules, and then obeys the socket with this file descriptor: every message is a program to become, with the
files of its input, output and errors, and one for news of it.  A child leaves `children` and runs like any `python -m`: it ends
as an interpreter does, by a signal or with its exit code.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import selectors
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

MESSAGE_BYTES = 1 << 18
STANDARD = (0, 1, 2)
NEWS = struct.Struct("i")
"""What is told of a child: its process id, and when it has ended its exit code, or minus the signal."""


def children(control: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for and tell how it ended; in a child, what it is to become; None when nobody asks any more."""
    news: dict[int, tuple[int, int]] = {}
    """The process and the file for news of it, by what is readable once it has ended."""
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not control:
                    ready.unregister(key.fd)
                    _tell_end(key.fd, *news.pop(key.fd))
                    continue
                data, files, _, _ = socket.recv_fds(control, MESSAGE_BYTES, len(STANDARD) + 1)
                if not data:
                    return None
                *standard, report = files
                pid = os.fork()
                if pid == 0:
                    for file, number in zip(standard, STANDARD, strict=True):
                        os.dup2(file, number)
                    others = [file for ended, (_, file) in news.items() for file in (ended, file)]
                    for file in (*files, *others, control.detach()):
                        os.close(file)
                    return dict(json.loads(data))
                for file in standard:
                    os.close(file)
                os.write(report, NEWS.pack(pid))
                ended = os.pidfd_open(pid)
                news[ended] = (pid, report)
                ready.register(ended, selectors.EVENT_READ)


def _tell_end(ended: int, pid: int, report: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(report, NEWS.pack(code))
    os.close(ended)
    os.close(report)


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    program = children(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        os.environ.clear()
        os.environ.update(program["environment"])
        os.chdir(program["folder"])
        if "PYTHONFAULTHANDLER" in os.environ:
            faulthandler.enable()
        become(program["module"], program["arguments"])


def become(module: str, arguments: list[str]) -> None:
    """Run as `python -m MODULE` does, or as `python -c` where that is the name."""
    if module == "-c":
        code, *arguments = arguments
        sys.argv = [module, *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [module, *arguments]
        sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    main()
