"""Each declared difference between torch's rendezvous and ours is so; and the page shows them all."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.interop.differences import DIFFERENCES, END, START, table
from tests.interop.libraries import STALLS, Library, Meeting
from tests.support.etcd_servers import shared
from tests.support.node_processes import free_port
from tests.support.remote_stores import start_process
from tests.support.waiting import PATIENCE_S, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
SHOWN: set[str] = set()


def shows(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """This test shows a difference on both sides."""
    assert name in DIFFERENCES
    SHOWN.add(name)
    return lambda test: test


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Meeting, Meeting]]:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    made = Meeting(Library("torch"), dist.HashStore()), Meeting(Library("rallypoint"), dist.HashStore())
    try:
        yield made
    finally:
        for meeting in made:
            meeting.end()


def fails(action: Callable[[], Any]) -> str:
    """The name of the error's type, or an empty text."""
    try:
        action()
    except Exception as exc:  # noqa: BLE001  # whatever it is, its name is the answer
        return type(exc).__name__
    return ""


@shows("document")
def test_the_document(both: tuple[Meeting, Meeting]) -> None:
    theirs, ours = both
    theirs.meet(theirs.handler(1, 1))
    ours.meet(ours.handler(1, 1))
    assert theirs.backend.state[:1] == pickle.PROTO
    assert ours.backend.state.startswith(b'{"v":1,')
    ours.end()
    ours.backend.state = theirs.backend.state
    assert fails(ours.handler(1, 1).next_rendezvous) == "RendezvousStateError"


@shows("loss")
def test_a_loss(both: tuple[Meeting, Meeting]) -> None:
    for meeting in both:
        first, second, lost = (meeting.handler(2, 3, keep_alive_max_attempt=2) for _ in range(3))
        meeting.meet(first, second, lost)
        lost._stop_heartbeats()
    theirs, ours = (meeting.handlers[0] for meeting in both)
    until(lambda: ours.num_nodes_waiting() == 1)
    assert theirs.num_nodes_waiting() == 0


@shows("surplus of a failed run")
def test_a_surplus_node_of_a_failed_run(both: tuple[Meeting, Meeting]) -> None:
    outcomes = []
    for meeting in both:
        first, second, third = (meeting.handler(keep_alive_max_attempt=STALLS) for _ in range(3))
        meeting.meet(first, second)
        (standing_by,) = meeting.join(third)
        until(lambda meeting=meeting: meeting.nodes() == 3)  # type: ignore[misc]
        first.set_closed()
        outcomes.append(fails(lambda: standing_by.result(PATIENCE_S)))  # noqa: B023
    assert outcomes == ["RendezvousGracefulExitError", "RendezvousClosedError"]


@shows("shutdown")
def test_one_shuts_down(both: tuple[Meeting, Meeting]) -> None:
    closed: list[bool] = []
    for meeting in both:
        first, second = meeting.handler(), meeting.handler()
        infos = dict(zip((first, second), meeting.meet(first, second), strict=True))
        leaver = max(infos, key=lambda handler: infos[handler].rank)
        assert leaver.shutdown()
        closed.append(bool(leaver.is_closed()))
    assert closed == [True, False]


@shows("stranger's shutdown")
def test_a_stranger_shuts_down(both: tuple[Meeting, Meeting]) -> None:
    closed = []
    for meeting in both:
        assert meeting.handler().shutdown()
        closed.append(meeting.handler().is_closed())
    assert closed == [True, False]


@shows("reuse")
def test_a_run_is_used_again(both: tuple[Meeting, Meeting]) -> None:
    outcomes = []
    for meeting in both:
        first = meeting.handler(1, 1)
        meeting.meet(first)
        assert first.shutdown()
        outcomes.append(fails(meeting.handler(1, 1).next_rendezvous))
    assert outcomes == ["RendezvousClosedError", ""]


@shows("bounds")
def test_other_bounds(both: tuple[Meeting, Meeting]) -> None:
    outcomes = []
    for meeting in both:
        first = meeting.handler(3, 3, keep_alive_max_attempt=STALLS)
        meeting.join(first)
        until(lambda meeting=meeting: meeting.backend.get_state() is not None)  # type: ignore[misc]
        outcomes.append(fails(meeting.handler(2, 2).next_rendezvous))
        first.set_closed()  # ours waits for a third
    assert outcomes == ["", "RendezvousError"]


@shows("away")
def test_a_backend_that_is_away(both: tuple[Meeting, Meeting]) -> None:
    outcomes = []
    for meeting in both:

        def away(meeting: Meeting = meeting) -> None:
            raise meeting.library.api.RendezvousConnectionError("it is away")

        meeting.backend.get_state = away
        outcomes.append(fails(meeting.handler(1, 1, join_s=0.5).next_rendezvous))
    assert outcomes == ["RendezvousConnectionError", "RendezvousTimeoutError"]


