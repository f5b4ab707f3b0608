"""Very many nodes that connect in one instant, in a network of their own: `unshare --net python -m tests.faults.connection_flood N`.

The server is stopped while they connect, so that nothing but the kernel's queue can hold them.
"""

from __future__ import annotations

import fcntl
import json
import resource
import socket
import struct
import sys
from pathlib import Path

from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Settings
from tests.support.node_processes import Processes
from tests.support.protocol_client import ProtocolClient

COUNTERS = ("ListenOverflows", "ListenDrops", "TCPSynRetrans", "TCPReqQFullDrop", "TCPReqQFullDoCookies")
CALM = Settings(heartbeat_interval_s=600.0, heartbeat_timeout_s=3600.0)
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def raise_loopback() -> None:
    """A new network has a loopback interface, but it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def counters() -> dict[str, int]:
    """What the kernel has counted in this network."""
    names, values = [
        line.split()[1:]
        for line in Path("/proc/self/net/netstat").read_text(encoding="ascii").splitlines()
        if line.startswith("TcpExt:")
    ]
    found = dict(zip(names, map(int, values), strict=True))
    return {name: found[name] for name in COUNTERS}


def main(count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    raise_loopback()
    processes = Processes()
    wires: list[ProtocolClient] = []
    try:
        server = processes.server()
        before = counters()
        server.pause()
        wires += [ProtocolClient("127.0.0.1", server.port) for _ in range(count)]
        server.resume()
        for number, wire in enumerate(wires):
            wire.hello("crowd", f"n{number}")
            wire.join(f"n{number}", count, count, CALM)
        ranks = sorted(wire.expect(Placed).rank for wire in wires)
        print(json.dumps({"before": before, "after": counters(), "placed": ranks == list(range(count))}))
    finally:
        for wire in wires:
            wire.socket.close()
        processes.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))
