"""Sockets for listening, bound exactly where they are told to be (rule 16)."""

from __future__ import annotations

import errno
import resource
import socket

from rallypoint.stores.listening import listen_at


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on this address and port; port 0 takes a free one.  OSError where it cannot be had.

    A name is bound where it resolves to first.  `::` takes IPv4 as well, `0.0.0.0` is IPv4 alone.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    listener = listen_at(family, address)
    listener.setblocking(False)
    return listener


def is_taken(exc: OSError) -> bool:
    """Whether a socket could not be bound because somebody else has the address."""
    return exc.errno == errno.EADDRINUSE


def raise_file_limit() -> int:
    """Allow this process as many open files as it may have, and say how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1_000_000
