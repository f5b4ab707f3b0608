"""Every test of the suite runs on every backend; those of one backend run one after another, on one worker.

What takes long is left to the soaks where the quick suite shows it elsewhere: on the server in `tests/faults`, on records
in files by a user's own backend, on the older etcd protocol in `tests/etcd_v2`.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.backend_kinds import KINDS, Medium
from tests.conformance.backend_selection import params
from tests.conformance.node_processes import BackendDriver, NodePool


@pytest.fixture(scope="session")
def node_pool() -> Iterator[NodePool]:
    made = NodePool()
    try:
        yield made
    finally:
        made.end()


LONG = ("comes_back", "clocks", "short_pause", "early_finisher", "last_call_is_not", "server_was_restarted")
SHOWN_ELSEWHERE = ("rallypoint]", "c10d file, our store]", "etcd]")
SERVER_GONE = (
    "server_was_restarted[c10d tcp, torch's store]",
    "server_is_gone_for_good_is_told_of[c10d tcp, torch's store]",
)
"""torch takes seconds to import, and our own store behaves alike."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, kind = item.name.partition("[")
        is_long = any(part in name for part in LONG) and kind.startswith(SHOWN_ELSEWHERE)
        if item.path.parent.name == "conformance" and (is_long or item.name.endswith(SERVER_GONE)):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Medium]]:
    """What nodes meet through, one for each backend; each test has a run of its own in it."""
    made: dict[str, Medium] = {}
    try:
        yield made
    finally:
        for medium in made.values():
            medium.end()


@pytest.fixture(params=params(KINDS))
def driver(
    request: pytest.FixtureRequest,
    node_pool: NodePool,
    media: dict[str, Medium],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BackendDriver]:
    name: str = request.param
    if name not in media or media[name].process is None:
        # A server is kept, for torch takes seconds to import; a file costs nothing.
        media[name] = KINDS[name].start(tmp_path_factory.mktemp("medium"))
    made = BackendDriver(name, KINDS[name], media[name], node_pool)
    try:
        yield made
    finally:
        made.end()
