"""The document as bytes: the run, and what its editors must agree on beside it; versioned JSON (rule 15).

Times in it are those of the document's own clock (see `clock`), so that no editor needs another's.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rallypoint.core import codec
from rallypoint.core.model import Count, Name, Round, Run, Text, Token
from rallypoint.errors import RendezvousStateError

VERSION = 1
LIMIT = 5 * 1024 * 1024
"""A value of torch's TCP store has 8 MiB at most, and base64 takes a third more than this."""
MOST_GAPS = 16
LONGEST_WHY = 1024

_KIND = "rallypoint.document"
_ADVICE = "delete it, or use another run id, to start anew"

Time = Annotated[float, Meta(ge=0, le=1e9)]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What the document says.

    `nonce` names this document: whatever is said beside it stands under that name.  `epoch` grows when there is news
    that others wait for.  `folded` is the number of the last announcement that was taken in, `gaps` are those before it
    that were not there yet.  `beats` are the counters of the nodes, where they do not go beside the document.  `broken`
    is the seal id of the world that broke last, and `why` is the reason.
    """

    run: Run
    clock: float = 0.0
    nonce: str = ""
    beside: bool = False
    epoch: int = 0
    folded: int = 0
    gaps: tuple[int, ...] = ()
    beats: dict[str, int] = {}
    broken: str = ""
    why: str = ""


class _Record(msgspec.Struct, omit_defaults=True):
    kind: str
    run: msgspec.Raw
    clock: Time = 0.0
    nonce: Token = ""
    beside: bool = False
    epoch: Round = 0
    folded: Round = 0
    gaps: Annotated[list[Round], Meta(max_length=MOST_GAPS)] = []
    beats: dict[Name, Count] = {}
    broken: Token = ""
    why: Text = ""


class _Envelope(msgspec.Struct):
    v: int
    body: msgspec.Raw


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_RECORD = msgspec.json.Decoder(_Record)


def encode(page: Page) -> bytes:
    """The document as bytes; one that is too large for its stores is refused before it is written."""
    record = _Record(
        kind=_KIND,
        run=msgspec.Raw(codec.encode_run(page.run, page.clock)),
        clock=page.clock,
        nonce=page.nonce,
        beside=page.beside,
        epoch=page.epoch,
        folded=page.folded,
        gaps=list(page.gaps),
        beats=page.beats,
        broken=page.broken,
        why=page.why[:LONGEST_WHY],
    )
    data = msgspec.json.encode({"v": VERSION, "body": record})
    if len(data) > LIMIT:
        raise RendezvousStateError(
            f"the document of run {page.run.run_id!r} would have {len(data)} bytes, and {LIMIT} are the most: a run of "
            f"this size needs the backend 'rallypoint' or 'etcd-v3'"
        )
    return data


def decode(data: bytes, run_id: str) -> Page:
    """What a document says; whatever is wrong with it is a `RendezvousStateError`."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise RendezvousStateError(f"the document of run {run_id!r} should be bytes, not {type(data).__name__}")
    data = bytes(data)
    if len(data) > LIMIT:
        raise RendezvousStateError(
            f"the document of run {run_id!r} has {len(data)} bytes, more than the {LIMIT} that are allowed; {_ADVICE}"
        )
    envelope = _parse(_ENVELOPE, data, data, run_id)
    if envelope.v != VERSION:
        raise RendezvousStateError(
            f"the document of run {run_id!r} is of version {envelope.v}, and this Rallypoint reads version {VERSION}: "
            f"run the same release on every node"
        )
    record: _Record = _parse(_RECORD, bytes(envelope.body), data, run_id)
    if record.kind != _KIND:
        raise RendezvousStateError(
            f"the document of run {run_id!r} is of another kind, {record.kind[:40]!r}; {_ADVICE}"
        )
    run = codec.decode_run(bytes(record.run), record.clock)
    if run.run_id != run_id:
        raise RendezvousStateError(
            f"the document of run {run_id!r} belongs to run {run.run_id!r}: give each run a place of its own"
        )
    return Page(
        run=run,
        clock=record.clock,
        nonce=record.nonce,
        beside=record.beside,
        epoch=record.epoch,
        folded=record.folded,
        gaps=tuple(record.gaps),
        beats=record.beats,
        broken=record.broken,
        why=record.why,
    )


def _parse(decoder: msgspec.json.Decoder[Any], data: bytes, whole: bytes, run_id: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as exc:
        if whole[:1] == b"\x80":
            why = (
                "it is a pickle, which is never loaded; nodes that use torch's own backend are in this run, and the "
                "two cannot share one: let every node use the same library, or use another run id"
            )
        else:
            why = f"{str(exc) or type(exc).__name__}; {_ADVICE}"
        raise RendezvousStateError(f"the document of run {run_id!r} cannot be read: {why}") from exc
