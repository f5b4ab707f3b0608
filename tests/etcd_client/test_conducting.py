"""The conductor of the watches goes on, whatever its users or it itself do wrong."""

from __future__ import annotations

import time

import pytest

from rallypoint.etcd_client import EtcdClient
from rallypoint.etcd_client.conductor import Watcher
from rallypoint.etcd_client.messages import WatchResponse
from rallypoint.etcd_client.watching import Book, Effects
from tests.etcd_client.test_watches import take
from tests.waiting import until


def test_a_user_who_fails_to_wake_costs_nobody_an_event(client: EtcdClient, prefix: str) -> None:
    def trip() -> None:
        raise ValueError("a mistake in wake")

    with client.watch(prefix, wake=trip) as clumsy, client.watch(f"{prefix}other") as other:
        for value in ("1", "2"):
            client.put(prefix, value)
            client.put(f"{prefix}other", value)
        for watch in (clumsy, other):
            assert [change.value for change in take(watch, 2)] == [b"1", b"2"]


def test_a_conductor_that_stumbles_goes_on_where_it_was(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, stumbles = Book.heard, list[WatchResponse]()

    def trips(book: Book, response: WatchResponse) -> Effects:
        if response.events and not stumbles:
            stumbles.append(response)
            raise ValueError("a mistake of the conductor's")
        return heard(book, response)

    monkeypatch.setattr(Book, "heard", trips)
    with client.watch(prefix) as watch:
        for value in ("1", "2", "3"):
            client.put(prefix, value)
        assert [change.value for change in take(watch, 3)] == [b"1", b"2", b"3"]
        assert stumbles
        assert watch.trouble is None


def test_a_conductor_that_stumbles_all_the_time_says_so_and_rests_in_between(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumbles = list[float]()

    def trips(*_: object) -> Effects:
        stumbles.append(time.monotonic())
        raise ValueError("a mistake of the conductor's")

    with client.watch(prefix) as watch:
        with monkeypatch.context() as broken:
            broken.setattr(Book, "heard", trips)
            client.put(prefix, "1")
            until(lambda: len(stumbles) >= 4, "it stumbles again and again")
            assert "a mistake of the conductor's" in str(watch.trouble)
            assert stumbles[3] - stumbles[0] > 0.5
        assert [change.value for change in take(watch, 1)] == [b"1"]


def test_who_waits_for_a_conductor_that_stumbles_at_its_end_is_told(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(*_: object) -> None:
        raise ValueError("a mistake of the conductor's")

    client.put(prefix, "1")
    watch = client.watch(prefix)
    watcher = client._open.part(Watcher)
    monkeypatch.setattr(Watcher, "_remove", trips)
    monkeypatch.setattr(Watcher, "_end", trips)
    client.close()
    assert list(watch) == []
    until(lambda: not watcher._mailboxes, "nothing is left")
