"""The sentences of rule 11 read well with one, with many, and with nobody."""

from __future__ import annotations

import pytest

from rallypoint import wording
from rallypoint.messages.notices import KeepWaiting, StandBy
from rallypoint.messages.types import Bounds, Role
from tests.support.run_driver import RunDriver, sealed


def test_many_names_are_cut_short_and_counted() -> None:
    assert wording.names(iter("abcdefgh"), 8) == "a, b, c, d, e, f and 2 more"
    assert wording.names(iter("abcdef"), 6) == "a, b, c, d, e, f"
    assert wording.names(iter(()), 0) == "nobody"


def test_no_time_left_is_not_less_than_none() -> None:
    assert wording.seconds(-3.0) == "0.0 s"
    assert wording.seconds(1.25) == "1.2 s"


@pytest.mark.parametrize(
    ("bounds", "size"), [(Bounds(1, 1), "1 node"), (Bounds(4, 4), "4 nodes"), (Bounds(1, 4), "1:4 nodes")]
)
def test_a_size_is_said_as_people_say_it(bounds: Bounds, size: str) -> None:
    assert wording.size(bounds) == size


def test_a_first_round_says_who_is_here_and_how_many_are_missing() -> None:
    driver = RunDriver(4)
    assert driver.situation() == "0 of at least 1 node is here (nobody); 1 more must come"
    driver.join("a", "b")
    assert driver.situation() == "2 of at least 4 nodes are here (a, b); 2 more must come"


def test_a_running_round_says_who_works_who_waits_and_who_is_done() -> None:
    driver = sealed(2, 5, members="abc")
    assert driver.situation() == "round 1 runs with 3 nodes"
    driver.join("d")
    assert driver.situation() == "round 1 runs with 3 nodes, 1 node waiting"
    driver.finish("c")
    assert driver.situation() == "round 1 runs with 2 nodes, 1 node waiting, 1 node finished"


def test_a_regrouping_round_says_who_is_back_and_who_is_not() -> None:
    driver = sealed(2, 4, members="abc")
    driver.lose("c")
    assert driver.situation() == "nobody is here; a, b still have to stop and come back, at most 60.0 s more"
    driver.now += 20
    driver.join_again("a")
    assert driver.situation() == "a is here; b still has to stop and come back, at most 40.0 s more"
    driver.join("d")
    assert driver.situation() == "a, d are here; b still has to stop and come back, at most 40.0 s more"


def test_a_spare_is_told_why_it_stands_by() -> None:
    driver = RunDriver(2)
    driver.join("s", role=Role.SPARE)
    assert driver.answer("s", StandBy).why == "standing by as a spare of 2 nodes"
    driver.join("a", "b")
    driver.join("r", role=Role.SPARE)
    assert driver.answer("r", StandBy).why == "round 1 runs with 2 of at most 2 nodes: standing by as a spare"


def test_a_newcomer_is_told_when_it_will_be_let_in() -> None:
    driver = sealed(2, 3, admit_delay_s=10)
    driver.join("c")
    young = driver.answer("c", KeepWaiting)
    assert young.why == (
        "round 1 runs with 2 of at most 3 nodes: newcomers are admitted in 10.0 s, when this round is old enough"
    )
    driver.wait(10)
    driver.join("c")
    assert driver.answer("c", KeepWaiting).why.endswith("newcomers are admitted when its members regroup")


def test_the_gist_of_a_sentence_does_not_change_with_the_clock() -> None:
    assert wording.gist("the last call ends in 4.0 s") == wording.gist("the last call ends in 12 s")
    assert wording.gist("1 of 2 nodes are here; 3.5 s") != wording.gist("2 of 2 nodes are here; 3.5 s")
