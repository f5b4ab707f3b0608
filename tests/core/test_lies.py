"""What a liar may say costs the server little, and the honest nodes of the run nothing (rule 15)."""

from __future__ import annotations

import json

import msgspec
import pytest

from rallypoint import protocol
from rallypoint.core import recovery
from rallypoint.core.model import Phase
from rallypoint.errors import RendezvousStateError
from rallypoint.messages.notices import Fenced
from rallypoint.messages.requests import Announced, Joined, Seat, Standing
from rallypoint.messages.types import MOST_ROUNDS, MOST_SEEN, Bounds, Settings
from tests.support.run_driver import RunDriver, member

HOLD_S = 7.0


def test_a_large_world_of_which_one_node_speaks_costs_no_more_than_that_node() -> None:
    driver = RunDriver(1, 100_000)
    driver.run = recovery.blank("run", driver.now, driver.now, HOLD_S)
    driver.announce("a", Standing.HOLDS, seat=Seat(4, "s4", 100_000, 7), incarnation="old")
    driver.wait(HOLD_S)
    assert driver.run.phase is Phase.GATHERING
    assert "only 1 of 100000 ranks" in driver.why
    assert len(driver.run.ranks) == 1
    assert driver.run.world is not None
    assert len(set(map(id, driver.run.world.members))) == 2


@pytest.mark.parametrize("part", ["size", "bounds"])
def test_a_world_of_more_than_a_hundred_thousand_is_refused_before_anything_is_built(part: str) -> None:
    said = Announced(member("a"), Bounds(1, 100_000), Standing.HOLDS, incarnation="old", seat=Seat(4, "s4", 100_000, 0))
    words = msgspec.json.decode(protocol.frame(said)[4:])
    protocol.read(json.dumps(words).encode(), protocol.FROM_NODE)
    words["seat" if part == "size" else "bounds"]["size" if part == "size" else "max"] = 100_001
    with pytest.raises(RendezvousStateError):
        protocol.read(json.dumps(words).encode(), protocol.FROM_NODE)


@pytest.mark.parametrize("name", [name for name in Settings.__struct_fields__ if name.endswith("_s")])
def test_no_node_makes_a_server_wait_for_longer_than_a_month(name: str) -> None:
    said = Joined(member("a"), Bounds(1, 1), msgspec.structs.replace(Settings(), **{name: 31 * 86400.0}))
    with pytest.raises(RendezvousStateError, match=name):
        protocol.read(protocol.frame(said)[4:], protocol.FROM_NODE)


@pytest.mark.parametrize("round_", [2**31, MOST_SEEN, MOST_ROUNDS, 2**53])
@pytest.mark.parametrize("lie", ["seen", "seat"])
def test_rounds_that_never_were_do_not_make_the_next_ones_unspeakable(lie: str, round_: int) -> None:
    driver = RunDriver(2)
    if lie == "seen":
        driver.take(Joined(member("liar"), driver.bounds, driver.settings, round_seen=min(round_, MOST_SEEN)))
    else:
        driver.take(Joined(member("liar"), driver.bounds, driver.settings, "other", Seat(round_, "s", 2, 0)))
    driver.join("a", "b")
    assert {"a", "b"} & set(driver.ranked)
    told = [
        Announced(member(i), driver.bounds, Standing.HOLDS, incarnation=driver.run.incarnation, seat=driver.seat(i))
        for i in driver.ranked
    ]
    # The server starts anew, and the members of the world are believed.
    driver.run = recovery.blank("run", driver.now, driver.now, HOLD_S)
    for said in told:
        assert protocol.read(protocol.frame(said)[4:], protocol.FROM_NODE) == said
        driver.take(said)
    assert driver.run.current is not None


def test_a_round_seen_that_cannot_be_is_refused() -> None:
    said = Joined(member("liar"), Bounds(1, 1), round_seen=MOST_SEEN + 1)
    with pytest.raises(RendezvousStateError, match="round_seen"):
        protocol.read(protocol.frame(said)[4:], protocol.FROM_NODE)


def test_a_seat_in_a_round_that_cannot_be_is_fenced() -> None:
    driver = RunDriver(1)
    driver.run = recovery.blank("run", driver.now, driver.now, HOLD_S)
    driver.announce("liar", Standing.HOLDS, seat=Seat(MOST_ROUNDS + 1, "s", 1, 0), incarnation="old")
    assert "which cannot be" in driver.answer("liar", Fenced).why
    driver.wait(HOLD_S)
    driver.join("a")
    assert driver.ranked == ["a"]
    assert driver.run.round == 1
