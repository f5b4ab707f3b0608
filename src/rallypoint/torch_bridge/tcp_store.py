"""torch's own store server on a socket that was bound before anybody was told of it (rule 12).

Given a port, torch would bind it on every address; given a socket, it serves where that one listens.  Its server runs
outside of Python, so that no call of torch's that holds the interpreter's lock can wait for it in vain.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from rallypoint.errors import RendezvousError

_START = timedelta(seconds=30)


def serve(listener: socket.socket) -> Callable[[], None]:
    """Let torch serve a store on a listening socket, which becomes torch's; returns what ends it."""
    host, port = listener.getsockname()[:2]
    with listener:
        try:
            held = [_served(host, port, listener)]
        except RuntimeError as exc:
            raise RendezvousError(
                f"torch could not serve the round's store on {host}, port {port}: {exc}; `store=rallypoint` uses ours"
            ) from exc
    return held.clear


def _served(host: str, port: int, listener: socket.socket) -> Any:
    # Older versions have a server that takes no socket, and say so before they touch it; their other one does take it.
    for use_libuv in (True, False):
        taken = os.dup(listener.fileno())
        try:
            # torch connects to its own server as well, by the same address.
            return TCPStore(
                host,
                port,
                None,
                True,
                _START,
                wait_for_workers=False,
                master_listen_fd=taken,
                use_libuv=use_libuv,
            )
        except RuntimeError:
            with suppress(OSError):
                os.close(taken)
            if not use_libuv:
                raise
    raise AssertionError("one of the two is returned or raises")
