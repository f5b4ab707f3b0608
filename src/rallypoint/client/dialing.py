"""Connecting to a host by its name or address, whatever the name service and the network do.

A name is looked up anew for each attempt, because it may come late and may change, and again while an attempt is under way.
Of several addresses the next one is tried as well when the first does not answer at once.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rallypoint.net import is_address, plain

LOOKUP_S = 1.0
"""How long one attempt waits for a name; the lookup itself goes on, and the next attempt waits for the same one."""
LOOK_AGAIN_S = 1.0
HEAD_START_S = 0.25
"""How long an address is tried alone, before the next one of the same name is tried beside it."""

SMALL_SEGMENTS = {socket.AF_INET: 536, socket.AF_INET6: 1220}
"""What every network must carry, headers left out."""

Found = tuple[Any, ...]
"""One address of a host, as `getaddrinfo` gives it."""

_unfinished: dict[tuple[str, int], tuple[asyncio.Future[list[Found]], float]] = {}
"""Lookups that have not ended yet, and since when; touched on the background loop only."""


async def look_up(host: str, port: int) -> list[Found]:
    """The addresses of a host; asyncio.TimeoutError where the name service does not answer soon."""
    loop = asyncio.get_running_loop()
    if is_address(host):
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    lookup, since = _unfinished.get((host, port), (None, 0.0))
    if lookup is None or lookup.get_loop() is not loop:
        lookup = asyncio.ensure_future(
            loop.run_in_executor(None, lambda: socket.getaddrinfo(plain(host), port, type=socket.SOCK_STREAM))
        )
        since = time.monotonic()
        _unfinished[host, port] = lookup, since
    await asyncio.wait({lookup}, timeout=LOOKUP_S)
    if not lookup.done():
        silence_s = time.monotonic() - since
        raise asyncio.TimeoutError(f"the name service has not said for {silence_s:.0f} s what {host} is")
    _unfinished.pop((host, port), None)
    return lookup.result()


async def connect(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, tried: list[str], *, small: bool = False, **tls: Any
) -> None:
    """A connection to a host for the protocol that `make` makes; `tried` is given the addresses of a name.

    With `small` segments it works where a network drops large packets and says nothing about it.
    """
    sock = await _dial(host, port, tried, small)
    try:
        await asyncio.get_running_loop().create_connection(make, sock=sock, **tls)
    except BaseException:
        sock.close()
        raise


async def _dial(host: str, port: int, tried: list[str], small: bool) -> socket.socket:
    """A socket that is connected to a host."""
    found = await look_up(host, port)
    if is_address(host):
        return await _connect(found[0], small)
    while True:
        tried[:] = _addresses(found)
        race = asyncio.ensure_future(_connect_to_any(found, small))
        try:
            found = await _until_changed(race, host, port, found)
            if race.done():
                return race.result()
        finally:
            if not race.done():
                race.cancel()


async def _until_changed(race: asyncio.Future[socket.socket], host: str, port: int, found: list[Found]) -> list[Found]:
    """Wait until an attempt ends, or its name stands for other addresses; those that it stands for."""
    while not (await asyncio.wait({race}, timeout=LOOK_AGAIN_S))[0]:
        with suppress(OSError, UnicodeError, asyncio.TimeoutError):
            again = await look_up(host, port)
            if sorted(_addresses(again)) != sorted(_addresses(found)):
                return again
    return found


async def _connect_to_any(found: list[Found], small: bool) -> socket.socket:
    """A connection to the first of these addresses that answers; the error of the last that failed where none does."""
    problem: BaseException | None = None
    to_try, attempts = list(found), set[asyncio.Future[socket.socket]]()
    try:
        while to_try or attempts:
            if to_try:
                attempts.add(asyncio.ensure_future(_connect(to_try.pop(0), small)))
            head_start_s = HEAD_START_S if to_try else None
            done, attempts = await asyncio.wait(attempts, timeout=head_start_s, return_when=asyncio.FIRST_COMPLETED)
            connected = [attempt.result() for attempt in done if attempt.exception() is None]
            for superfluous in connected[1:]:
                superfluous.close()
            if connected:
                return connected[0]
            for attempt in done:
                problem = attempt.exception()
    finally:
        for attempt in attempts:
            attempt.cancel()
    assert problem is not None, "a name that is found has an address"
    raise problem


async def _connect(found: Found, small: bool) -> socket.socket:
    family, kind, protocol, _, address = found
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        if small:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENTS[family])
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _addresses(found: list[Found]) -> list[str]:
    return [str(address[0]) for *_, address in found]
