"""Sockets for listening, bound exactly where they are told to be (rule 16)."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from rallypoint.net import listen


def listen_on_first(address: str, ports: Iterable[int]) -> socket.socket:
    """A socket that listens on the first of these ports that can be had; OSError where none can."""
    problem: OSError | None = None
    for port in ports:
        try:
            return listen(address, port)
        except OSError as exc:  # noqa: PERF203  # a range has few ports
            problem = exc
    assert problem is not None, "there is at least one port"
    raise OSError(problem.strerror or str(problem)) from problem


def ports_in_words(ports: tuple[int, ...]) -> str:
    """Ports as they stand in a sentence."""
    if ports == (0,):
        return "any"
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"


def is_from_this_machine(peer: tuple[str, int] | None, own: tuple[str, int] | None) -> bool:
    """Whether a connection comes from a loopback address, or from the address that it came to, which is this machine's."""
    if not peer or not own:
        return False
    address = ip_address(peer[0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or peer[0] == own[0]


def is_taken(exc: OSError) -> bool:
    """Whether a socket could not be bound because somebody else has the address."""
    return exc.errno == errno.EADDRINUSE


def file_limit(*, raised: bool) -> int:
    """How many files this process may open; `raised` allows it as many as it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raised and soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1_000_000
