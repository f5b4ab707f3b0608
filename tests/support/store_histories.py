"""Many processes at two keys of one store, each of which notes what it asked, when, and what it was told."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tests.support.linearizability import Call, explain
from tests.support.remote_stores import start_process
from tests.support.store_kinds import SOON_S

CALLS = 80


def call_at_random(store: Any, seed: int, callers: int, pipe: Connection) -> None:
    """One process: calls chosen at random, with the moments of their beginning and end."""
    dice = random.Random(seed)
    values = [b"", b"a", b"b", b"c"]
    calls: list[Call] = []
    store.barrier("start", callers)
    for _ in range(CALLS):
        args: tuple[bytes | int, ...]
        if dice.random() < 0.5:
            key, verb, args = "counter", "add", (dice.randrange(-3, 4),)
        else:
            key, verb, args = "register", "compare_set", (dice.choice(values), dice.choice(values))
        if dice.random() < 0.2 and any(call.key == key and _shows_a_value(call) for call in calls):
            verb, args = "get", ()
        began = time.monotonic_ns()
        answer = getattr(store, verb)(key, *args)
        calls.append(Call(began, time.monotonic_ns(), verb, key, args, answer))
    pipe.send(calls)
    pipe.recv()  # the end


def _shows_a_value(call: Call) -> bool:
    """Whether the key has a value since this call.

    A comparison with a key that is absent is answered by what was expected.  Of a torch client that waits for an absent
    key in `get`, torch's server ends the wait at such a comparison by anybody, and the client takes an empty value for it.
    """
    if call.verb == "compare_set" and call.args[0] and call.answer == call.args[0]:
        return False
    return call.answer != b""


def check_history(task: Callable[..., None], callers: Sequence[tuple[object, ...]]) -> None:
    """Start a process for each player: what it is given, then its seed, their number, and a pipe.  One order explains all."""
    pipes, processes = [], []
    for seed, given in enumerate(callers):
        ours, theirs = multiprocessing.Pipe()
        processes.append(start_process(task, *given, seed, len(callers), theirs))
        theirs.close()
        pipes.append(ours)
    history: list[Call] = []
    for pipe in pipes:
        assert pipe.poll(SOON_S), "a process has not finished its calls"
        history += pipe.recv()
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.close()
        process.join(SOON_S)
    assert len(history) == CALLS * len(callers)
    overlapping = sum(a.began < b.ended and b.began < a.ended for a in history for b in history) - len(history)
    assert overlapping > 0, "nothing happened at once, so nothing was shown"
    why = explain(history)
    assert why is None, why
