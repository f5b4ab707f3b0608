"""What cannot be true is refused in words, whoever says it, and what is said late does no harm."""

from __future__ import annotations

import msgspec
import pytest

from rallypoint import protocol
from rallypoint.core.model import Phase
from rallypoint.core.notices import spell_out
from rallypoint.messages.notices import Fenced, Refused, RunClosed
from rallypoint.messages.requests import Seat, Standing
from rallypoint.messages.types import Ending, Reason, Role, Settings
from tests.core.test_recovery import HOLD_S, claim, restarted
from tests.support.run_driver import Stage

# While a server recovers ------------------------------------------------------------------------------------------


def test_a_member_that_knows_that_its_world_is_broken_is_awaited_back_with_its_rank() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0, Standing.BROKEN)
    claim(stage, "b", 1)
    claim(stage, "c", 2)
    assert "only 2 of 3 ranks" in stage.why
    for rank, node_id in ((1, "b"), (2, "c")):
        stage.join(node_id, seat=Seat(4, "s4", 3, rank), incarnation="old")
    assert stage.phase is Phase.GATHERING
    stage.join("a", seat=Seat(4, "s4", 3, 0), incarnation="old")
    assert stage.ranked == ["a", "b", "c"]


def test_a_member_that_was_lost_while_recovering_is_not_awaited() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 0)
    stage.lose("a")
    claim(stage, "b", 1)
    claim(stage, "c", 2)
    assert list(stage.run.active) == ["b", "c"]


@pytest.mark.parametrize("standing", [Standing.HOLDS, Standing.FINISHED])
def test_a_join_that_arrives_late_while_recovering_changes_nothing(standing: Standing) -> None:
    stage = restarted(2)
    claim(stage, "a", 0, standing, size=2)
    stage.join("a")
    assert len(stage.run.queue) == 0
    claim(stage, "b", 1, size=2)
    assert stage.phase is Phase.SEALED


def test_a_promoted_spare_that_is_back_while_recovering_counts_as_a_member() -> None:
    stage = restarted(2)
    stage.join("s", seat=Seat(4, "s4", 2, 1), incarnation="old", role=Role.SPARE)
    claim(stage, "a", 0, size=2)
    assert (list(stage.run.returned), len(stage.run.spares)) == (["s"], 0)


def test_a_world_larger_than_its_bounds_is_not_believed() -> None:
    stage = restarted(1)
    claim(stage, "a", 0, size=2)
    assert "a world of 2, where 1 are the most" in stage.answer("a", Fenced).why


def test_a_world_without_an_incarnation_is_not_believed() -> None:
    stage = restarted(1)
    claim(stage, "a", 0, size=1, incarnation="")
    assert "does not name" in stage.answer("a", Fenced).why


def test_a_join_that_cannot_be_true_while_recovering_is_fenced_and_gets_no_place() -> None:
    stage = restarted(1)
    stage.join("a", seat=Seat(4, "s4", 2, 0), incarnation="old")
    assert "a world of 2, where 1 are the most" in stage.answer("a", Fenced).why
    assert stage.run.live == 0


def test_one_node_does_not_have_two_ranks() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    claim(stage, "a", 1, size=2)
    assert "two ranks" in stage.answer("a", Fenced).why


def test_one_seal_id_is_one_world() -> None:
    stage = restarted(2, 3)
    claim(stage, "a", 2, size=3)
    claim(stage, "b", 0, size=2)
    assert "not of the same world" in stage.answer("b", Fenced).why


def test_who_closes_the_incarnation_that_is_being_recovered_is_heard() -> None:
    stage = restarted(2)
    claim(stage, "a", 0, size=2)
    stage.close("a", incarnation="another")
    assert stage.phase is Phase.RECOVERING
    assert "an incarnation that is gone" in stage.why
    stage.close("a", incarnation="old")
    assert (stage.phase, stage.run.incarnation) == (Phase.CLOSED, "old")


def test_a_run_that_is_closed_before_anybody_spoke_of_it_has_an_incarnation() -> None:
    for asked in ("", "known"):
        stage = restarted(2)
        stage.join("a")
        stage.close(incarnation=asked)
        assert stage.phase is Phase.CLOSED
        assert stage.run.incarnation == (asked or f"r{stage.minted}")


def test_a_closed_run_that_is_not_named_is_not_believed() -> None:
    stage = restarted(2)
    stage.announce("a", Standing.CLOSED, incarnation="")
    assert stage.phase is Phase.RECOVERING


# At any time ----------------------------------------------------------------------------------------------------------


def test_a_world_that_lost_a_member_before_the_other_finished_did_not_succeed() -> None:
    stage = Stage(1, 2)
    stage.join("a", "b")
    stage.lose("a")
    stage.finish("b")
    assert stage.run.closing is not None
    assert stage.run.closing.ending is Ending.FAILED


def test_a_rank_policy_that_nobody_knows_is_refused_to_its_founder() -> None:
    stage = Stage(1)
    stage.settings = Settings(rank_policy="fastest")
    stage.join("a")
    assert "there is no rank policy 'fastest'; there are arrival, sticky" in stage.answer("a", Refused).why


def test_loopback_does_not_mix_whoever_came_first() -> None:
    stage = Stage(3)
    stage.join("x")
    stage.join("a", address="10.0.0.1")
    stage.join("b", address="127.0.0.1")
    assert "cannot be reached" in stage.answer("b", Refused).why


@pytest.mark.parametrize("name", ["²", "1²3", "node²"])
def test_a_name_with_odd_digits_is_a_name(name: str) -> None:
    stage = Stage(2)
    stage.join("a", name=name)
    stage.join("b", name="node10")
    assert sorted(stage.ranked) == ["a", "b"]


def test_a_paused_node_may_change_its_name() -> None:
    stage = Stage(1, 2, crash_pause_s=10)
    stage.join("a", "b")
    for life in ("b", "b.2"):
        stage.lose(life)
        stage.join_again("a")
        if life == "b":
            stage.join("b.2")
            stage.join_again("a")
    stage.join("b.3")
    assert "b.3" in stage.run.paused
    stage.join("b.3", name="renamed")
    assert "b.3" in stage.run.paused


def test_the_longest_reason_can_be_delivered() -> None:
    stage = Stage(2)
    stage.join("a", "b")
    stage.leave("a", Reason.GAVE_UP, "x" * 1024)
    told = [said for notice in stage.step.notices for _, said in spell_out(notice)]
    assert told
    assert [protocol.read(msgspec.json.encode(said), protocol.FROM_SERVER) for said in told] == told


def test_a_sentence_about_many_missing_ranks_looks_at_few() -> None:
    stage = restarted(100)
    for rank in range(70):
        claim(stage, f"n{rank}", rank, size=100)
    assert "70 of 100 ranks of round 4 were heard, missing: 30 nodes; at most" in stage.situation()
    stage.wait(HOLD_S)
    assert "only 70 of 100 ranks" in stage.why


def test_who_knows_that_a_run_is_closed_is_still_there_until_it_leaves() -> None:
    for other in (False, True):
        stage = restarted(1, 2)
        if other:
            claim(stage, "b", 1, size=2)
        for _ in range(2):
            claim(stage, "a", 0, Standing.CLOSED, size=2)
        stage.announce("told", Standing.CLOSED, incarnation="old")
        stage.join("late")
        assert stage.answer("late", RunClosed).incarnation == "old"
        stage.lose("a", "b")
        stage.join("late")
        assert "late founded the run" in stage.why
