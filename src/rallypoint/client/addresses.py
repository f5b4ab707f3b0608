"""The address by which this machine is reached: the one from which it reaches another (rule 2).  Nothing is sent for it."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address

from rallypoint.net import parse_endpoint, plain

_ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses that exist in examples only."""


def own_address(host: str = "", port: int = 0) -> str:
    """The address from which this machine reaches a host, or any other machine where that cannot be said."""
    toward_host = address_toward(host, port) if host else ""
    if toward_host and (not _is_loopback(toward_host) or _is_loopback(host)):
        return toward_host
    return next((address for place in _ELSEWHERE if (address := address_toward(*place))), "127.0.0.1")


def address_among(endpoints: Iterable[str]) -> str:
    """The address from which this machine reaches some of these endpoints, one that others can use where there is one."""
    places = [parse_endpoint(endpoint, 0) for endpoint in endpoints]
    # A name that is not found says nothing about where this machine is.
    found = [own_address(*place) for place in places if address_toward(*place)] or [own_address()]
    return next((address for address in found if not _is_loopback(address)), found[0])


def address_toward(host: str, port: int) -> str:
    """The address from which this machine would connect to a host; empty where there is no way, or no such name."""
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(plain(host), port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, suppress(OSError):
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    with suppress(ValueError):
        ip_address(host)
        return True
    return False


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host.partition("%")[0]).is_loopback
    return host == "localhost"
