"""The processes that a test starts; they end with it."""

from collections.abc import Iterator

import pytest

from tests.support.node_processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    try:
        yield made
    finally:
        made.end()
