"""The servers that stores of this process host: several masters of one port may share one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rallypoint.forks import run_in_children
from rallypoint.stores.errors import StoreError
from rallypoint.stores.tcp.server import StoreServer, listen
from rallypoint.stores.tcp.server_core import StoreServerCore
from rallypoint.stores.tcp.wire import StoreLimits

# Reentrant: a store that is collected gives its share back, in whichever thread and moment that happens.
_lock = threading.RLock()
_Place = tuple[str, int, str]
_shared: dict[_Place, tuple[StoreServer, int]] = {}
"""By address, port and secret."""


def host_server(
    host: str, port: int, limits: StoreLimits, multi_tenant: bool, secret: str = ""
) -> tuple[int, Callable[[], None]]:
    """The port of a server that runs now, and what to call when it is not needed any more."""
    if not multi_tenant:
        server = _start(host, port, limits, secret)
        return server.port, server.stop
    with _lock:
        server, tenants = _shared.get((host, port, secret)) or (_start(host, port, limits, secret), 0)
        place = host, server.port, secret
        _shared[place] = server, tenants + 1
    return server.port, lambda: _give_back(place, server)


def _core(limits: StoreLimits, secret: str) -> StoreServerCore:
    if not secret:
        return StoreServerCore(limits)
    from rallypoint.stores.tcp.guarded import GuardedStoreCore  # what proves a secret costs an import

    return GuardedStoreCore(secret, limits)


def _start(host: str, port: int, limits: StoreLimits, secret: str) -> StoreServer:
    sock = listen(host, port)
    server = StoreServer(_core(limits, secret))
    try:
        server.start_in_thread(sock)
    except BaseException as exc:
        sock.close()
        raise StoreError(f"cannot serve a store on {host}, port {port}: {exc}") from exc
    return server


def _give_back(place: _Place, server: StoreServer) -> None:
    with _lock:
        present, tenants = _shared.get(place) or (None, 0)
        if present is not server:
            return  # in a forked child, whose parent has it
        del _shared[place]
        if tenants > 1:
            _shared[place] = server, tenants - 1
            return
    server.stop()


@run_in_children
def _forget_shared() -> None:
    """A forked child hosts nothing."""
    global _lock  # noqa: PLW0603  # a thread that only the parent has may hold it
    _lock = threading.RLock()
    _shared.clear()
