"""Many nodes meet through one c10d store: nobody starves, however many try to write at once."""

from __future__ import annotations

import pytest

from tests.conformance.backend_kinds import KINDS
from tests.support.node_processes import ControlledProcess

PROCESSES = 4
LIMIT_S = 60.0
"""torch's own nodes do not form at 256 within 300 s on two cores."""


@pytest.mark.parametrize("kind", [pytest.param("torch", marks=pytest.mark.soak), "ours"])
@pytest.mark.parametrize(
    "total", [32, pytest.param(128, marks=pytest.mark.soak), pytest.param(256, marks=pytest.mark.soak)]
)
def test_a_crowd_forms(kind: str, total: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = "c10d tcp, torch's store" if kind == "torch" else "c10d tcp, our store"
    medium = KINDS[name].start(tmp_path_factory.mktemp("medium"))
    share = str(total // PROCESSES)
    groups: list[ControlledProcess] = []
    try:
        groups += [
            ControlledProcess("tests.conformance.many_nodes", share, str(total), medium.endpoint, kind)
            for _ in range(PROCESSES)
        ]
        for group in groups:
            group.expect("ready", 120.0)
        for group in groups:
            group.order("go")
        formed = [group.expect("formed", LIMIT_S) for group in groups]
    finally:
        for group in groups:
            group.kill()
        medium.end()
    assert sorted(rank for event in formed for rank in event["ranks"]) == list(range(total))
