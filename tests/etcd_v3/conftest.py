"""Processes that end with their test, and a cluster that tests share where they do it no harm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.etcd_node_processes import EtcdProcesses, Observer, fresh_run, observing
from tests.support.etcd_servers import Cluster, shared


@pytest.fixture
def processes() -> Iterator[EtcdProcesses]:
    processes = EtcdProcesses()
    yield processes
    processes.end()


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """What is to be done at the end, whatever happens."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def run() -> str:
    """A run id that nobody else has."""
    return fresh_run()


@pytest.fixture
def cluster() -> Cluster:
    """Three members of etcd 3.5, for tests that do them no harm."""
    return shared("3.5", 3)


@pytest.fixture
def old_cluster() -> Cluster:
    """Three members of etcd 3.4, for tests that do them no harm."""
    return shared("3.4", 3)


@pytest.fixture
def observer(cluster: Cluster, run: str) -> Iterator[Observer]:
    with observing(cluster.endpoints, run) as observer:
        yield observer


@pytest.fixture
def old_observer(old_cluster: Cluster, run: str) -> Iterator[Observer]:
    with observing(old_cluster.endpoints, run) as observer:
        yield observer
