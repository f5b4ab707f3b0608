"""The stage on which processes are started, and left again when the test ends."""

from collections.abc import Iterator

import pytest

from tests.support.node_processes import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    try:
        yield made
    finally:
        made.end()
