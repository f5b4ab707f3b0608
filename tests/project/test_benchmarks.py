"""The parts of the benchmarks that depend on how the package is started, and what they make of what they measured."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.compare_versions import Measurement, compare, measurements
from benchmarks.elected import since_back
from benchmarks.processes import server
from benchmarks.versions import Version


def test_a_benchmark_starts_the_server_of_the_command_line() -> None:
    with server() as (endpoint, pid):
        host, _, port = endpoint.rpartition(":")
        socket.create_connection((host, int(port))).close()
        assert pid


def test_a_figure_of_torch_stands_beside_ours_of_the_same_name_only() -> None:
    found = {"": 1.0, ": writes": 3.0}
    measurement = Measurement("form 4", "etcd-v3", 4, lambda _: found, torch=lambda: {"": 2.0})
    seconds, writes = compare(measurement, Version("a", Path("a")), Version("b", Path("b")), turns=1)
    assert (seconds.before, seconds.now, seconds.torch) == ([1.0], [1.0], [2.0])
    assert (writes.before, writes.now, writes.torch) == ([3.0], [3.0], None)


def test_a_world_that_is_told_before_etcd_is_back_is_no_good_figure() -> None:
    assert since_back(12.5, 12.25) == 0.25
    with pytest.raises(RuntimeError, match="before etcd was back"):
        since_back(0.2, 12.0)


def test_each_kind_of_server_is_measured_with_a_death_of_a_node_that_does_not_serve() -> None:
    """And torch's own backend is measured beside ours, wherever it has one that can do the same."""
    all_of_them = list(measurements())
    kinds = {each.server for each in all_of_them}
    assert kinds == {
        each.server for each in all_of_them if each.what.startswith(("kill -9 of one", "kill -9 of a node"))
    }
    with_torch = {(each.server, each.nodes) for each in all_of_them if each.torch is not None}
    assert with_torch >= {("etcd-v3", 4), ("etcd-v3", 64), ("etcd-v2", 64), ("c10d", 4)}
