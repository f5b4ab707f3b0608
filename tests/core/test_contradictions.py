"""What cannot be true is refused in words, whichever node says it, and what is said late does no harm."""

from __future__ import annotations

import msgspec
import pytest

from rallypoint import protocol
from rallypoint.core.model import Phase
from rallypoint.messages.notices import Fenced, Refused, RunClosed
from rallypoint.messages.requests import Seat, Standing
from rallypoint.messages.types import Ending, Reason, Role, Settings
from rallypoint.server.run_state import spell_out
from tests.core.test_recovery import HOLD_S, claim, restarted
from tests.support.run_driver import RunDriver

# While a server recovers ------------------------------------------------------------------------------------------


def test_a_member_that_knows_that_its_world_is_broken_is_awaited_back_with_its_rank() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0, Standing.BROKEN)
    claim(driver, "b", 1)
    claim(driver, "c", 2)
    assert "only 2 of 3 ranks" in driver.why
    for rank, node_id in ((1, "b"), (2, "c")):
        driver.join(node_id, seat=Seat(4, "s4", 3, rank), incarnation="old")
    assert driver.phase is Phase.GATHERING
    driver.join("a", seat=Seat(4, "s4", 3, 0), incarnation="old")
    assert driver.ranked == ["a", "b", "c"]


def test_a_member_that_was_lost_while_recovering_is_not_awaited() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 0)
    driver.lose("a")
    claim(driver, "b", 1)
    claim(driver, "c", 2)
    assert list(driver.run.active) == ["b", "c"]


@pytest.mark.parametrize("standing", [Standing.HOLDS, Standing.FINISHED])
def test_a_join_that_arrives_late_while_recovering_changes_nothing(standing: Standing) -> None:
    driver = restarted(2)
    claim(driver, "a", 0, standing, size=2)
    driver.join("a")
    assert len(driver.run.queue) == 0
    claim(driver, "b", 1, size=2)
    assert driver.phase is Phase.SEALED


def test_a_promoted_spare_that_is_back_while_recovering_counts_as_a_member() -> None:
    driver = restarted(2)
    driver.join("s", seat=Seat(4, "s4", 2, 1), incarnation="old", role=Role.SPARE)
    claim(driver, "a", 0, size=2)
    assert (list(driver.run.returned), len(driver.run.spares)) == (["s"], 0)


def test_a_world_larger_than_its_bounds_is_not_believed() -> None:
    driver = restarted(1)
    claim(driver, "a", 0, size=2)
    assert "a world of 2, where 1 are the most" in driver.answer("a", Fenced).why


def test_a_world_without_an_incarnation_is_not_believed() -> None:
    driver = restarted(1)
    claim(driver, "a", 0, size=1, incarnation="")
    assert "which cannot be" in driver.answer("a", Fenced).why


def test_a_join_that_cannot_be_true_while_recovering_is_fenced_and_gets_no_place() -> None:
    driver = restarted(1)
    driver.join("a", seat=Seat(4, "s4", 2, 0), incarnation="old")
    assert "a world of 2, where 1 are the most" in driver.answer("a", Fenced).why
    assert driver.run.live == 0


def test_one_node_does_not_have_two_ranks() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    claim(driver, "a", 1, size=2)
    assert "two ranks" in driver.answer("a", Fenced).why


def test_one_seal_id_is_one_world() -> None:
    driver = restarted(2, 3)
    claim(driver, "a", 2, size=3)
    claim(driver, "b", 0, size=2)
    assert "not of the same world" in driver.answer("b", Fenced).why


def test_who_closes_the_incarnation_that_is_being_recovered_is_heard() -> None:
    driver = restarted(2)
    claim(driver, "a", 0, size=2)
    driver.close("a", incarnation="another")
    assert driver.phase is Phase.RECOVERING
    assert "an incarnation that is gone" in driver.why
    driver.close("a", incarnation="old")
    assert (driver.phase, driver.run.incarnation) == (Phase.CLOSED, "old")


def test_a_run_that_is_closed_before_anybody_spoke_of_it_has_an_incarnation() -> None:
    for asked in ("", "known"):
        driver = restarted(2)
        driver.join("a")
        driver.close(incarnation=asked)
        assert driver.phase is Phase.CLOSED
        assert driver.run.incarnation == (asked or f"r{driver.minted}")


def test_a_closed_run_that_is_not_named_is_not_believed() -> None:
    driver = restarted(2)
    driver.announce("a", Standing.CLOSED, incarnation="")
    assert driver.phase is Phase.RECOVERING


# At any time ----------------------------------------------------------------------------------------------------------


def test_a_world_that_lost_a_member_before_the_other_finished_did_not_succeed() -> None:
    driver = RunDriver(1, 2)
    driver.join("a", "b")
    driver.lose("a")
    driver.finish("b")
    assert driver.run.closing is not None
    assert driver.run.closing.ending is Ending.FAILED


def test_a_rank_policy_that_nobody_knows_is_refused_to_its_founder() -> None:
    driver = RunDriver(1)
    driver.settings = Settings(rank_policy="fastest")
    driver.join("a")
    assert "there is no rank policy 'fastest'; there are arrival, sticky" in driver.answer("a", Refused).why


def test_loopback_does_not_mix_whoever_came_first() -> None:
    driver = RunDriver(3)
    driver.join("x")
    driver.join("a", address="10.0.0.1")
    driver.join("b", address="127.0.0.1")
    assert "cannot be reached" in driver.answer("b", Refused).why


@pytest.mark.parametrize("name", ["²", "1²3", "node²"])
def test_a_name_with_odd_digits_is_a_name(name: str) -> None:
    driver = RunDriver(2)
    driver.join("a", name=name)
    driver.join("b", name="node10")
    assert sorted(driver.ranked) == ["a", "b"]


def test_a_paused_node_may_change_its_name() -> None:
    driver = RunDriver(1, 2, crash_pause_s=10)
    driver.join("a", "b")
    for life in ("b", "b.2"):
        driver.lose(life)
        driver.join_again("a")
        if life == "b":
            driver.join("b.2")
            driver.join_again("a")
    driver.join("b.3")
    assert "b.3" in driver.run.paused
    driver.join("b.3", name="renamed")
    assert "b.3" in driver.run.paused


def test_the_longest_reason_can_be_delivered() -> None:
    driver = RunDriver(2)
    driver.join("a", "b")
    driver.leave("a", Reason.GAVE_UP, "x" * 1024)
    told = [said for notice in driver.step.notices for _, said in spell_out(notice)]
    assert told
    assert [protocol.read(msgspec.json.encode(said), protocol.FROM_SERVER) for said in told] == told


def test_a_sentence_about_many_missing_ranks_looks_at_few() -> None:
    driver = restarted(100)
    for rank in range(70):
        claim(driver, f"n{rank}", rank, size=100)
    assert "70 of 100 ranks of round 4 were heard, missing: 30 nodes; at most" in driver.situation()
    driver.wait(HOLD_S)
    assert "only 70 of 100 ranks" in driver.why


def test_who_knows_that_a_run_is_closed_is_still_there_until_it_leaves() -> None:
    for other in (False, True):
        driver = restarted(1, 2)
        if other:
            claim(driver, "b", 1, size=2)
        for _ in range(2):
            claim(driver, "a", 0, Standing.CLOSED, size=2)
        driver.announce("told", Standing.CLOSED, incarnation="old")
        driver.join("late")
        assert driver.answer("late", RunClosed).incarnation == "old"
        driver.lose("a", "b")
        driver.join("late")
        assert "late founded the run" in driver.why
