"""Several writes at a time: all of them are made, or what went wrong is said."""

from __future__ import annotations

import threading

import pytest

from rallypoint.etcd.at_once import at_once
from tests.etcd_client.stage import SOON_S


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_it_is_done_to_all_and_once(count: int) -> None:
    done: list[int] = []
    at_once(done.append, range(count), 4)
    assert sorted(done) == list(range(count))


def test_it_is_done_to_several_at_a_time() -> None:
    together = threading.Barrier(3)
    at_once(lambda _: together.wait(SOON_S), range(6), 3)


def test_what_was_raised_ends_it_and_is_raised() -> None:
    tried: list[int] = []

    def fail(one: int) -> None:
        tried.append(one)
        raise ValueError(str(one))

    with pytest.raises(ValueError, match="0"):
        at_once(fail, range(100), 1)
    assert tried == [0]
    with pytest.raises(ValueError, match=r"\d"):
        at_once(fail, range(100), 4)
    assert len(tried) <= 5


def test_what_is_raised_by_a_helper_is_raised_here() -> None:
    here, there = threading.current_thread(), threading.Event()

    def fail_elsewhere(_: int) -> None:
        if threading.current_thread() is here:
            assert there.wait(SOON_S)
        else:
            there.set()
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        at_once(fail_elsewhere, range(2), 2)


def test_where_there_are_no_threads_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    at_once(done.append, range(10), 4)
    assert done == list(range(10))