@shows("away at the end")
def test_a_backend_that_is_away_when_the_run_is_closed(both: tuple[Meeting, Meeting]) -> None:
    outcomes, attempts = [], []
    for meeting in both:
        tries: list[None] = []

        def away(*_: object, meeting: Meeting = meeting, tries: list[None] = tries) -> None:
            tries.append(None)
            raise meeting.library.api.RendezvousConnectionError("it is away")

        meeting.backend.get_state = meeting.backend.set_state = away
        outcomes.append(fails(meeting.handler(1, 1, close_s=1).set_closed))
        attempts.append(len(tries))
    assert outcomes == ["RendezvousConnectionError"] * 2
    assert attempts[0] == 1 < attempts[1]


@shows("slow at the end")
def test_a_backend_that_is_slow_when_the_run_is_closed(both: tuple[Meeting, Meeting]) -> None:
    outcomes = []
    for meeting in both:
        answer = threading.Event()
        read = meeting.backend.get_state

        def slowly(read: Callable[[], Any] = read, answer: threading.Event = answer) -> Any:
            answer.wait(0.5)
            return read()

        meeting.backend.get_state = slowly
        outcomes.append(fails(meeting.handler(1, 1, close_s=0.2).set_closed))
        answer.set()
    assert outcomes == ["RendezvousTimeoutError", "RendezvousConnectionError"]


@shows("away in between")
def test_a_backend_that_is_away_while_workers_run(both: tuple[Meeting, Meeting]) -> None:
    for meeting in both:
        handler = meeting.handler(1, 1, close_s=1, keep_alive_max_attempt=9)
        meeting.meet(handler)
        tries: list[None] = []

        def away(*_: object, meeting: Meeting = meeting, tries: list[None] = tries) -> None:
            tries.append(None)
            raise meeting.library.api.RendezvousConnectionError("it is away")

        meeting.backend.get_state = meeting.backend.set_state = away
        # torch's asks from memory as well, for a second; ours notices when its beat is due.
        until(lambda handler=handler, tries=tries: fails(handler.is_closed) or tries)  # type: ignore[misc]
        expected = "RendezvousConnectionError" if meeting.library.name == "torch" else ""
        assert fails(handler.is_closed) == fails(handler.num_nodes_waiting) == expected
        assert handler.shutdown() is False


@shows("waiting unjoined")
def test_a_handler_that_never_joined_is_asked_who_waits(both: tuple[Meeting, Meeting]) -> None:
    asked = []
    for meeting in both:
        readers: set[threading.Thread] = set()
        read = meeting.backend.get_state

        def noting(read: Callable[[], Any] = read, readers: set[threading.Thread] = readers) -> Any:
            readers.add(threading.current_thread())
            return read()

        meeting.backend.get_state = noting
        assert meeting.handler().num_nodes_waiting() == 0
        # Ours looks for its server in the background from the moment it is made; who asks does not wait for that.
        asked.append(threading.current_thread() in readers)
    assert asked == [True, False]


@shows("prefix")
def test_the_prefix(both: tuple[Meeting, Meeting]) -> None:
    parts = []
    for meeting in both:
        (info,) = meeting.meet(meeting.handler(1, 1))
        info.store.set("key", "value")
        (key,) = [key for key in meeting.store.list_keys() if key.endswith("/key")]
        parts.append(key.partition("/")[0].split("."))
    assert [part[:3] for part in parts] == [["torch", "rendezvous", "run"]] * 2
    assert [len(part) for part in parts] == [4, 5]


@shows("keep-alive")
def test_a_keep_alive_of_nothing() -> None:
    outcomes = []
    for name in ("torch", "rallypoint"):
        library = Library(name)
        params = library.params(keep_alive_interval=0)
        outcomes.append(
            fails(lambda: library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), params))  # noqa: B023
        )
    assert outcomes == ["", "ValueError"]


@shows("fractions")
def test_fractions_of_seconds() -> None:
    outcomes = []
    for name in ("torch", "rallypoint"):
        library = Library(name)
        params = library.params(join_timeout="1.5")
        outcomes.append(
            fails(lambda: library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), params))  # noqa: B023
        )
    assert outcomes == ["ValueError", ""]


@shows("bare IPv6")
def test_an_ipv6_address_without_brackets_and_port() -> None:
    theirs, ours = (Library(name).utils.parse_rendezvous_endpoint for name in ("torch", "rallypoint"))
    assert theirs("2001:db8::1", 7) == ("2001:db8:", 1)
    assert fails(lambda: ours("2001:db8::1", 7)) == "ValueError"
    assert theirs("2001:db8::1:29400", 7) == ours("2001:db8::1:29400", 7) == ("2001:db8::1", 29400)


