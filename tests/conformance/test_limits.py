"""What a backend cannot do is declared in `kinds.py`, and is so; what is not declared, it can."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conformance.kinds import CANNOT, KINDS, NOT_ASKED, TIMEOUT_S
from tests.conformance.scene import Scene, Troupe
from tests.etcd.actor import EtcdActor
from tests.faults.harness import Actor, Server


def _is_declared(scene: Scene, what: str) -> bool:
    return scene.name in CANNOT[what]


def test_whether_a_killed_node_is_told_of_at_once(scene: Scene) -> None:
    a, b = scene.world("a", "b", nodes="1:2")
    began = time.monotonic()
    b.kill()
    a.changed()
    took_s = time.monotonic() - began
    if _is_declared(scene, "a killed node is told of at once"):
        assert TIMEOUT_S * 0.7 <= took_s <= TIMEOUT_S * 4
    else:
        assert took_s <= TIMEOUT_S * 0.7


def test_whether_a_run_id_is_free_at_once_when_all_nodes_were_killed(scene: Scene) -> None:
    old = scene.world("a", "b", nodes=2)
    fresh = scene.nodes("c", "d", nodes=2)
    for node in old:
        node.kill()
    began = time.monotonic()
    scene.meet(*fresh)
    took_s = time.monotonic() - began
    if _is_declared(scene, "a run id is free at once when all nodes were killed"):
        assert took_s >= TIMEOUT_S * 0.7
    else:
        assert took_s <= TIMEOUT_S * 0.7


@pytest.mark.parametrize("name", [name for name in KINDS if not KINDS[name].only_in_soak])
def test_whether_a_run_goes_on_when_its_server_was_restarted(name: str, troupe: Troupe, tmp_path: Path) -> None:
    what = "a run goes on when its server was restarted"
    kind = KINDS[name]
    if name in NOT_ASKED[what]:
        medium = kind.start(tmp_path)
        assert medium.actor is None
        return
    medium = kind.start(tmp_path)
    scene = Scene(name, kind, medium, troupe)
    again: Actor | None = None
    try:
        a, b = scene.world("a", "b", nodes="1:2", outage_grace=3, join_timeout=5)
        assert medium.actor is not None
        medium.actor.kill()
        if isinstance(medium.actor, (Server, EtcdActor)):
            again = _started_again(medium.actor)
            assert a.ask("bide", "bided", seconds=2.0)["count"] == 0
            b.kill()
            a.changed()
            scene.meet(a)
            return
        assert name in CANNOT[what]
        assert a.ask("bide", "bided", seconds=1.0)["count"] == 0
        # After the grace the members stop trusting their world; and there is none to be had any more.
        a.changed()
        a.join()
        assert "its backend cannot be reached" in a.failed("RendezvousTimeoutError")
    finally:
        scene.end()
        medium.end()
        if again is not None:
            again.kill()


def _started_again(actor: Server | EtcdActor) -> Actor:
    if isinstance(actor, EtcdActor):
        actor.start_again()
        return actor
    again = Server(actor.port, 7.0, None, 0)
    again.expect("serving")
    return again


def test_every_backend_of_the_table_is_in_the_suite() -> None:
    for limits in (*CANNOT.values(), *NOT_ASKED.values()):
        assert set(limits) <= set(KINDS)
