"""The environment of a worker."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import msgspec
import pytest

import rallypoint
from rallypoint.launcher.worker_env import WorkerPlace, parse_template, worker_environment

PLACE = WorkerPlace(
    run_id="job",
    round=3,
    fence="r1/3/s9",
    rank=5,
    world_size=8,
    local_rank=1,
    local_world_size=4,
    group_rank=1,
    group_world_size=2,
    store=("10.0.0.1", 4000),
    coordinator=("10.0.0.1", 4001),
    peers_file="/tmp/peers.json",
    role_rank=3,
    role_world_size=6,
    restarts=2,
    max_restarts=3,
)


def test_a_script_for_torchrun_finds_its_variables() -> None:
    environment = worker_environment({"PATH": "/bin", "RANK": "outdated"}, PLACE)
    expected = {
        "PATH": "/bin",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: environment[name] for name in expected} == expected


def test_a_program_for_jax_and_one_of_ours_find_theirs() -> None:
    environment = worker_environment({}, PLACE)
    assert environment["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:4001"
    assert (environment["JAX_NUM_PROCESSES"], environment["JAX_PROCESS_ID"]) == ("8", "5")
    assert environment["RALLYPOINT_STORE"] == "10.0.0.1:4000"
    assert (environment["RALLYPOINT_ROUND"], environment["RALLYPOINT_FENCE"]) == ("3", "r1/3/s9")


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    environment = worker_environment({}, msgspec.structs.replace(PLACE, store=("::1", 7)))
    assert (environment["MASTER_ADDR"], environment["RALLYPOINT_STORE"]) == ("::1", "[::1]:7")


def test_what_the_user_set_stays() -> None:
    assert worker_environment({"OMP_NUM_THREADS": "8"}, PLACE)["OMP_NUM_THREADS"] == "8"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment({}, PLACE)


def test_templates_are_filled_in() -> None:
    template = parse_template("OMPI_COMM_WORLD_RANK={rank}-of-{world_size}{{}}")
    assert worker_environment({}, PLACE, [template])["OMPI_COMM_WORLD_RANK"] == "5-of-8{}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("RANK", "is not NAME=TEXT"),
        ("2X={rank}", "is not NAME=TEXT"),
        ("X={rnak}", r"did you mean \{rank\}\?"),
        ("X={", "cannot be read"),
        ("X={rank!r}", "is none of"),
        ("X={}", "is none of"),
    ],
)
def test_a_bad_template_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_template(text)


def test_the_document_names_every_variable() -> None:
    document = Path(__file__).parents[2] / "docs" / "launcher.md"
    chapter = document.read_text().partition("# What the workers find in their environment")[2].partition("\n#")[0]
    named = set(re.findall(r"`([A-Z][A-Z_]+)`", chapter))
    assert named == set(worker_environment({}, PLACE))


def test_a_worker_knows_its_place_without_connecting_to_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it connects")

    peers = tmp_path / "peers.json"
    peers.write_text(json.dumps([{"rank": 0, "name": "a", "address": "10.0.0.1", "workers": 4}]))
    monkeypatch.setattr(socket, "create_connection", refuse)
    me = rallypoint.worker(worker_environment({}, msgspec.structs.replace(PLACE, peers_file=str(peers))))
    assert (me.run_id, me.round, me.fence) == ("job", 3, "r1/3/s9")
    assert (me.rank, me.world_size, me.local_rank, me.node_rank) == (5, 8, 1, 1)
    assert [peer["name"] for peer in me.peers()] == ["a"]
    with pytest.raises(AssertionError, match="it connects"):
        me.store.get("key")
