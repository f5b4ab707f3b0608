"""The document as bytes: nothing is lost, and nothing that is not one is taken for one (rule 15)."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core import transition
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Run
from rallypoint.document import page as pages
from rallypoint.document.page import Page
from rallypoint.errors import RendezvousStateError


def _run(count: int = 3, now: float = 5.0) -> Run:
    run = Run(run_id="run")
    for number in range(count):
        joined = Joined(Node(id=f"n{number}", name=f"n{number}"), Bounds(2, count))
        run = transition.step(run, joined, now, f"m{number}").run
    return run


def test_a_page_is_read_as_it_was_written() -> None:
    page = Page(run=_run(), clock=5.0, nonce="n", beside=True, epoch=3, folded=7, gaps=(4, 6), beats={"n1": 9})
    assert pages.decode(pages.encode(page), "run") == page


def test_a_document_of_torch_is_refused_in_words() -> None:
    with pytest.raises(RendezvousStateError, match=r"is a pickle, which is never loaded; nodes that use torch's own"):
        pages.decode(pickle.dumps({"round": 0}), "run")


def test_a_document_of_another_run_is_refused() -> None:
    with pytest.raises(RendezvousStateError, match="belongs to run 'run': give each run a place of its own"):
        pages.decode(pages.encode(Page(run=_run())), "another")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(RendezvousStateError, match="is of version 2, and this Rallypoint reads version 1"):
        pages.decode(b'{"v": 2, "body": {}}', "run")


def test_a_document_that_is_too_large_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(run=_run(40))
    data = pages.encode(page)
    monkeypatch.setattr(pages, "LIMIT", 1000)
    with pytest.raises(RendezvousStateError, match="needs the backend 'rallypoint' or 'etcd-v3'"):
        pages.encode(page)
    with pytest.raises(RendezvousStateError, match="more than the 1000 that are allowed"):
        pages.decode(data, "run")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b'{"v": 1}', b'{"v": 1, "body": {"kind": "other"}}', None, 7]
)
def test_what_is_no_document_is_refused(data: object) -> None:
    with pytest.raises(RendezvousStateError):
        pages.decode(data, "run")  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        pages.decode(data, "run")


@given(st.data())
def test_a_damaged_document_is_refused_or_still_makes_sense(data: st.DataObject) -> None:
    written = bytearray(pages.encode(Page(run=_run(), clock=5.0, nonce="n")))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] = data.draw(st.integers(0, 255))
    try:
        pages.decode(bytes(written), "run")
    except RendezvousStateError:
        return


def test_the_document_is_json_with_a_version() -> None:
    written = json.loads(pages.encode(Page(run=_run())))
    assert (written["v"], written["body"]["kind"]) == (1, "rallypoint.document")
