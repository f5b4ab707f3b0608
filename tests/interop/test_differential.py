"""The same random operations on torch's components and on ours, on real servers, from several processes at once."""

from __future__ import annotations

import pytest

from tests.interop.differential import COMPONENTS, Servers, histories
from tests.support.etcd_servers import shared
from tests.support.remote_stores import start_process

PROCESSES = 4


@pytest.mark.parametrize("operations", [400, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_answer_is_torchs(component: str, operations: int, our_port: int, their_port: int) -> None:
    servers = Servers(their_port, our_port, shared().members[0].port)
    found = list(histories(component, servers, PROCESSES, operations // PROCESSES, start_process))
    assert [difference for _, difference in found if difference] == []
    assert sum(done for done, _ in found) == operations