@shows("blank path")
def test_a_blank_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for name in ("torch", "rallypoint"):
        library = Library(name)
        _, store = library.c10d_rendezvous_backend.create_backend(library.params("c10d", "  ", store_type="file"))
        paths.append(store.path)
    assert paths[0] == "  "
    assert Path(paths[1]).name.startswith("rallypoint-")
    Path(paths[1]).unlink()


def make_file_backend(name: str, path: str, pipe: Connection) -> None:
    """Make a backend on a file, and send what came of it."""
    library = Library(name)
    params = library.params("c10d", path, store_type="file")
    pipe.send("begins")
    pipe.send(fails(lambda: library.c10d_rendezvous_backend.create_backend(params)))


def begin_file_backend(name: str, path: Path) -> Connection:
    """Have it made in a process of its own, which has begun when this returns: torch's cannot be interrupted."""
    ours, theirs = multiprocessing.Pipe()
    start_process(make_file_backend, name, str(path), theirs)
    theirs.close()
    assert ours.recv() == "begins"
    return ours


@shows("missing folder")
def test_a_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "store"
    theirs = begin_file_backend("torch", path)
    ours = begin_file_backend("rallypoint", path)
    assert ours.poll(PATIENCE_S), "ours does not wait for it"
    assert ours.recv() == "RendezvousError"
    assert not theirs.poll(1), "torch waits for the folder"
    path.parent.mkdir()
    assert theirs.poll(PATIENCE_S)
    assert theirs.recv() == ""


@pytest.mark.soak
def test_a_missing_folder_is_waited_for_by_torch_for_five_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    theirs = begin_file_backend("torch", tmp_path / "missing" / "store")
    assert theirs.poll(300 + PATIENCE_S)
    assert theirs.recv() == "RendezvousConnectionError"
    assert time.monotonic() - began > 290


@shows("nameless machine")
def test_a_machine_whose_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.name.invalid")
    outcomes = [
        fails(lambda: Library(name).utils._matches_machine_hostname("192.0.2.77"))  # noqa: B023
        for name in ("torch", "rallypoint")
    ]
    assert outcomes == ["gaierror", ""]


@pytest.mark.filterwarnings("ignore:Exception in thread .*lease_worker:pytest.PytestUnhandledThreadExceptionWarning")
def test_a_phase_that_is_overridden_is_called_by_both() -> None:
    outcomes = []
    for name in ("torch", "rallypoint"):

        class Overriding(Library(name).etcd_rendezvous.EtcdRendezvous):  # type: ignore[misc]
            def init_phase(self) -> tuple[str, int, int]:
                return "mine", 7, 8

        node = Overriding(shared("3.5").client(), "/torchelastic/p2p", f"phases-{name}", 1, 1, 60, 1)
        outcomes.append(node.rendezvous_barrier())
        node.client.delete(node.get_path(""), recursive=True)
    assert outcomes == [("mine", 7, 8)] * 2


@shows("empty prefix")
@pytest.mark.filterwarnings("ignore:Exception in thread .*lease_worker:pytest.PytestUnhandledThreadExceptionWarning")
def test_an_empty_prefix() -> None:
    client = shared("3.5").client()
    for name, empty in (("torch", ""), ("rallypoint", "/torchelastic/p2p")):
        library = Library(name)
        for prefix, folder in (("", empty), ("/", ""), ("/mine", "/mine")):
            run_id = f"prefix-{uuid.uuid4().hex}"
            library.etcd_rendezvous.create_rdzv_handler(
                library.params("etcd", shared("3.5").endpoint, run_id=run_id, etcd_prefix=prefix)
            )
            assert client.delete(f"{folder}/run_{run_id}", recursive=True).action == "delete", (name, prefix)


@shows("static rank")
def test_a_static_rank_outside_the_world() -> None:
    outcomes = []
    for name in ("torch", "rallypoint"):
        library = Library(name)
        params = library.params("static", f"localhost:{free_port()}", rank=7)
        outcomes.append(fails(lambda: library.static_tcp_rendezvous.create_rdzv_handler(params)))  # noqa: B023
    assert outcomes == ["", "ValueError"]


def test_every_difference_is_shown() -> None:
    assert set(DIFFERENCES) == SHOWN


def test_the_page_shows_them_all(rewrite: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    assert start, "the page has a place for the table"
    assert end, "and the place has an end"
    if rewrite:
        PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")
        return
    assert table() == f"{START}{rest.partition(END)[0]}{END}", "run this test with --rewrite"
