"""Which worker failed first: real workers that talk to each other, real faults, and what every launcher says of it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.launcher.conftest import Launch
from tests.launcher.fault_program import FAULTS, REACTIONS
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S

SETTINGS = "last_call_timeout=0.2,heartbeat_timeout=5,join_timeout=60"
NODES, WORKERS = 3, 2
RANKS = NODES * WORKERS
CODES = {"exception": 1, "exit code": 17, "abort": 134, "segfault": 139, "kill": 137, "hang": 137}


def mixture(seed: int) -> dict[str, Any]:
    """Which launcher meets which fault, and what the others do."""
    chance = random.Random(seed)
    victims = chance.sample(range(RANKS), 2 if chance.random() < 0.2 else 1)
    at_s = chance.uniform(0.0, 0.3)
    faults = {}
    for number, rank in enumerate(victims):
        faults[str(rank)] = {
            "kind": chance.choice(sorted(FAULTS)) if number == 0 else "segfault",
            "at_s": at_s,
            "ends_after_s": chance.choice([0.0, 0.0, 0.2, 0.7]),
            "hangs_s": chance.choice([0.2, 1.0]),
        }
    reactions = [
        {"how": chance.choice(sorted(REACTIONS)), "after_s": chance.choice([0.0, 0.0, 0.1, 0.4])} for _ in range(RANKS)
    ]
    return {"faults": faults, "reactions": reactions, "timeout_s": chance.choice([0.5, 3.0])}


def alone(kind: str, **more: float) -> dict[str, Any]:
    """One fault on the last rank of the middle node."""
    fault = {"kind": kind, "at_s": 0.1, "ends_after_s": 0.3, "hangs_s": 0.8, **more}
    reactions = [{"how": how, "after_s": 0.0} for how in (*REACTIONS, "raises", "aborts")]
    return {"faults": {"3": fault}, "reactions": reactions, "timeout_s": 0.5}


def play(launch: Launch, plan: dict[str, Any]) -> list[tuple[int, str]]:
    """Exit code and stderr of each launcher."""
    arguments = (
        *("--nnodes", str(NODES), "--nproc-per-node", str(WORKERS), "--rdzv", f"127.0.0.1:{free_port()}"),
        *("--rdzv-conf", SETTINGS, "--max-restarts", "0", "--grace", "2s"),
    )
    program = (sys.executable, "-m", "tests.launcher.fault_program", json.dumps(plan))
    launchers: list[subprocess.Popen[str]] = [launch(*arguments, "--", *program) for _ in range(NODES)]
    return [(launcher.communicate(timeout=PATIENCE_S)[1], launcher.returncode)[::-1] for launcher in launchers]


def verdict_on(plan: dict[str, Any], ended: list[tuple[int, str]]) -> str:
    """What is wrong with what the launchers said; empty where it is right and the same everywhere."""
    named = {match[1] for _, err in ended if (match := re.search(r"rank (\d+) on \S+ failed first", err))}
    if any("failed first" not in err for _, err in ended) or len(named) != 1:
        return f"the launchers do not agree: {sorted(named)}"
    first = named.pop()
    if first not in plan["faults"]:
        return f"rank {first} is named, and not one of {sorted(plan['faults'])}"
    code = CODES[plan["faults"][first]["kind"]]
    codes = {code for code, _ in ended}
    return "" if codes == {code} else f"the exit codes are {sorted(codes)}, not {code}"


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_each_kind_of_fault_is_named_by_every_node(launch: Launch, kind: str) -> None:
    plan = alone(kind)
    ended = play(launch, plan)
    assert not verdict_on(plan, ended), ended[0][1]
    said = ended[0][1]
    assert "failed only because of it" in said
    if kind == "exception":
        assert "Traceback (most recent call last):" in said
        assert "ValueError: loss is nan" in said


def test_two_at_once_are_both_named(launch: Launch) -> None:
    plan = alone("segfault")
    plan["faults"]["0"] = {**plan["faults"]["3"]}
    ended = play(launch, plan)
    assert not verdict_on(plan, ended), ended[0][1]
    assert re.search(r"rank [03] on \S+ failed first(.|\n)*rank [03] failed by itself after that", ended[0][1])


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_faults_is_judged_rightly(launch: Launch, seed: int) -> None:
    plan = mixture(seed)
    ended = play(launch, plan)
    assert not verdict_on(plan, ended), (plan, ended[0][1])


@pytest.mark.soak
def test_at_least_95_of_100_mixtures_are_judged_rightly(launch: Launch) -> None:
    wrong = {}
    for seed in range(100):
        plan = mixture(seed)
        if trouble := verdict_on(plan, play(launch, plan)):
            wrong[seed] = trouble
    assert len(wrong) <= 5, wrong
