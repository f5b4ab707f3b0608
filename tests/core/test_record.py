"""The record of a run: what it keeps, and what is refused in words (rules 14, 15 and 17).

That random bytes, flipped bits, pickles and other versions are refused is in test_codec, for all that is read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from rallypoint import record
from rallypoint.core import recovery
from rallypoint.core.model import Closing, EndedIncarnation, Phase, Predecessor, Run
from rallypoint.errors import RendezvousStateError
from rallypoint.messages.requests import Standing
from rallypoint.messages.types import Bounds, Ending, Reason, RecordedWorld, Settings, rank_bitmap, ranks_of
from rallypoint.record import Claim, Record, RecordedEnding
from tests.core.random_histories import History, histories
from tests.core.test_codec import RECORD, refusal
from tests.core.test_recovery import claim, restarted
from tests.support.run_driver import RunDriver, sealed

ADVICE = "; if nothing else uses that name, delete it, and the nodes tell the next server what they know"
LEAST = Record(run_id="run", incarnation="", epoch=0, round=0, write_id="w", bounds=Bounds(1, 1))


def put(*path_and_value: Any) -> Callable[[Any], None]:
    """A damage: something else at this place of the body."""
    *path, key, value = path_and_value

    def damage(body: Any) -> None:
        for step in path:
            body = body[step]
        body[key] = copy.deepcopy(value)

    return damage


def written(run: Run, **fields: Any) -> Record:
    """The record of a run, as it is read back."""
    return record.decode(record.encode(record.of(run, **{"epoch": 1, "write_id": "w", **fields})))


# Round trips and size -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [LEAST, RECORD])
def test_a_record_is_read_as_it_was_written(each: Record) -> None:
    assert record.decode(record.encode(each)) == each


def test_a_record_is_versioned_json_and_what_is_not_there_takes_no_room() -> None:
    assert json.loads(record.encode(LEAST)) == {
        "v": record.VERSION,
        "body": {
            "run_id": "run",
            "incarnation": "",
            "epoch": 0,
            "round": 0,
            "write_id": "w",
            "bounds": {"min": 1, "max": 1},
        },
    }


@given(st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_finished_ranks_are_read_as_they_were_written(world: tuple[int, set[int]]) -> None:
    size, ranks = world
    bitmap = rank_bitmap(ranks)
    assert len(bitmap) <= (size + 7) // 8
    each = msgspec.structs.replace(RECORD, bounds=Bounds(1, 300), world=RecordedWorld(5, "s5", size, bitmap))
    read = record.decode(record.encode(each)).world
    assert read is not None
    assert list(read.finished_ranks()) == sorted(ranks)


def test_the_lowest_bit_of_the_first_byte_is_rank_0() -> None:
    assert rank_bitmap([]) == b""
    assert rank_bitmap([0]) == b"\x01"
    assert rank_bitmap([9, 0, 7]) == b"\x81\x02"


def test_a_record_has_a_few_hundred_bytes_whatever_the_size_and_one_bit_for_a_finished_rank() -> None:
    """Rule 17: O(1) bytes, plus N/8 for the finished ranks."""
    sizes = [
        len(record.encode(msgspec.structs.replace(RECORD, bounds=Bounds(1, size), world=RecordedWorld(5, "s5", size))))
        for size in (12, 100_000)
    ]
    assert sizes[0] < 800
    assert sizes[1] - sizes[0] < 20
    everyone = RecordedWorld(5, "s5", 100_000, b"\xff" * 12_500)
    largest = record.encode(msgspec.structs.replace(RECORD, bounds=Bounds(1, 100_000), world=everyone))
    assert len(largest) < record.LIMIT // 10
    assert record.decode(largest).world == everyone


# What is refused ------------------------------------------------------------------------------------------------------

LONG = 2**53 + 1


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (put("run_id", ""), "length >= 1"),
        (put("run_id", "x" * 257), "length <= 256"),
        (put("incarnation", "x" * 129), "length <= 128"),
        (put("epoch", -1), ">= 0"),
        (put("epoch", LONG), "<= 9007199254740992"),
        (put("epoch", 1.5), "int"),
        (put("round", -1), ">= 0"),
        (put("round", LONG), "<= 9007199254740992"),
        (put("met", -1), ">= 0"),
        (put("write_id", ""), "length >= 1"),
        (put("bounds", {"min": 3, "max": 2}), "1 <= min <= max, not 3:2"),
        (put("bounds", {"min": 1, "max": 1_000_001}), "<= 100000"),
        (put("settings", "heartbeat_timeout_s", -1), ">= 0"),
        (put("settings", "rank_policy", ""), "length >= 1"),
        (put("claim", "id", ""), "length >= 1"),
        (put("claim", "addresses", []), "length >= 1"),
        (put("claim", "addresses", ["a"] * 17), "length <= 16"),
        (put("claim", "addresses", ["x" * 129]), "length <= 128"),
        (put("claim", "port", 0), ">= 1"),
        (put("claim", "port", 65536), "<= 65535"),
        (put("claim", "rest_s", 0.9), ">= 1.0"),
        (put("claim", "rest_s", 121), "<= 120.0"),
        (put("claim", "secret", "x" * 129), "length <= 128"),
        (put("claim", "ranks", [-1]), ">= 0"),
        (put("claim", "ranks", list(range(1025))), "length <= 1024"),
        (put("claim", "beat", -1), ">= 0"),
        (put("world", "round", 0), ">= 1"),
        (put("world", "round", 6), "round 6 is beyond round 5 of the run"),
        (put("world", "seal_id", ""), "length >= 1"),
        (put("world", "size", 0), ">= 1"),
        (put("world", "size", 1_000_001), "<= 100000"),
        (put("world", "size", 11), "a world of 11 cannot have ranks beyond that"),
        (put("world", "finished", "AAAQ"), "a world of 12 cannot have ranks beyond that"),
        (put("world", "finished", "?"), "base64"),
        (put("world", "finished", "A" * 166_672), "length <= 12500"),
        (put("world", "gone", "AAAQ"), "a world of 12 cannot have ranks beyond that"),
        (put("world", "gone", "?"), "base64"),
        (put("world", "gone", "A" * 166_672), "length <= 12500"),
        (put("world", "ended_before", -1), ">= 0"),
        (put("world", "broken", 1), "bool"),
        (put("bounds", {"min": 1, "max": 11}), "a world of 12 is recorded where 11 are the most"),
        (put("incarnation", ""), "of no incarnation"),
        (put("closing", "ending", "gone"), "Invalid enum value"),
        (put("closing", "why", "x" * 4097), "length <= 4096"),
        (put("last", "incarnation", ""), "length >= 1"),
        (put("last", "ending", None), "null"),
    ],
)
def test_a_record_beyond_its_bounds_is_refused_with_what_is_wrong(
    damage: Callable[[Any], None], complaint: str
) -> None:
    """Rule 15: what a peer says is bounded and checked before it is believed."""
    document = json.loads(record.encode(RECORD))
    damage(document["body"])
    why = refusal(record.decode, json.dumps(document).encode())
    assert why.startswith("the record cannot be read: ")
    assert complaint in why
    assert why.endswith(ADVICE)


@pytest.mark.parametrize("missing", ["run_id", "incarnation", "epoch", "round", "write_id", "bounds"])
def test_a_record_says_what_it_is_of(missing: str) -> None:
    document = json.loads(record.encode(RECORD))
    del document["body"][missing]
    assert f"missing required field `{missing}`" in refusal(record.decode, json.dumps(document).encode())


def test_a_record_of_a_newer_release_is_refused_and_nobody_is_told_to_delete_it() -> None:
    data = record.encode(RECORD).replace(b'"v":1', b'"v":2', 1)
    why = refusal(record.decode, data)
    assert "the record is of version 2, and this Rallypoint reads version 1: run the same release" in why
    assert "delete" not in why


def test_a_pickle_in_the_place_of_a_record_may_belong_to_a_torch_job() -> None:
    why = refusal(record.decode, b"\x80\x04N.")
    assert "it is a pickle, which is never loaded; a torch job may be using the same name" in why
    assert why.endswith(ADVICE)


def test_a_record_that_is_too_large_is_refused_before_it_is_read() -> None:
    data = record.encode(RECORD)
    assert record.decode(data + b" " * (record.LIMIT - len(data))) == RECORD
    with pytest.raises(
        RendezvousStateError, match="the record has 524289 bytes, more than the 524288 that are allowed"
    ):
        record.decode(data + b" " * (record.LIMIT - len(data) + 1))


# What is kept ---------------------------------------------------------------------------------------------------------


def test_a_sealed_run_is_recovered_with_what_must_outlive_its_server() -> None:
    """Rule 17f: only the recorded world can be current, and finished ranks are not awaited."""
    driver = sealed(2, 4, members="abc", last_call_s=3.0)
    driver.finish("b")
    run = record.restored(written(driver.run), 500.0, 9.0)
    assert (run.phase, run.hold_ends) == (Phase.RECOVERING, 509.0)
    assert (run.run_id, run.incarnation, run.round) == ("run", driver.run.incarnation, 1)
    assert (run.bounds, run.settings) == (Bounds(2, 4), Settings(last_call_s=3.0))
    assert run.recorded == RecordedWorld(1, driver.world.seal_id, 3, rank_bitmap([1]))
    assert [(rank, heard.finished, heard.announced) for rank, heard in run.heard.items()] == [(1, True, False)]
    assert (run.predecessor, run.last, run.founded) == (None, None, False)


def test_the_process_that_served_before_is_known_to_a_run_that_is_recovered() -> None:
    gone = Predecessor("s1", (0,), 500.5)
    assert record.restored(written(sealed(2).run), 500.0, 9.0, gone).predecessor == gone
    assert record.restored(written(Run(run_id="run")), 500.0, 9.0, gone).predecessor is None


def test_a_closed_run_stays_closed_for_its_time() -> None:
    """Rules 1 and 17h."""
    driver = sealed(2)
    driver.close(why="enough")
    run = record.restored(written(driver.run), 500.0, 9.0)
    assert (run.phase, run.closing) == (Phase.CLOSED, Closing(Ending.FAILED, "enough", 500.0))
    assert (run.incarnation, run.round, run.hold_ends) == (driver.run.incarnation, 1, None)


def test_how_the_incarnation_before_ended_is_kept() -> None:
    """Rule 17h."""
    driver = sealed(2)
    ended = EndedIncarnation(driver.run.incarnation, Ending.FAILED, "somebody closed it")
    driver.close()
    driver.lose("a", "b")
    driver.join("c", "d")
    assert written(driver.run).last == ended
    assert record.restored(written(driver.run), 500.0, 9.0).last == ended


@pytest.mark.parametrize("claim", [None, RECORD.claim])
def test_without_a_world_nothing_is_awaited_and_a_claim_has_set_the_bounds(claim: Claim | None) -> None:
    """Rules 17a and 17f."""
    driver = RunDriver(2, 4)
    driver.join("a")
    run = record.restored(written(driver.run, claim=claim), 500.0, 9.0)
    assert (run.phase, run.live, run.hold_ends) == (Phase.GATHERING, 0, None)
    assert (run.bounds, run.incarnation) == (Bounds(2, 4), driver.run.incarnation)
    assert run.founded is (claim is not None)


def test_who_serves_and_which_write_it_is_are_for_the_caller_to_say() -> None:
    each = written(sealed(2).run, epoch=8, write_id="w17", claim=RECORD.claim)
    assert (each.epoch, each.write_id, each.claim, each.met) == (8, "w17", RECORD.claim, 0)


def test_who_hands_over_says_whether_the_world_is_broken() -> None:
    """Rule 17g: one write removes the claim and marks the world broken."""
    driver = sealed(2)
    for broken in (False, True):
        for handing_over in (False, True):
            world = written(driver.run, handing_over=handing_over).world
            assert world is not None
            assert world.broken is (broken and handing_over)
        driver.lose("a")


def test_who_hands_over_a_broken_world_says_which_ranks_have_left_it() -> None:
    """Rule 17g: the next server does not wait for them; who is back, awaited or finished has not left."""
    driver = sealed(1, 4, members="abcd")
    finished = driver.seat("a").rank
    driver.finish("a")
    gone = driver.seat("d").rank
    driver.leave("d", Reason.WITHDREW)
    driver.join_again("b")
    world = written(driver.run, handing_over=True).world
    assert world is not None
    assert (list(world.finished_ranks()), list(ranks_of(world.gone))) == ([finished], [gone])
    assert written(driver.run).world == msgspec.structs.replace(world, broken=False, gone=b"")


def test_nodes_that_finished_in_earlier_worlds_are_counted() -> None:
    """Rule 8: once a node has finished, newcomers are not admitted."""
    driver = sealed(1, 4, members="abcd")
    driver.finish("a")
    driver.lose("d")
    driver.join_again("b", "c")
    finished = rank_bitmap([driver.seat("c").rank])
    driver.finish("c")
    assert written(driver.run).world == RecordedWorld(2, driver.world.seal_id, 2, finished, ended_before=1)


def test_a_server_that_has_no_record_has_no_world_to_write_down_before_it_hears_of_one() -> None:
    assert written(recovery.blank("run", 0.0, 0.0, 7.0)).world is None


def test_a_server_that_has_no_record_writes_down_the_highest_world_that_it_heard_of() -> None:
    """Rule 17c: a node that has finished in it may be gone when the next server asks."""
    driver = restarted(2, 3)
    claim(driver, "a", 0, Standing.FINISHED)
    each = written(driver.run)
    assert (each.incarnation, each.bounds, each.round) == ("old", Bounds(2, 3), 4)
    assert each.world == RecordedWorld(4, "s4", 3, rank_bitmap([0]))
    claim(driver, "b", 1, round_=5)
    assert written(driver.run).world == RecordedWorld(5, "s5", 3)


@effort(max_examples=100)
@given(histories())
def test_a_record_that_is_taken_over_and_written_again_loses_nothing(history: History) -> None:
    """Rule 17f: a server that dies while it recovers leaves to the next what it was left."""
    for moment in history.moments:
        for handing_over in (False, True):
            first = written(moment.step.run, handing_over=handing_over)
            again = written(record.restored(first, moment.now, 7.0))
            if first.closing is not None:
                first = msgspec.structs.replace(first, world=None)
            assert again == first


def test_how_a_run_closed_needs_no_reason() -> None:
    each = msgspec.structs.replace(RECORD, closing=RecordedEnding(Ending.SUCCEEDED))
    assert record.decode(record.encode(each)) == each
    assert record.restored(each, 5.0, 9.0).closing == Closing(Ending.SUCCEEDED, "", 5.0)
