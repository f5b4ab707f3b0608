"""In which order tests are given out to several workers: what takes long comes first, so that none is left with it at the end.

`--no-loadscope-reorder` keeps this order; without it, xdist sorts groups by how many tests they have.
"""

from __future__ import annotations

import pytest

LONG = (
    "tests/simulation/test_campaign.py",
    "tests/torchrun/",
    "tests/conformance/",
    "tests/etcd_v3/",
    "tests/faults/",
    "tests/etcd_client/",
    "tests/etcd_v2/",
    "tests/simulation/",
    "tests/cli/",
)


def place(item: pytest.Item) -> int:
    """Where a test stands among the others; tests with the same place stay as they were collected."""
    return next((number for number, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG))
