"""The stage on which processes are started, and left again when the test ends."""

from collections.abc import Iterator

import pytest

from tests.faults.harness import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    try:
        yield made
    finally:
        made.end()
