"""The address by which this machine is reached: the one from which it reaches another (rule 2).  Nothing is sent for it."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from itertools import chain
from pathlib import Path

from rallypoint.net import host_of, is_local, parse_endpoint, plain

_ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses that exist in examples only."""

_SIOCGIFADDR = 0x8915
"""What Linux calls the question for an interface's address."""


def own_address(host: str = "", port: int = 0) -> str:
    """The address from which this machine reaches a host, or any other machine where that cannot be said."""
    toward_host = address_toward(host, port) if host else ""
    if toward_host and (not is_local(toward_host) or is_local(host)):
        return toward_host
    elsewhere = (address for place in _ELSEWHERE if (address := address_toward(*place)))
    here = (address for address in _of_interfaces() if not is_local(address) and not ip_address(address).is_link_local)
    return next(chain(elsewhere, here), "127.0.0.1")


def address_among(endpoints: Iterable[str]) -> str:
    """The address from which this machine reaches some of these endpoints, one that others can use where there is one."""
    places = [parse_endpoint(endpoint, 0) for endpoint in endpoints]
    # A name that is not found says nothing about where this machine is.
    found = [own_address(*place) for place in places if address_toward(*place)] or [own_address()]
    return next((address for address in found if not is_local(address)), found[0])


def address_toward(host: str, port: int) -> str:
    """The address from which this machine would connect to a host; empty where there is no way, or no such name."""
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(plain(host), port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe, suppress(OSError):
                probe.connect(address)
                return host_of(probe.getsockname())
    return ""


def as_seen_by_others(local: str, host: str) -> str:
    """What others reach this machine by, where `local` is its end of a connection to `host`.

    Debian's hosts file gives a machine's own name a loopback address, 127.0.1.1, which nobody else reaches it by.
    """
    return own_address() if is_local(local) and not is_local(host) else local


def on_our_link(host: str, own: str) -> str:
    """A peer's address as this machine writes it: on one link, machines may call their interfaces differently."""
    bare, percent, _ = host.partition("%")
    _, _, scope = own.partition("%")
    return f"{bare}%{scope}" if percent and scope else host


def _of_interfaces() -> Iterator[str]:
    """The addresses of this machine's interfaces, in their order, where there is no way to anywhere else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no such address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield socket.inet_ntoa(answer[20:24])
    with suppress(OSError):  # this machine has no IPv6
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            yield str(IPv6Address(bytes.fromhex(line.split()[0])))
