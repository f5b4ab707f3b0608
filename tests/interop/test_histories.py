"""Many processes of both kinds at two keys of one server: their answers are explained by one order."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

from rallypoint.stores import TcpStore
from tests.interop.remote import start_process
from tests.stores.kinds import SOON, SOON_S
from tests.stores.linearizability import Call, explain

CALLS = 80


def record(kind: str, port: int, seed: int, workers: int, pipe: Connection) -> None:
    """One process: calls chosen at random, with the moments of their beginning and end."""
    store: Any
    if kind == "torch":
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", port, timeout=SOON)
    else:
        store = TcpStore("127.0.0.1", port, timeout=SOON)
    dice = random.Random(seed)
    values = [b"", b"a", b"b", b"c"]
    calls: list[Call] = []
    store.barrier("start", workers)
    for _ in range(CALLS):
        args: tuple[bytes | int, ...]
        if dice.random() < 0.5:
            key, verb, args = "counter", "add", (dice.randrange(-3, 4),)
        else:
            key, verb, args = "register", "compare_set", (dice.choice(values), dice.choice(values))
        if dice.random() < 0.2 and any(call.key == key and call.answer != b"" for call in calls):
            verb, args = "get", ()
        began = time.monotonic_ns()
        answer = getattr(store, verb)(key, *args)
        calls.append(Call(began, time.monotonic_ns(), verb, key, args, answer))
    pipe.send(calls)
    pipe.recv()  # the end


MIXED = ("ours", "torch") * 3


@pytest.mark.parametrize("kinds", [("ours",) * 6, ("torch",) * 6, MIXED], ids=["ours", "torch", "mixed"])
def test_add_and_compare_set_are_linearizable_on_our_server(our_port: int, kinds: tuple[str, ...]) -> None:
    check_history(our_port, kinds)


def test_they_are_so_on_a_server_of_torch(their_port: int) -> None:
    check_history(their_port, MIXED)


def check_history(port: int, kinds: tuple[str, ...]) -> None:
    pipes, processes = [], []
    for seed, kind in enumerate(kinds):
        ours, theirs = multiprocessing.Pipe()
        processes.append(start_process(record, kind, port, seed, len(kinds), theirs))
        theirs.close()
        pipes.append(ours)
    history: list[Call] = []
    for pipe in pipes:
        assert pipe.poll(SOON_S), "a process has not finished its calls"
        history += pipe.recv()
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.close()
        process.join(SOON_S)
    assert len(history) == CALLS * len(kinds)
    overlapping = sum(a.began < b.ended and b.began < a.ended for a in history for b in history) - len(history)
    assert overlapping > 0, "nothing happened at once, so nothing was shown"
    assert explain(history) is None
