"""The servers that stores of this process host: several masters of one port may share one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rallypoint.stores.errors import StoreError
from rallypoint.stores.server import StoreServer, listen
from rallypoint.stores.serving import StoreServerCore
from rallypoint.stores.wire import Limits

# Reentrant: a store that is collected gives its share back, in whichever thread and moment that happens.
_lock = threading.RLock()
_shared: dict[tuple[str, int], tuple[StoreServer, int]] = {}


def host_server(host: str, port: int, limits: Limits, multi_tenant: bool) -> tuple[int, Callable[[], None]]:
    """The port of a server that runs now, and what to call when it is not needed any more."""
    if not multi_tenant:
        server = _start(host, port, limits)
        return server.port, server.stop
    with _lock:
        server, tenants = _shared.get((host, port)) or (_start(host, port, limits), 0)
        place = host, server.port
        _shared[place] = server, tenants + 1
    return server.port, lambda: _give_back(place)


def _start(host: str, port: int, limits: Limits) -> StoreServer:
    sock = listen(host, port)
    server = StoreServer(StoreServerCore(limits))
    try:
        server.start_in_thread(sock)
    except BaseException as exc:
        sock.close()
        raise StoreError(f"cannot serve a store on {host}, port {port}: {exc}") from exc
    return server


def _give_back(place: tuple[str, int]) -> None:
    with _lock:
        server, tenants = _shared.pop(place)
        if tenants > 1:
            _shared[place] = server, tenants - 1
            return
    server.stop()
