"""torch's own stores, made and recognised; torch is imported when one is wanted, never before."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from rallypoint.errors import RendezvousError

_START = timedelta(seconds=30)


def has_torch() -> bool:
    """Whether torch is installed, with its stores."""
    return importlib.util.find_spec("torch") is not None


def shares_store() -> bool:
    """Whether the workers use their agents' store; by torch's own switch they have another, served by one of them."""
    return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"


def load_torch() -> None:
    """Import torch now, which takes seconds, and not when a round has been sealed."""
    importlib.import_module("torch.distributed")


def is_torch_store(store: object) -> bool:
    """Whether a store is torch's; where torch was never imported, none can be."""
    return _is_torchs("Store", store)


def is_tcp_store(store: object) -> bool:
    """Whether a store is torch's TCP store."""
    return _is_torchs("TCPStore", store)


def is_file_store(store: object) -> bool:
    """Whether a store is torch's file store."""
    return _is_torchs("FileStore", store)


def _is_torchs(kind_name: str, store: object) -> bool:
    kind = getattr(sys.modules.get("torch.distributed"), kind_name, None)
    return isinstance(kind, type) and isinstance(store, kind)


def prefix_store(prefix: str, store: Any) -> Any:
    """A part of a store of torch's."""
    from torch.distributed import PrefixStore

    return PrefixStore(prefix, store)


def tcp_store(host: str, port: int, timeout: timedelta, listener: socket.socket | None = None) -> Any:
    """torch's TCP store: a client of what is there, or, given a listening socket, its server as well.

    Left to itself, torch listens on every address, by a socket of both families, and asks the name service for the name of
    every IPv4 client by its IPv6 form; where that is not answered, its server stands still for seconds.  A socket avoids it.
    """
    from torch.distributed import TCPStore

    given: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
    if listener is None:
        return TCPStore(host, port, **given)
    with listener:
        # Older versions have a server that takes no socket, and say so before they touch it; their other one does take it.
        taken = os.dup(listener.fileno())
        try:
            return TCPStore(host, port, is_master=True, master_listen_fd=taken, **given)
        except RuntimeError:
            with suppress(OSError):
                os.close(taken)
        taken = listener.detach()
        return TCPStore(host, port, is_master=True, master_listen_fd=taken, use_libuv=False, **given)


def serve(listener: socket.socket) -> Callable[[], None]:
    """Let torch serve a round's store on a listening socket, which becomes torch's; returns what ends it (rule 12).

    Its server runs outside of Python, so that no call of torch's that holds the interpreter's lock can wait for it in vain.
    """
    host, port = listener.getsockname()[:2]
    try:
        held = [tcp_store(host, port, _START, listener)]
    except RuntimeError as exc:
        raise RendezvousError(
            f"torch could not serve the round's store on {host}, port {port}: {exc}; `store=rallypoint` uses ours"
        ) from exc
    return held.clear


def file_store(path: str) -> Any:
    """torch's file store, for as many processes as come."""
    from torch.distributed import FileStore

    return FileStore(path)
