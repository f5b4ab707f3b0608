"""A socket that listens exactly where it is told to (rule 16)."""

from __future__ import annotations

import socket
from typing import Any

BACKLOG = 8192
"""As many connections as may arrive in one instant; the kernel lowers it to its own limit (net.core.somaxconn)."""


def plain(host: str) -> str | bytes:
    """A host as `getaddrinfo` takes it most quickly: for text it loads a codec that only names beyond ASCII need."""
    return host.encode() if host.isascii() else host


def listen_at(family: int, address: Any) -> socket.socket:
    """A listening socket on an address as `getaddrinfo` gives it.  OSError where it cannot be had.

    `::` takes IPv4 as well; every other address stands for itself alone.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these: that of a machine which lost its power is not kept for ever, and a second message
        # does not wait for the peer to confirm the first, which peers put off for 40 ms.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
