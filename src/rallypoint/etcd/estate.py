"""Reading a run from etcd: all of it at one revision, so that it holds together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from rallypoint.errors import RendezvousStateError
from rallypoint.etcd.adopting import Estate
from rallypoint.etcd.board import Board, Sealing, Seated, decode_board, decode_roster
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.leading import Gone, Wish, Word
from rallypoint.etcd_client import EtcdClient, EtcdCompactedError, EtcdError, KeyValue, Outcome, Resync, get_op
from rallypoint.etcd_client.messages import RangeResponse, RequestOp

_FEW = 1000

log = logging.getLogger("rallypoint.etcd")


def read_estate(client: EtcdClient, keys: Keys, run_id: str) -> Estate:
    """All that is in etcd of a run."""
    try:
        return _read(client, keys, run_id)
    except EtcdCompactedError:
        # Between two reads: once more, at a newer revision.
        return _read(client, keys, run_id)


def said_op(keys: Keys) -> RequestOp:
    """Along with becoming the leader: what was said so far, for that is all there is where a run is founded."""
    return get_op(keys.said, prefix=True, limit=_FEW)


def found_by_founder(keys: Keys, outcome: Outcome) -> Estate | None:
    """What `said_op` found, where there is no board; None where there was more."""
    answer = outcome.answers[-1]
    assert isinstance(answer, RangeResponse)
    if answer.more:
        return None
    sayings = [said for kv in answer.kvs if (said := saying_of(keys, kv)) is not None]
    return _estate(outcome.revision, sayings)


def _estate(revision: int, sayings: Sequence[Word | Wish]) -> Estate:
    words = tuple(said for said in sayings if isinstance(said, Word))
    return Estate(revision, words, tuple(said for said in sayings if isinstance(said, Wish)))


def _read(client: EtcdClient, keys: Keys, run_id: str) -> Estate:
    pages = list(client.pages(keys.said, prefix=True))
    revision = pages[0].revision
    sayings = [said for page in pages for kv in page.kvs if (said := saying_of(keys, kv)) is not None]
    found = client.get(keys.board, revision=revision)
    board = decode_board(found.value, run_id) if found is not None else None
    roster: tuple[Seated, ...] = ()
    if board is not None and board.world is not None and board.ended is None:
        roster = read_roster(client, keys, run_id, board.world, revision)
    shown = found.mod_revision if found is not None else 0
    return msgspec.structs.replace(_estate(revision, sayings), board=board, shown=shown, roster=roster)


def read_roster(
    client: EtcdClient, keys: Keys, run_id: str, sealing: Sealing, revision: int = 0, timeout_s: float | None = None
) -> tuple[Seated, ...]:
    """Who is in the world that a board names."""
    parts: list[bytes] = []
    for number in range(sealing.parts):
        found = client.get(keys.part(sealing.seal_id, number), revision=revision, timeout_s=timeout_s)
        if found is not None:
            parts.append(found.value)
    return decode_roster(parts, sealing, run_id)


def read_board(client: EtcdClient, keys: Keys, run_id: str, revision: int = 0) -> Board | None:
    """Where a run stands, or stood at a revision; None where there is none."""
    found = client.get(keys.board, revision=revision)
    return None if found is None else decode_board(found.value, run_id)


def saying_of(keys: Keys, kv: KeyValue) -> Word | Wish | None:
    """What lies under a key of `in/`; None where nobody of us wrote it."""
    node_id = keys.node_id(kv.key)
    if node_id:
        return Word(node_id, kv.value, kv.create_revision, kv.mod_revision)
    token = keys.wish_token(kv.key)
    return Wish(token, kv.value, kv.mod_revision) if token else None


def gone(keys: Keys, key: bytes, revision: int) -> Gone | None:
    """A key of `in/` was deleted; None where it was not a node's."""
    node_id = keys.node_id(key)
    return Gone(node_id, revision) if node_id else None


def found_by(outcome: Outcome, index: int) -> KeyValue | None:
    """The key that an operation of a transaction read; None where there is none."""
    answer = outcome.answers[index]
    assert isinstance(answer, RangeResponse)
    return answer.kvs[0] if answer.kvs else None


def is_granted(client: EtcdClient, keys: Keys, run_id: str, wish: str, deadline: float) -> bool:
    """Wait until the leader has taken a wish, which it then deletes; False where that is not known by then.

    A wish also goes with the lease of whoever had it.  A leader closes the run first, so that the board tells.
    """
    try:
        with client.watch(wish, snapshot=True) as watch:
            while (left_s := deadline - time.monotonic()) > 0:
                item = watch.get(left_s)
                if item is not None and not (item.kvs if isinstance(item, Resync) else not item.is_delete):
                    board = _board_at(client, keys, run_id, item.revision)
                    return board is None or board.ended is not None
    except (EtcdError, RendezvousStateError) as exc:
        log.info("whether the wish to close was granted cannot be found out: %s", exc)
    return False


def _board_at(client: EtcdClient, keys: Keys, run_id: str, revision: int) -> Board | None:
    try:
        return read_board(client, keys, run_id, revision)
    except EtcdCompactedError:
        return read_board(client, keys, run_id)
