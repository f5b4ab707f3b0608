"""Shared servers for tests that do them no harm, in both versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rallypoint.etcd_client import EtcdClient
from tests.support.etcd_servers import VERSIONS, Cluster, shared
from tests.support.etcd_tools import fresh, user_of


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Cluster:
    """A single member."""
    return shared(request.param)


@pytest.fixture
def client(server: Cluster) -> Iterator[EtcdClient]:
    """A client of it."""
    with user_of(server) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    """Keys of one's own on a shared server."""
    return fresh()
