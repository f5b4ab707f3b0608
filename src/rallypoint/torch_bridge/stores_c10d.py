"""torch's own stores, made and recognised; torch is imported when one is wanted, never before."""

from __future__ import annotations

import importlib.util
import socket
import sys
from datetime import timedelta
from typing import Any


def has_torch() -> bool:
    """Whether torch is installed, with its stores."""
    return importlib.util.find_spec("torch") is not None


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

    Left to itself, torch listens on a socket of both families and asks the name service for the name of every IPv4
    client by its IPv6 form; where that is not answered, its server stands still for seconds.  An IPv4 socket avoids it.
    """
    from torch.distributed import TCPStore

    if listener is None:
        return TCPStore(host, port, None, False, timeout, wait_for_workers=False)
    return TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())


def file_store(path: str) -> Any:
    """torch's file store, for as many processes as come."""
    from torch.distributed import FileStore

    return FileStore(path)
