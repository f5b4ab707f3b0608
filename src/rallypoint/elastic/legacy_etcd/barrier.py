"""The older etcd protocol, the part that acts: one node's way through setup, joinable, frozen and final.

Each turn reads the state, does the one thing that is this node's to do, and waits until the state changes.  So whatever
fails on the way, a restart of etcd, an election, a history that was cleared, the next turn goes on from what is there.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.elastic.legacy_etcd.lease import Lease
from rallypoint.elastic.legacy_etcd.protocol import Edit, State
from rallypoint.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, Keys, step_back
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.waiting import Deadline

OURS = "rallypoint"
"""What our keep-alive keys hold.  PyTorch's hold nothing, and nobody there looks."""

_SEEN_S = 1.0
"""How long PyTorch's nodes get to see that somebody waits before a broken world is cleared away: they learn it no other way."""
_BACK_S = 1.5
"""How much longer a last call lasts where PyTorch's nodes are about.  Theirs sleep for a second when a world was cleared
away, while ours come back at once: a shorter last call would be over before they look, each time anew.  Its own is a second
longer than it says."""
_ONE_NODE_S = 0.004
_LONGEST_PAUSE_S = 0.25


class Seat(NamedTuple):
    """A place in a version."""

    version: str
    rank: int


class Found(NamedTuple):
    """The state as it was read or written: its text, etcd's index at that moment, and that of its last change."""

    state: State | None
    text: str
    at: int
    modified: int = 0


