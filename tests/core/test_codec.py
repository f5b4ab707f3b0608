"""State and messages survive a round trip, and nothing that is damaged gets in or raises anything else (rule 15)."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from rallypoint.core import codec, record, recovery, transition
from rallypoint.core.events import Announced, CloseAsked, Joined, Left, Lost, Message, Standing
from rallypoint.core.model import (
    Bounds,
    EndedIncarnation,
    Ending,
    Phase,
    Reason,
    RecordedWorld,
    Role,
    Run,
    Settings,
    rank_bitmap,
)
from rallypoint.core.notices import Notice, Placed, Said, spell_out
from rallypoint.errors import RendezvousStateError
from tests.core.histories import History, histories
from tests.core.stage import Stage, member, sealed

JOIN = Joined(member("a", address="10.0.0.1"), Bounds(2, 3))
PLACED = Placed("inc", 1, "s1", 0, 2, "host:1")
RECORD = record.Record(
    run_id="run",
    incarnation="inc",
    epoch=7,
    round=5,
    write_id="w9",
    bounds=Bounds(2, 12),
    settings=Settings(last_call_s=3.0),
    claim=record.Claim("c1", ("10.0.0.1", "fd00::1"), 29400, 5.0, "secret", (0, 4), 17),
    world=RecordedWorld(5, "s5", 12, rank_bitmap((1, 9, 11)), 2, True, rank_bitmap((0, 10))),
    closing=record.Outcome(Ending.FAILED, "enough"),
    last=EndedIncarnation("before", Ending.SUCCEEDED, "all members have finished"),
    met=6,
)
"""A record with everything in it that one can have."""


def running() -> Run:
    """A run with somebody in most places: two members, one finished, a newcomer, a spare, two crashes, one paused."""
    stage = sealed(2, 4, members="abcd", crash_pause_s=50)
    for life in ("d", "d.2"):
        stage.join(*(["d.2"] if life == "d.2" else []))
        stage.join_again("a", "b", "c")
        stage.lose(life)
    stage.join("d.3", "e")
    stage.join_again("a", "b", "c")
    stage.join("s", role=Role.SPARE)
    stage.join("f")
    stage.finish("c")
    assert stage.run.current is not None
    assert all((stage.run.active, stage.run.finished, stage.run.queue, stage.run.spares, stage.run.paused))
    return stage.run


def document(run: Run | None = None, now: float = 100.0) -> Any:
    return json.loads(codec.encode_run(run or running(), now))


def refusal(decode: Callable[[bytes], object], data: bytes) -> str:
    """What is said of data that must be refused."""
    with pytest.raises(RendezvousStateError) as caught:
        decode(data)
    return str(caught.value)


def decode_run(data: bytes) -> Run:
    return codec.decode_run(data, 100.0)


DECODERS: dict[str, Callable[[bytes], object]] = {
    "state": decode_run,
    "message": codec.decode_message,
    "notice": codec.decode_notice,
    "record": record.decode,
}


def bear(data: bytes) -> None:
    """Whatever this is, each decoder reads it or refuses it in a sentence."""
    for what, decode in DECODERS.items():
        with contextlib.suppress(RendezvousStateError):
            decode(data)
            continue
        assert refusal(decode, data).startswith(f"the {what} ")


# Round trips ----------------------------------------------------------------------------------------------------------


def told(notices: tuple[Notice, ...]) -> list[tuple[str, Said]]:
    return [sent for notice in notices for sent in spell_out(notice)]


@effort(max_examples=50)
@given(histories())
def test_messages_and_notices_arrive_as_they_were_sent(history: History) -> None:
    for moment in history.moments:
        if isinstance(moment.event, Message):
            assert codec.decode_message(codec.encode_message(moment.event)) == moment.event
        for _, said in told(moment.step.notices):
            assert codec.decode_notice(codec.encode_message(said)) == said


def known(run: Run, now: float) -> Any:
    """All that a document says; when members were last told of newcomers means nothing before there are members."""
    written = document(run, now)
    if run.phase is not Phase.SEALED:
        written["body"].pop("told_at", None)
    return written


@effort(max_examples=60)
@given(histories(), st.sampled_from((0.0, 0.5, 1e6)))
def test_a_run_from_a_document_goes_on_as_if_nothing_had_happened(history: History, later: float) -> None:
    for i, moment in enumerate(history.moments):
        if moment.before.phase is Phase.RECOVERING:
            continue
        document = codec.encode_run(moment.before, moment.now)
        now = moment.now + later
        run = codec.decode_run(document, now)
        assert known(run, now) == known(moment.before, moment.now)
        due, due_then = transition.wake_at(moment.before, moment.now), transition.wake_at(run, now)
        assert (due is None) == (due_then is None)
        assert due is None or due_then is None or due - moment.now == due_then - now
        step = transition.step(run, moment.event, now, str(i))
        assert (step.why, told(step.notices)) == (moment.step.why, told(moment.step.notices))
        assert known(step.run, now) == known(moment.step.run, moment.now)


def test_a_document_keeps_how_the_incarnation_before_ended() -> None:
    """Rule 17h: a member that missed the close is told of it."""
    stage = sealed(2)
    ended = EndedIncarnation(stage.run.incarnation, Ending.FAILED, "somebody closed it")
    stage.close()
    stage.wait(60)
    assert codec.decode_run(codec.encode_run(stage.run, stage.now), 5.0).last == ended


def test_a_run_that_is_being_recovered_is_not_written_down() -> None:
    with pytest.raises(ValueError, match="cannot be written down before that is done"):
        codec.encode_run(recovery.blank("run", 0.0, 0.0, 7.0), 0.0)


def grown(value: Any) -> Any:
    """The same document as a newer release might write it, with more fields in every object."""
    if isinstance(value, dict):
        return {"a_new_field": {"of": ["any", 1, None]}, **{key: grown(item) for key, item in value.items()}}
    return [grown(item) for item in value] if isinstance(value, list) else value


def test_fields_that_are_not_known_are_skipped() -> None:
    run = codec.decode_run(codec.encode_run(running(), 100.0), 100.0)
    assert decode_run(json.dumps(grown(document())).encode()) == run
    for message in (
        JOIN,
        Left("a", Reason.FINISHED),
        CloseAsked("a"),
        Announced(JOIN.node, JOIN.bounds, Standing.SPARE),
    ):
        data = json.dumps(grown(json.loads(codec.encode_message(message)))).encode()
        assert codec.decode_message(data) == message
    assert record.decode(json.dumps(grown(json.loads(record.encode(RECORD)))).encode()) == RECORD


# Fuzz -----------------------------------------------------------------------------------------------------------------

GOOD = {
    "state": codec.encode_run(running(), 100.0),
    "message": codec.encode_message(JOIN),
    "notice": codec.encode_message(PLACED),
    "record": record.encode(RECORD),
}


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_in_words(data: bytes) -> None:
    bear(data)
    bear(b'{"v":1,"body":' + data)
    bear(b'{"v":1,"body":' + data + b"}")


@pytest.mark.parametrize("what", DECODERS)
def test_what_is_truncated_at_any_byte_is_refused_in_words(what: str) -> None:
    decode, data = DECODERS[what], GOOD[what]
    decode(data)
    for end in range(len(data)):
        assert "cannot be read" in refusal(decode, data[:end])


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_at_any_place_is_read_or_refused_in_words(bit: int) -> None:
    for data in GOOD.values():
        for place in range(bit % 2, len(data), 2):
            bear(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])


NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    2**31,
    2**63,
    2**70,
    -(2**70),
    1.5,
    1e300,
    -1e300,
    "",
    "a",
    "\0",
    "x" * 5000,
    [],
    [[]],
    [0, 0],
    {},
    {"min": 3, "max": 1},
    *(phase.value for phase in Phase),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, from the outside in."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        yield from places(item, (*path, key))


@effort(max_examples=300)
@given(st.data())
def test_a_document_with_anything_anywhere_is_read_or_refused_in_words(data: st.DataObject) -> None:
    damaged = json.loads(GOOD[data.draw(st.sampled_from(list(GOOD)))])
    for _ in range(data.draw(st.integers(1, 3))):
        *path, key = data.draw(st.sampled_from([place for place in places(damaged) if len(place) > 1]))
        parent = damaged
        for step in path:
            parent = parent[step]
        if data.draw(st.booleans()):
            parent[key] = copy.deepcopy(data.draw(st.sampled_from(NASTY)))
        else:
            del parent[key]
    bear(json.dumps(damaged).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"v":1}',
        b'{"v":true,"body":{}}',
        b'{"v":1.5,"body":{}}',
        b'{"v":"1","body":{}}',
        b'{"v":1,"body":NaN}',
        b'{"v":1,"body":Infinity}',
        b'{"v":1,"body":1e400}',
        b'{"v":1,"body":{"type":"join"}}',
        b'{"v":1,"body":{"type":"dance"}}',
        b'{"v":1,"body":"\xff"}',
        b'{"v":1,"body":"\\ud800"}',
        b'{"v":1,"body":' + b"[" * 100_000,
        b'{"v":1,"body":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v":1,"body":' + b'{"a":' * 100_000,
        b'{"v":1,"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"v":' + b"9" * 5000 + b',"body":{}}',
        b'{"v":1,"body":' + b"9" * 50_000 + b"}",
        b'{"v":1,"body":{"run_id":"r","phase":"gathering","bounds":{"min":1,"max":1},"round":' + b"9" * 5000 + b"}}",
    ],
    ids=lambda data: data[:30].decode("latin-1") + f"-{len(data)}",
)
def test_nonsense_is_refused_in_words(data: bytes) -> None:
    bear(data)
    for decode in DECODERS.values():
        assert len(refusal(decode, data)) > 20


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "9" * 400, "null", '"5"'])
def test_a_time_that_is_no_number_is_refused(number: str) -> None:
    data = json.dumps(document()).replace('"told_at": ', f'"told_at": {number}, "was": ')
    assert "cannot be read" in refusal(decode_run, data.encode())


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    assert "more than the 65536 that are allowed" in refusal(codec.decode_message, b" " * (codec.MESSAGE_LIMIT + 1))
    assert "more than the 65536 that are allowed" in refusal(codec.decode_notice, b" " * (codec.MESSAGE_LIMIT + 1))
    assert "that are allowed" in refusal(decode_run, bytes(codec.STATE_LIMIT + 1))
    assert "more than the 524288 that are allowed" in refusal(record.decode, b" " * (record.LIMIT + 1))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_named_and_its_body_is_not_looked_at(version: int) -> None:
    data = json.dumps({"v": version, "body": ["something", "else"]}).encode()
    for decode in DECODERS.values():
        why = refusal(decode, data)
        assert f"of version {version}, and this Rallypoint reads version 1" in why
        assert "run the same release on every node" in why


def test_a_pickle_is_never_loaded_and_is_called_by_its_name() -> None:
    data = pickle.dumps({"v": 1, "body": {}})
    for decode in DECODERS.values():
        assert "it is a pickle, which is never loaded" in refusal(decode, data)


def test_names_of_any_length_are_not_taken() -> None:
    for name in ("", "x" * 257):
        message = json.loads(codec.encode_message(JOIN))
        message["body"]["node"]["name"] = name
        assert "length" in refusal(codec.decode_message, json.dumps(message).encode())


def test_what_an_authority_says_to_itself_is_no_message() -> None:
    lost = Lost("a", "it fell silent")
    data = json.dumps({"v": 1, "body": {"type": "lost", "node_id": lost.node_id, "why": lost.why}}).encode()
    assert "cannot be read" in refusal(codec.decode_message, data)


# What does not hold together ------------------------------------------------------------------------------------------


def broken() -> Run:
    """A run that regroups: one member is back, one is awaited."""
    stage = sealed(2)
    stage.join_again("a")
    return stage.run


def founded() -> Run:
    """A run that has sealed nothing yet."""
    stage = Stage(2)
    stage.join("a")
    return stage.run


def closed() -> Run:
    stage = sealed(2)
    stage.close()
    return stage.run


WORLD = document()["body"]["world"]


def put(*path_and_value: Any) -> Callable[[Any], None]:
    """A damage: something else at this place of the body."""
    *path, key, value = path_and_value

    def damage(body: Any) -> None:
        for step in path:
            body = body[step]
        body[key] = copy.deepcopy(value)

    return damage


def drop(*keys: str) -> Callable[[Any], None]:
    """A damage: these fields are missing."""

    def damage(body: Any) -> None:
        for key in keys:
            del body[key]

    return damage


def moved(source: str, target: str) -> Callable[[Any], None]:
    """A damage: those of one table stand in another."""

    def damage(body: Any) -> None:
        body[target] = body.pop(source)

    return damage


def copied(source: str, target: str) -> Callable[[Any], None]:
    def damage(body: Any) -> None:
        body[target] = copy.deepcopy(body[source])

    return damage


def twins(body: Any) -> None:
    members = body["world"]["members"]
    members[1] = members[0]


@pytest.mark.parametrize(
    ("run", "damage", "complaint"),
    [
        (running(), copied("queue", "spares"), "stands in two places"),
        (running(), put("finished", [0]), "stands in two places"),
        (running(), put("arrivals", 0), "but only 0 came"),
        (running(), put("active", [7]), "rank 7 is not in a world of 4"),
        (running(), put("finished", [-1]), "rank -1 is not in a world of 4"),
        (running(), put("phase", "closed"), "the phase is closed, but how it closed is unknown"),
        (closed(), put("phase", "gathering"), "the phase is gathering, but how it closed is known"),
        (running(), put("phase", "recovering"), "a hold belongs to recovery, not to recovering"),
        (running(), drop("world", "active", "finished"), "the phase is sealed, but there is no world"),
        (running(), moved("queue", "returned"), "nodes came back to a world that is current"),
        (running(), put("active", []), "a current world has no member left"),
        (running(), put("last_call_ends", 5.0), "a call runs while the phase is sealed"),
        (closed(), put("last_call_ends", 5.0), "a call runs while the phase is closed"),
        (closed(), put("regroup_ends", 5.0), "members are awaited back while the phase is closed"),
        (broken(), drop("world", "active"), "nodes came back, but there was no world"),
        (founded(), put("gone_before", ["x"]), "there are members, but no world"),
        (founded(), put("world", {**WORLD, "members": []}), "the world has no members"),
        (broken(), put("world", "members", []), "rank 1 is not in a world of 0"),
        (running(), twins, "a node has two ranks"),
        (running(), put("incarnation", "other"), "the world is of incarnation 'r1', the run of 'other'"),
        (running(), put("world", "seal_id", ""), "the world is of incarnation"),
        (running(), put("world", "round", 99), "the world is of round 99"),
        (running(), put("world", "round", 0), "the world is of round 0"),
        (running(), put("bounds", {"min": 1, "max": 1}), "the world has 4 members where 1 are allowed"),
    ],
)
def test_a_document_that_does_not_hold_together_is_refused_with_what_is_wrong(
    run: Run, damage: Callable[[Any], None], complaint: str
) -> None:
    damaged = document(run)
    damage(damaged["body"])
    why = refusal(decode_run, json.dumps(damaged).encode())
    assert why.startswith("the state is damaged: ")
    assert complaint in why
    assert why.endswith("; delete it to start anew")
