"""Sockets for listening, bound exactly where they are told to be (rule 16)."""

from __future__ import annotations

import errno
import resource
import socket

BACKLOG = 8192
"""As many connections as may arrive in one instant; the kernel lowers it to its own limit (net.core.somaxconn)."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on this address and port; port 0 takes a free one.  OSError where it cannot be had.

    A name is bound where it resolves to first.  `::` takes IPv4 as well, `0.0.0.0` is IPv4 alone.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
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