class Barrier:
    """One node's way into a world, again and again."""

    def __init__(
        self, keys: Keys, root: str, run_id: str, min_nodes: int, max_nodes: int, *, last_call_s: float
    ) -> None:
        self.seat: Seat | None = None
        self._keys = keys
        self._root, self._rdzv = root, f"{root}/rdzv"
        self._active, self._counter = f"{self._rdzv}/active_version", f"{self._rdzv}/version_counter"
        self._run_id = run_id
        self._min, self._max = min_nodes, max_nodes
        self.last_call_s = last_call_s
        self._lease: Lease | None = None
        self._mixed = False
        # Of the wait that is under way:
        self._last_call_at = 0.0
        self._keep_at = 0.0
        self._announced = ("", 0.0)
        self._conflicts = 0

    def prepare(self, term: Deadline) -> None:
        """Make the directories and the counter that a run needs, where they are missing."""
        self._keys.make_directory(self._root, term, ttl_s=protocol.RUN_TTL_S)
        self._keys.make_directory(self._rdzv, term)
        self._keys.swap(self._counter, "0", term)

    def state(self, term: Deadline) -> State | None:
        """The state as it is now."""
        return self.look(term).state

    def close(self, term: Deadline) -> None:
        """Close the run, whatever its state."""
        while True:
            found = self.look(term)
            if found.state is not None and found.state["status"] == protocol.CLOSED:
                return
            if self._edit(found, protocol.closed(found.state), term) is not None:
                return

    def leave(self) -> None:
        """Give up the place in the last world; where all its members are ours, at once, else by letting the key expire."""
        lease, self._lease, seat, self.seat = self._lease, None, self.seat, None
        if lease is None or seat is None:
            return
        lease.stop()
        term = self._brief()
        try:
            node = self._keys.read(self._directory(seat.version), term).node
            members = [child for child in (node.nodes if node is not None else ()) if "/rank_" in child.key]
            if all(child.value == OURS for child in members):
                self._keys.delete(self.keep_alive(seat), term)
        except StoreError:
            return  # then it expires

    def wait(self, timeout_s: float) -> tuple[str, int, int]:
        """Wait for a place in the next world: version, rank and size."""
        term = Deadline.after(timeout_s)
        self.leave()
        seat: Seat | None = None
        self._announced, self._conflicts = ("", 0.0), 0
        found: Found | None = None
        while True:
            try:
                if found is None:
                    found = self.look(term)
                if term.left_s() <= 0:
                    raise RendezvousTimeoutError(self._too_late(timeout_s, found.state))
                if self._is_final_for(seat, found.state):
                    assert seat is not None
                    self.seat = seat
                    return seat.version, seat.rank, len((found.state or {})["participants"])
                seat, found = self._turn(seat, found, term)
            except EtcdAwayError as exc:  # noqa: PERF203  # trying again is the point
                if term.left_s() <= 0:
                    raise RendezvousTimeoutError(f"{self._too_late(timeout_s, None)}: {exc}") from exc
                found = None
            except StoreError as exc:
                raise RendezvousConnectionError(f"the keys of run {self._run_id!r} cannot be used: {exc}") from exc

    def misses_somebody(self, state: State, term: Deadline) -> bool:
        """Whether a member of a final world has no keep-alive key any more."""
        return state["status"] == protocol.FINAL and self._missing(state, term)[0]

    # One turn -------------------------------------------------------------------------------------------------------

    def _turn(self, seat: Seat | None, found: Found, term: Deadline) -> tuple[Seat | None, Found | None]:
        """Do what is to be done in this state; the seat then, and the state where it is known already."""
        state = found.state
        if state is None:
            self.create(term)
            return None, None
        if state["status"] == protocol.CLOSED:
            raise RendezvousClosedError(f"run {self._run_id!r} is closed: nobody can join it any more")
        if state["status"] == protocol.SETUP:
            return None, self.wait_for_change(found, protocol.SETUP_TTL_S, term)
        mine = seat is not None and seat.version == state["version"]
        if state["status"] == protocol.JOINABLE:
            return self.hold(seat, found, term) if seat is not None and mine else self.join(found, term)
        if state["status"] == protocol.FROZEN:
            if seat is not None and mine:
                return seat, self.confirm(seat, found, term)
            return None, self.wait_for_change(found, protocol.FROZEN_TTL_S, term)
        self._wait_for_the_next(found, term)
        return None, None

    def create(self, term: Deadline) -> Found | None:
        """Begin a version, and return its state; None where somebody else begins one, or has."""
        self.prepare(term)
        setup = protocol.set_up()
        text = self._written(setup)
        if not self._keys.swap(self._active, text, term, ttl_s=setup.ttl_s).done:
            return None
        while True:
            node = self._keys.read(self._counter, term).node
            number = int(node.value) if node is not None and node.value.strip().isdigit() else 0
            before = None if node is None else node.value
            if self._keys.swap(self._counter, str(number + 1), term, before=before).done:
                break
        version = str(number + 1)
        self._keys.make_directory(self._directory(version), term)
        return self._edit(Found(None, text, 0), protocol.opened(version), term, before=text)

    def join(self, found: Found, term: Deadline) -> tuple[Seat | None, Found | None]:
        """Take a seat in a version that can be joined; without one, somebody else was faster, or no place is free."""
        state = found.state
        assert state is not None
        if len(state["participants"]) >= self._max:
            return None, self.wait_for_change(found, protocol.JOINABLE_TTL_S, term)
        joined = self._edit(found, protocol.joined(state, self._min, self._max), term)
        if joined is None:
            return None, None
        self.begin_last_call(self.last_call_s, keep_s=protocol.JOINABLE_TTL_S / 2)
        return Seat(state["version"], len(state["participants"])), joined

    def begin_last_call(self, last_call_s: float, *, keep_s: float = 0.0) -> None:
        """From now on the last call lasts for so long; the state is first kept alive after `keep_s`."""
        now = time.monotonic()
        self._last_call_at, self._keep_at = now + last_call_s, now + keep_s

    def hold(self, seat: Seat, found: Found, term: Deadline) -> tuple[Seat | None, Found | None]:
        """Wait for more; the one that completed min keeps the state alive, and ends the last call."""
        if seat.rank != self._min - 1:
            return seat, self.wait_for_change(found, protocol.JOINABLE_TTL_S, term)
        assert found.state is not None
        now, ends_at = time.monotonic(), self._last_call_at + (_BACK_S if self._mixed else 0.0)
        if now >= ends_at:
            self._edit(found, protocol.frozen(found.state), term)
            return seat, None
        if now >= self._keep_at:
            self._keep_at = now + protocol.JOINABLE_TTL_S / 2
            self._edit(found, Edit(found.state, protocol.JOINABLE_TTL_S), term)
            return seat, None
        return seat, self.wait_for_change(found, min(ends_at, self._keep_at) - now, term)

    def confirm(self, seat: Seat, found: Found, term: Deadline) -> Found | None:
        """Say that this node is there, and keep its key alive; where it has said so, wait for the others."""
        assert found.state is not None
        key = self.keep_alive(seat)
        if key in found.state["keep_alives"]:
            return self.wait_for_change(found, protocol.FROZEN_TTL_S, term)
        if self._lease is None or self.seat != seat:
            if self._lease is not None:
                self._lease.stop()
            self.seat = seat
            self._keys.write(key, OURS, term, ttl_s=protocol.KEEP_ALIVE_TTL_S)
            self._lease = Lease(self._keys, key, protocol.KEEP_ALIVE_TTL_S, revive=self._revive)
        return self._edit(found, protocol.confirmed(found.state, key), term)

    def _wait_for_the_next(self, found: Found, term: Deadline) -> None:
        """Say that one more waits, and clear the world away once somebody in it is gone."""
        state = found.state
        assert state is not None
        version = state["version"]
        if self._announced[0] != version:
            self.announce(found, term)
            return
        self.wait_until_free(found, term)

    def announce(self, found: Found, term: Deadline) -> Found | None:
        """Say that one more waits for the next version; None where the state has changed meanwhile."""
        assert found.state is not None
        announced = self._edit(found, protocol.announced(found.state), term)
        if announced is not None:
            self._announced = (found.state["version"], time.monotonic())
        return announced

    def wait_until_free(self, found: Found, term: Deadline) -> None:
        """Clear a final world away if somebody in it is gone; else wait until something happens to it."""
        state = found.state
        assert state is not None
        version = state["version"]
        broken, has_torch, at = self._missing(state, term)
        unseen_s = self._announced[1] + _SEEN_S - time.monotonic()
        if not broken:
            places = [(self._active, False), (self._directory(version), True)]
            self._pause(state)
            wait_for_event(self._keys, places, min(at, found.at), min(term.left_s(), protocol.KEEP_ALIVE_TTL_S))
        elif has_torch and unseen_s > 0:
            wait_for_event(self._keys, [(self._active, False)], found.at, min(unseen_s, term.left_s()))
        else:
            self._keys.delete(self._active, term, before=found.text)

    # Inside ---------------------------------------------------------------------------------------------------------

    def look(self, term: Deadline) -> Found:
        """The state as it is now, also where that is none."""
        answer = self._keys.read(self._active, _at_least(term, self._keys))
        if answer.node is None:
            return Found(None, "", answer.at)
        self._mixed = self._mixed or protocol.is_mixed(answer.node.value)
        return Found(protocol.read(answer.node.value), answer.node.value, answer.at, answer.node.modified)

    def _written(self, edit: Edit) -> str:
        return protocol.written(edit.state, mixed=self._mixed)

    def _edit(self, found: Found, edit: Edit, term: Deadline, before: str | None = None) -> Found | None:
        """Change the state, if it is still as it was found; what it is then."""
        text, expected = self._written(edit), before or (found.text if found.state is not None else None)
        started = time.monotonic()
        swapped = self._keys.swap(self._active, text, term, before=expected, ttl_s=edit.ttl_s)
        if swapped.done:
            self._conflicts = 0
            return Found(edit.state, text, swapped.modified, swapped.modified)
        self._conflicts += 1
        step_back(self._conflicts, time.monotonic() - started, term)
        return None

    def wait_for_change(self, found: Found, limit_s: float, term: Deadline) -> Found | None:
        """Wait until the state has changed, or for so long; the state then, where it was looked at."""
        if found.state is not None and self._pause(found.state):
            now = self.look(term)
            if now.text != found.text:
                return now
        wait_for_event(self._keys, [(self._active, False)], found.at, min(limit_s, term.left_s()))
        # The event may be one of many by now: what counts is how things are.
        return None

    def _pause(self, state: State) -> bool:
        """In a crowd the state changes all the time; who waits looks seldom while many are missing, often at the end.

        Whether it was worth a word.
        """
        here = len(state.get("participants", ()))
        missing = here - len(state["keep_alives"]) if "keep_alives" in state else self._max - here
        pause_s = min(max(missing, 0) * _ONE_NODE_S, 2 * here * _ONE_NODE_S, _LONGEST_PAUSE_S)
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        return pause_s > _ONE_NODE_S

    def _missing(self, state: State, term: Deadline) -> tuple[bool, bool, int]:
        """Whether a keep-alive key is gone, whether one of PyTorch's is there, and when that was."""
        answer = self._keys.read(self._directory(state["version"]), _at_least(term, self._keys))
        there = {node.key: node.value for node in (answer.node.nodes if answer.node is not None else ())}
        keys = [str(key) for key in state["keep_alives"]]
        return any(key not in there for key in keys), any(there.get(key, OURS) != OURS for key in keys), answer.at

    def _revive(self) -> None:
        """The keep-alive key expired while etcd could not be reached; where the world still stands, it comes back."""
        seat = self.seat
        state = self.look(self._brief()).state
        if seat is not None and state is not None and state.get("version") == seat.version:
            self._keys.write(self.keep_alive(seat), OURS, self._brief(), ttl_s=protocol.KEEP_ALIVE_TTL_S)

    def prepare_again(self) -> None:
        """The run's directory expired while etcd could not be reached."""
        self.prepare(self._brief())

    def _brief(self) -> Deadline:
        return Deadline.after(min(5.0, self._keys.request_timeout_s))

    def _is_final_for(self, seat: Seat | None, state: State | None) -> bool:
        return (
            seat is not None
            and state is not None
            and state["status"] == protocol.FINAL
            and state["version"] == seat.version
            and self.keep_alive(seat) in state["keep_alives"]
        )

    def _directory(self, version: str) -> str:
        return f"{self._rdzv}/v_{version}"

    def keep_alive(self, seat: Seat) -> str:
        """The key by which a member shows that it is alive."""
        return f"{self._directory(seat.version)}/rank_{seat.rank}"

    def _too_late(self, timeout_s: float, state: State | None) -> str:
        words = protocol.described(state, self._min, self._max)
        return f"run {self._run_id!r} was not joined within {timeout_s:g} s: {words}"


def _at_least(term: Deadline, keys: Keys) -> Deadline:
    """A look is made even when the time is over, and then waits for nobody."""
    return Deadline.after(max(min(term.left_s(), keys.request_timeout_s), min(keys.request_timeout_s, 1.0)))
