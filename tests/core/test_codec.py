"""State and messages survive a round trip, and nothing that is damaged gets in or raises anything else (rule 15)."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from rallypoint import protocol, record
from rallypoint.core.changes import Notice
from rallypoint.core.events import Lost
from rallypoint.core.model import EndedIncarnation, Phase
from rallypoint.errors import RendezvousStateError
from rallypoint.messages.notices import NodeNotice, Placed
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, NodeMessage, Standing
from rallypoint.messages.types import Bounds, Ending, Reason, RecordedWorld, Settings, rank_bitmap
from rallypoint.server.run_state import spell_out
from tests.core.random_histories import History, histories
from tests.support.run_driver import member

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
    closing=record.RecordedEnding(Ending.FAILED, "enough"),
    last=EndedIncarnation("before", Ending.SUCCEEDED, "all members have finished"),
    met=6,
)
"""A record with everything in it that one can have."""


def refusal(decode: Callable[[bytes], object], data: bytes) -> str:
    """What is said of data that must be refused."""
    with pytest.raises(RendezvousStateError) as caught:
        decode(data)
    return str(caught.value)


def decode_message(data: bytes) -> object:
    return protocol.read(data, protocol.FROM_NODE)


def decode_notice(data: bytes) -> object:
    return protocol.read(data, protocol.FROM_SERVER)


DECODERS: dict[str, Callable[[bytes], object]] = {
    "message": decode_message,
    "notice": decode_notice,
    "record": record.decode,
}


def bear(data: bytes) -> None:
    """Whatever this is, each decoder reads it or refuses it in a sentence."""
    for what, decode in DECODERS.items():
        with contextlib.suppress(RendezvousStateError):
            decode(data)
            continue
        assert refusal(decode, data).startswith("the record " if what == "record" else "a message cannot be read: ")


# Round trips ----------------------------------------------------------------------------------------------------------


def told(notices: tuple[Notice, ...]) -> list[tuple[str, NodeNotice]]:
    return [sent for notice in notices for sent in spell_out(notice)]


@effort(max_examples=50)
@given(histories())
def test_messages_and_notices_arrive_as_they_were_sent(history: History) -> None:
    for moment in history.moments:
        if isinstance(moment.event, NodeMessage):
            assert decode_message(msgspec.json.encode(moment.event)) == moment.event
        for _, said in told(moment.step.notices):
            assert decode_notice(msgspec.json.encode(said)) == said


def grown(value: Any) -> Any:
    """The same document as a newer release might write it, with more fields in every object."""
    if isinstance(value, dict):
        return {"a_new_field": {"of": ["any", 1, None]}, **{key: grown(item) for key, item in value.items()}}
    return [grown(item) for item in value] if isinstance(value, list) else value


def test_fields_that_are_not_known_are_skipped() -> None:
    for message in (
        JOIN,
        Left("a", Reason.FINISHED),
        CloseAsked("a"),
        Announced(JOIN.node, JOIN.bounds, Standing.SPARE),
    ):
        data = json.dumps(grown(json.loads(msgspec.json.encode(message)))).encode()
        assert decode_message(data) == message
    assert record.decode(json.dumps(grown(json.loads(record.encode(RECORD)))).encode()) == RECORD


# Fuzz -----------------------------------------------------------------------------------------------------------------

GOOD = {
    "message": msgspec.json.encode(JOIN),
    "notice": msgspec.json.encode(PLACED),
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
        there = [place for place in places(damaged) if place]
        if not there:
            break
        *path, key = data.draw(st.sampled_from(there))
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


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    assert "more than the 524288 that are allowed" in refusal(record.decode, b" " * (record.LIMIT + 1))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_named_and_its_body_is_not_looked_at(version: int) -> None:
    data = json.dumps({"v": version, "body": ["something", "else"]}).encode()
    why = refusal(record.decode, data)
    assert f"of version {version}, and this Rallypoint reads version 1" in why
    assert "run the same release on every node" in why


def test_a_pickle_is_never_loaded_and_is_called_by_its_name() -> None:
    data = pickle.dumps({"v": 1, "body": {}})
    assert "it is a pickle, which is never loaded" in refusal(record.decode, data)


def test_names_of_any_length_are_not_taken() -> None:
    for name in ("", "x" * 257):
        message = json.loads(msgspec.json.encode(JOIN))
        message["node"]["name"] = name
        assert "length" in refusal(decode_message, json.dumps(message).encode())


def test_what_a_server_says_to_itself_is_no_message() -> None:
    lost = Lost("a", "it fell silent")
    data = json.dumps({"type": "lost", "node_id": lost.node_id, "why": lost.why}).encode()
    assert "cannot be read" in refusal(decode_message, data)
