"""What the tests of etcd share: servers, clients, and names that nobody else has."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.backends.etcd_v2_client import make_client
from tests.etcd_v2.answer_losing_proxy import Proxy, proxy_to
from tests.support.etcd_servers import VERSIONS, Cluster, running, shared


@pytest.fixture(params=VERSIONS)
def etcd(request: pytest.FixtureRequest) -> Cluster:
    """A server that all tests share, of each version."""
    return shared(request.param)


@pytest.fixture
def one_etcd() -> Cluster:
    """A server that all tests share."""
    return shared("3.5")


@pytest.fixture
def own_etcd() -> Iterator[Cluster]:
    """A server to do harm to."""
    with running("3.5") as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Three members to do harm to."""
    with running("3.5", 3) as cluster:
        yield cluster


@pytest.fixture
def client(etcd: Cluster) -> Any:
    return etcd.client()


@pytest.fixture
def name() -> str:
    """A run id or a directory that nobody else has."""
    return secrets.token_hex(12)


@pytest.fixture
def proxy(one_etcd: Cluster) -> Iterator[Proxy]:
    with proxy_to(one_etcd.members[0].port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy) -> Any:
    """A client whose answers can get lost."""
    return make_client([("127.0.0.1", proxy.port)], read_timeout_s=30)
