"""How much a server takes on before it refuses in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Bounds that keep one client from harming the others."""

    connections: int = 100_000
    runs: int = 10_000
    nodes_a_run: int = 200_000
    silent_connections: int = 16_384
    """Connections that have not said hello."""
    hello_s: float = 10.0
    """How long one may take to say it."""
    frame: int = 64 * 1024
    unread: int = 4 * 1024 * 1024
    """Bytes that wait for a peer that does not read."""
