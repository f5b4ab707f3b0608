"""A program that keeps a server for its parent: both end when the parent does, however it ends, and the data goes too.

Run as a file, with a folder to remove and the server's command; it reads nothing, and ends when its input does.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_FAREWELL_S = 5.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Start the server, and stay until the parent is gone or the server has ended; its exit code."""
    folder, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: os.close(0))
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # this process has one thread yet
        )
    except OSError as exc:
        print(f"{command[0]} cannot be run: {exc.strerror}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return 127
    threading.Thread(target=_stay, args=(server,), daemon=True).start()
    code = server.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _stay(server: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the input, and end the server then."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    server.terminate()
    try:
        server.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        server.kill()


def _die_with_parent() -> None:
    """The supervisor may be killed as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
