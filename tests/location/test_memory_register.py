"""What every register promises (rule 17, the port).  A later one is run through the same tests by its line in REGISTERS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from rallypoint.location.register import Entry, Register
from rallypoint.location.registers.memory import MemoryRegister
from tests.waiting import PATIENCE_S


class Medium(Protocol):
    """A register, and what may befall its medium."""

    def open(self) -> Register:
        """The register, as one more process sees it."""

    def empty(self) -> None:
        """The medium forgets."""

    def touch(self) -> None:
        """Somebody writes the same value anew."""

    def close(self) -> None:
        """The test is over."""


class Memory:
    """One object that all threads share."""

    def __init__(self) -> None:
        self._register = MemoryRegister()

    def open(self) -> Register:
        return self._register

    def empty(self) -> None:
        self._register.empty()

    def touch(self) -> None:
        self._register.touch()

    def close(self) -> None:
        pass


REGISTERS: list[Callable[[], Medium]] = [Memory]


@pytest.fixture(params=REGISTERS, ids=lambda factory: factory.__name__)
def medium(request: pytest.FixtureRequest) -> Iterator[Medium]:
    factory: Callable[[], Medium] = request.param
    opened = factory()
    yield opened
    opened.close()


def written(register: Register, value: bytes, after: Entry | None = None) -> Entry:
    """A write that must succeed."""
    entry = register.write(value, after and after.token)
    assert entry is not None, "another writer was first"
    return entry


def test_an_empty_register_is_read_as_nothing(medium: Medium) -> None:
    """Rule 17a: who finds no record may claim."""
    assert medium.open().read() is None


def test_what_was_written_is_read_with_the_token_of_its_write(medium: Medium) -> None:
    """Rule 17c: a lost answer is resolved by reading."""
    first, second = medium.open(), medium.open()
    entry = written(first, b"one")
    assert entry.value == b"one"
    assert second.read() == entry
    assert second.read() == entry


def test_of_two_who_find_nothing_one_writes_first(medium: Medium) -> None:
    """Rule 17a: losers connect to the winner."""
    first, second = medium.open(), medium.open()
    entry = written(first, b"one")
    assert second.write(b"two", None) is None
    assert second.read() == entry


def test_of_two_who_read_the_same_one_writes_first(medium: Medium) -> None:
    """Rule 17d: a write after a stale read fails, also if it would write the same."""
    first, second = medium.open(), medium.open()
    stale = written(first, b"one")
    entry = written(second, b"two", stale)
    assert first.write(b"three", stale.token) is None
    assert first.write(b"two", stale.token) is None
    assert first.read() == entry
    assert written(first, b"three", entry).value == b"three"


def test_each_write_has_a_token_of_its_own(medium: Medium) -> None:
    """Rule 17d: a guard that does not change with the claim lets a late write pass."""
    register = medium.open()
    entries = [written(register, b"same")]
    for _ in range(3):
        entries.append(written(register, b"same", entries[-1]))
    assert all(one.token != other.token for one in entries for other in entries if one is not other)


def test_a_token_from_before_the_register_was_emptied_fits_nothing(medium: Medium) -> None:
    """Rule 17d: nor does it fit what is written after that."""
    register = medium.open()
    before = written(register, b"one")
    medium.empty()
    assert register.read() is None
    assert register.write(b"late", before.token) is None
    after = written(register, b"one")
    assert register.write(b"late", before.token) is None
    assert register.read() == after


def test_a_token_from_before_the_value_was_written_anew_fits_no_more(medium: Medium) -> None:
    """Rule 17d: a server that finds its own record with another token writes by that one."""
    register = medium.open()
    before = written(register, b"one")
    medium.touch()
    assert register.write(b"two", before.token) is None
    now = register.read()
    assert now is not None
    assert now.value == b"one"
    assert written(register, b"two", now).value == b"two"


def test_a_wait_for_what_has_changed_already_is_none(medium: Medium) -> None:
    """Rule 17b: a change between a read and the wait for the next one is not missed."""
    register = medium.open()
    first = written(register, b"one")
    register.wait(None, PATIENCE_S)
    second = written(register, b"two", first)
    register.wait(first.token, PATIENCE_S)
    medium.empty()
    register.wait(second.token, PATIENCE_S)
    assert register.read() is None


def test_a_wait_ends_with_its_time_where_nothing_changes(medium: Medium) -> None:
    """Rule 17b."""
    register = medium.open()
    register.wait(None, 0.01)
    entry = written(register, b"one")
    register.wait(entry.token, 0.01)
    assert register.read() == entry


@pytest.mark.parametrize("change", ["write", "empty", "touch"])
def test_a_wait_ends_when_another_thread_changes_the_register(medium: Medium, change: str) -> None:
    """Rule 17b: a changed record ends the wait."""
    register = medium.open()
    before = written(register, b"one")
    waits, over = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        medium.open().wait(before.token, 10 * PATIENCE_S)
        over.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not over.wait(0.05)
    if change == "write":
        written(register, b"two", before)
    elif change == "empty":
        medium.empty()
    else:
        medium.touch()
    assert over.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_of_many_threads_one_writes_first(medium: Medium) -> None:
    """Rule 17a: all of them read the same, and each writes a claim."""
    before = written(medium.open(), b"one")
    start, won = threading.Barrier(8), []

    def write(number: int) -> None:
        register = medium.open()
        start.wait(PATIENCE_S)
        if register.write(b"%d" % number, before.token) is not None:
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    entry = medium.open().read()
    assert entry is not None
    assert [b"%d" % number for number in won] == [entry.value]
