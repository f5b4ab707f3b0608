"""Many processes of both kinds at two keys of one server: their answers are explained by one order."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest

from rallypoint.stores import TcpStore
from tests.support.store_histories import call_at_random, check_history
from tests.support.store_kinds import SOON


def record(kind: str, port: int, seed: int, callers: int, pipe: Connection) -> None:
    """One process, with a client of either kind."""
    store: Any
    if kind == "torch":
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", port, timeout=SOON)
    else:
        store = TcpStore("127.0.0.1", port, timeout=SOON)
    call_at_random(store, seed, callers, pipe)


MIXED = ("ours", "torch") * 3


@pytest.mark.parametrize("kinds", [("ours",) * 6, ("torch",) * 6, MIXED], ids=["ours", "torch", "mixed"])
def test_add_and_compare_set_are_linearizable_on_our_server(our_port: int, kinds: tuple[str, ...]) -> None:
    check_history(record, [(kind, our_port) for kind in kinds])


def test_they_are_so_on_a_server_of_torch(their_port: int) -> None:
    check_history(record, [(kind, their_port) for kind in MIXED])
