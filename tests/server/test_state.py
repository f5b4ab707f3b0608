"""The state file: what it takes for its own, what it refuses, and that a crash leaves it readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.core import codec, transition
from rallypoint.core.events import Joined
from rallypoint.core.model import Bounds, Node, Run
from rallypoint.errors import RendezvousStateError
from rallypoint.server.state_file import StateFile


def sealed(run_id: str) -> Run:
    """A run with one node in its world."""
    joined = Joined(Node(id="a.1", name="a"), Bounds(1, 1))
    return transition.step(Run(run_id=run_id), joined, 100.0, "mint").run


def record(run_id: str) -> tuple[str, bytes]:
    return run_id, codec.encode_run(sealed(run_id), 100.0)


def test_what_is_written_is_read_back_and_the_last_line_of_a_run_counts(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state")
    state.append([record("one"), record("two"), record("one")])
    state.close()
    again = StateFile(tmp_path / "state")
    assert sorted(run.run_id for run in again.read(50.0)) == ["one", "two"]
    assert len((tmp_path / "state").read_bytes().splitlines()) == 2
    again.append([record("three")])
    again.close()
    assert len((tmp_path / "state").read_bytes().splitlines()) == 3


def test_a_line_cut_off_at_any_byte_is_dropped_and_nothing_else(tmp_path: Path) -> None:
    whole, last = record("one")[1] + b"\n", record("two")[1]
    for cut in range(len(last)):
        path = tmp_path / f"state-{cut}"
        path.write_bytes(whole + last[:cut])
        state = StateFile(path)
        assert [run.run_id for run in state.read(0.0)] == ["one"]
        state.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize("precious", [b"precious", b"precious\n", b"# settings\nx = 1\n", b'{"v":1,"body":{}}\n'])
def test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is(tmp_path: Path, precious: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(precious)
    with pytest.raises(RendezvousStateError, match=str(path)):
        StateFile(path).read(0.0)
    assert path.read_bytes() == precious


def test_a_file_belongs_to_one_server_at_a_time(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "state")
    with pytest.raises(RendezvousStateError, match="in use by another server"):
        StateFile(tmp_path / "state")
    first.close()
    StateFile(tmp_path / "state").close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousStateError, match="cannot be opened"):
        StateFile(tmp_path / "nowhere" / "state")


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state")
    state.append([record("one"), record("one")])
    state.read(0.0)
    state.close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
