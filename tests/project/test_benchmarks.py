"""The parts of the benchmarks that depend on how the package is started."""

from __future__ import annotations

import socket

from benchmarks.processes import server


def test_a_benchmark_starts_the_server_of_the_command_line() -> None:
    with server() as (endpoint, pid):
        host, _, port = endpoint.rpartition(":")
        socket.create_connection((host, int(port))).close()
        assert pid
