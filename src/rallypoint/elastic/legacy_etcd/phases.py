"""One node's steps through the older etcd protocol, under PyTorch's names: setup, joinable, frozen and final.

Each step reads the state, does the one thing that this node has to do, and waits until the state changes.  So after any failure
(a restart of etcd, an election, a cleared history) the next look goes on from what is there.  A step that is called by itself may
take as long as a rendezvous; a phase and its steps share that time.  Results and errors about keys are python-etcd's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from rallypoint.backends.etcd_v2_client import python_etcd
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.elastic.legacy_etcd.lease import KeyLease
from rallypoint.elastic.legacy_etcd.protocol import (
    FINAL,
    FROZEN,
    JOINABLE,
    Edit,
    EtcdRendezvousRetryableFailure,
    EtcdRendezvousRetryImmediately,
    Found,
    State,
    VersionRank,
)
from rallypoint.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, Keys, step_back
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.waiting import Deadline

OURS = "rallypoint"
"""The value of our keep-alive keys.  PyTorch's are empty, and its nodes do not read the value."""

_SEEN_S = 1.0
"""How long PyTorch's nodes get to see that a node waits before a broken world is deleted: they learn it no other way."""
_BACK_S = 1.5
"""How much longer a last call lasts where PyTorch's nodes take part.  They sleep for a second after a world was deleted, while ours
come back at once: a shorter last call would be over before they look, each time anew.  Theirs is a second longer than it says."""
_ONE_NODE_S = 0.004
_LONGEST_PAUSE_S = 0.25
_LOOK_S = 10.0


Step = Callable[[Found, Deadline], Found | None]
"""What a node does in a state; returns the state in which the step is done, or None to look again."""


class EtcdPhases:
    """One node's steps through a run whose keys are under `<prefix>/run_<run_id>`."""

    def __init__(
        self,
        client: Any,
        prefix: str,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
    ) -> None:
        # It brings torch, where that is installed: now, and not between a rendezvous and its workers.
        from rallypoint.elastic.etcd_store import EtcdStore

        self._make_store = EtcdStore
        self.client, self.run_id = client, run_id
        self._min, self._max = num_min_workers, num_max_workers
        self._timeout_s, self._last_call_s = timeout, last_call_timeout
        self._keys = Keys.of(client)
        folder = prefix.strip("/")
        self._root = f"/{folder}/run_{run_id}" if folder else f"/run_{run_id}"
        self._active, self._counter = self.get_path("rdzv/active_version"), self.get_path("rdzv/version_counter")
        self._seat: VersionRank | None = None
        self._lease: KeyLease | None = None
        self._leases: list[KeyLease] = []
        self._mixed = False
        # Of the phase that is under way:
        self._phase_term: Deadline | None = None
        self._known: Found | None = None
        self._refresh_at = self._announced_at = 0.0
        self._conflicts = 0
        with self._asking() as term:
            self._prepare(term)
        self._run_lease = KeyLease(
            self._keys, self._root, protocol.RUN_TTL_S, directory=True, revive=self._prepare_again
        )

    def init_phase(self) -> tuple[str, int, int]:
        """Begin a version or join the one that there is; its version, this node's rank, and the size.

        Where neither can be done now, waits until something has changed, and raises one of the two failures.
        """
        with self._one_phase():
            found = self._repeat(lambda found, term: found if found.state else self._create(term))
            match found.state["status"]:
                case protocol.CLOSED:
                    raise RendezvousClosedError(f"run {self.run_id!r} is closed: nobody can join it any more")
                case protocol.JOINABLE:
                    return self.join_phase(found.state["version"])
                case protocol.FINAL:
                    self.handle_existing_rendezvous(found.state["version"])
                    raise EtcdRendezvousRetryImmediately(f"{self._said(found)}: that is over")
                case status:
                    self._repeat(lambda now, term: now if now.text != found.text else self._wait(now, _LOOK_S, term))
                    raise EtcdRendezvousRetryableFailure(f"run {self.run_id!r} was {status}, and has changed")

    def join_phase(self, expected_version: str) -> tuple[str, int, int]:
        """Join a version, wait until its members are settled, and confirm; version, rank and size."""
        with self._one_phase():
            active, rank = self.join_rendezvous(expected_version)
            if rank == self._min - 1 and protocol.read(active.value)["status"] == JOINABLE:
                # PyTorch's deadlines are times of the wall clock.
                self.handle_join_last_call(expected_version, time.time() + self._last_call_s)  # noqa: TID251
            self.wait_for_peers(expected_version)
            return self.confirm_phase(expected_version, rank)

    def confirm_phase(self, expected_version: str, this_rank: int) -> tuple[str, int, int]:
        """Confirm that this node is there, and wait for the others to do so; version, rank and size."""
        with self._one_phase():
            self.confirm_membership(expected_version, this_rank)
            state = protocol.read(self.wait_for_final(expected_version).value)
            return state["version"], this_rank, len(state["participants"])

    def handle_existing_rendezvous(self, expected_version: str) -> None:
        """Say that this node waits for the next version, and wait until the present one is over."""
        with self._one_phase():
            self.announce_self_waiting(expected_version)
            self.wait_for_rendezvous_to_free(expected_version)

    def try_create_rendezvous(self) -> Any:
        """Begin a version, and return its state; EtcdAlreadyExist where there is a state."""
        with self._one_phase() as term:
            created = self._create(term)
        if created is None:
            raise python_etcd().EtcdAlreadyExist(f"run {self.run_id!r} has a state already")
        return self._result(created, "compareAndSwap")

    def join_rendezvous(self, expected_version: str) -> tuple[Any, int]:
        """Take a place in a version that can be joined; the state then, and this node's rank."""

        def step(found: Found, term: Deadline) -> Found | None:
            if found.state.get("status") != JOINABLE:
                raise EtcdRendezvousRetryableFailure(f"{self._said(found)}: it cannot be joined now")
            if found.state["version"] != expected_version:
                raise EtcdRendezvousRetryImmediately(f"{self._said(found)}: it is not version {expected_version} now")
            if len(found.state["participants"]) >= self._max:
                return self._wait(found, protocol.JOINABLE_TTL_S, term)
            return self._edit(found, protocol.joined(found.state, self._min, self._max), term)

        joined = self._repeat(step)
        self._refresh_at = time.monotonic() + protocol.JOINABLE_TTL_S / 2
        return self._result(joined, "compareAndSwap"), joined.state["participants"][-1]

    def handle_join_last_call(self, expected_version: str, deadline: float) -> None:
        """Keep a version open for more nodes until the deadline, a time of `time.time()`; then settle its members."""
        last_call_s = max(deadline - time.time(), 0.0)  # noqa: TID251  # PyTorch's deadlines are such
        called_at = time.monotonic() + last_call_s

        def step(found: Found, term: Deadline) -> Found | None:
            if found.is_at(FROZEN, expected_version):
                return found
            self._require(found, JOINABLE, expected_version)
            now, ends_at = time.monotonic(), called_at + (_BACK_S if self._mixed else 0.0)
            if now >= ends_at:
                return self._edit(found, protocol.frozen(found.state), term)
            if now >= self._refresh_at:
                self._refresh_at = now + protocol.JOINABLE_TTL_S / 2
                self._known = self._edit(found, Edit(found.state, protocol.JOINABLE_TTL_S), term)
                return None
            return self._wait(found, min(ends_at, self._refresh_at) - now, term)

        self._repeat(step)

    def wait_for_peers(self, expected_version: str) -> Any:
        """Wait until the members of a version are settled; the state then."""
        return self._wait_from(JOINABLE, FROZEN, expected_version)

    def confirm_membership(self, expected_version: str, this_rank: int) -> Any:
        """Confirm that this node is there, and keep its key alive from now on; the state then."""
        seat = VersionRank(expected_version, this_rank)
        key = self._keep_alive(seat)

        def step(found: Found, term: Deadline) -> Found | None:
            if key in found.state.get("keep_alives", ()):
                return found
            if not found.is_at(FROZEN, expected_version):
                raise EtcdRendezvousRetryImmediately(
                    f"{self._said(found)}: version {expected_version} cannot be confirmed now"
                )
            if self._lease is None or self._seat != seat:
                if self._lease is not None:
                    self._lease.stop()
                self._seat = seat
                self._keys.write(key, OURS, term, ttl_s=protocol.KEEP_ALIVE_TTL_S)
                self._lease = KeyLease(self._keys, key, protocol.KEEP_ALIVE_TTL_S, revive=self._revive)
            return self._edit(found, protocol.confirmed(found.state, key), term)

        return self._result(self._repeat(step), "compareAndSwap")

    def wait_for_final(self, expected_version: str) -> Any:
        """Wait until all members of a version have confirmed; the state then."""
        return self._wait_from(FROZEN, FINAL, expected_version)

    def announce_self_waiting(self, expected_version: str) -> Any:
        """Say that one more node waits for the version after this one; the state then."""

        def step(found: Found, term: Deadline) -> Found | None:
            if not found.is_at(FINAL, expected_version):
                raise EtcdRendezvousRetryImmediately(f"{self._said(found)}: version {expected_version} is over")
            return self._edit(found, protocol.announced(found.state), term)

        announced = self._repeat(step)
        self._announced_at = time.monotonic()
        return self._result(announced, "compareAndSwap")

    def wait_for_rendezvous_to_free(self, expected_version: str) -> None:
        """Wait until a final version is over; where one of its members is gone, delete its state."""

        def step(found: Found, term: Deadline) -> Found | None:
            if not found.is_at(FINAL, expected_version):
                return found
            broken, has_torch, at = self._missing(found.state, term)
            unseen_s = self._announced_at + _SEEN_S - time.monotonic()
            if not broken:
                places = [(self._active, False), (self._directory(expected_version), True)]
                self._pause(found.state)
                wait_for_event(self._keys, places, min(at, found.at), min(term.left_s(), protocol.KEEP_ALIVE_TTL_S))
            elif has_torch and unseen_s > 0:
                wait_for_event(self._keys, [(self._active, False)], found.at, min(unseen_s, term.left_s()))
            else:
                self._keys.delete(self._active, term, before=found.text)
            return None

        self._repeat(step)

    def get_rdzv_state(self) -> tuple[Any, State]:
        """The state as etcd has it, and as it reads; EtcdKeyNotFound where there is none."""
        with self._one_phase() as term:
            return self._shown(self._look(term))

    def try_wait_for_state_change(self, etcd_index: int, timeout: float | None = None) -> tuple[Any, State]:
        """Wait for a change at this index or after it, or for so long; the state then, as `get_rdzv_state` gives it."""
        waiting = Deadline.of(timedelta.max if timeout is None else timedelta(seconds=timeout))

        def step(found: Found, term: Deadline) -> Found | None:
            if not found.state or found.modified >= etcd_index or not waiting.left_s():
                return found
            # Nothing has happened until `found.at`, and the history may not reach back further.
            since, limit_s = max(etcd_index - 1, found.at), min(waiting.left_s(), term.left_s())
            wait_for_event(self._keys, [(self._active, False)], since, limit_s)
            return None

        return self._shown(self._repeat(step))

    def get_path(self, path: str) -> str:
        """The full path of something under the run's own directory."""
        return f"{self._root}/{path.lstrip('/')}"

    @contextmanager
    def _asking(self, term: Deadline | None = None) -> Iterator[Deadline]:
        """Where etcd is asked: what it refuses becomes a RendezvousConnectionError."""
        try:
            yield term or Deadline.after(self._keys.request_timeout_s)
        except StoreError as exc:
            raise RendezvousConnectionError(f"the keys of run {self.run_id!r} cannot be used: {exc}") from exc

    @contextmanager
    def _one_phase(self) -> Iterator[Deadline]:
        """The time of the phase that is under way, or that begins here."""
        outer = self._phase_term
        self._phase_term = term = outer or Deadline.after(self._timeout_s)
        if outer is None:
            self._known, self._conflicts = None, 0
        try:
            with self._asking(term):
                yield term
        finally:
            self._phase_term = outer

    def _repeat(self, step: Step) -> Found:
        """Look at the state and take a step until it is done; waits for an etcd that does not answer."""
        with self._one_phase() as term:
            while True:
                try:
                    found, self._known = self._known or self._look(term), None
                    if term.left_s() <= 0:
                        raise self._too_late(protocol.described(found.state, self._min, self._max))
                    done = step(found, term)
                except EtcdAwayError as exc:
                    if term.left_s() <= 0:
                        raise self._too_late(str(exc)) from exc
                    continue
                if done is not None:
                    self._known = done
                    return done

    def _wait_from(self, before: str, after: str, expected_version: str) -> Any:
        """Wait until a version has come from one status to the next."""

        def step(found: Found, term: Deadline) -> Found | None:
            if found.is_at(after, expected_version):
                return found
            self._require(found, before, expected_version)
            return self._wait(found, protocol.FROZEN_TTL_S, term)

        return self._result(self._repeat(step))

    def _require(self, found: Found, status: str, expected_version: str) -> None:
        if not found.is_at(status, expected_version):
            raise EtcdRendezvousRetryableFailure(
                f"{self._said(found)}: version {expected_version} is not {status} any more"
            )

    def _look(self, term: Deadline) -> Found:
        """The state as it is now.  It is read even when the time is over, and then quickly."""
        longest_s = self._keys.request_timeout_s
        answer = self._keys.read(self._active, Deadline.after(max(min(term.left_s(), longest_s), min(longest_s, 1.0))))
        if answer.node is None:
            return Found({}, "", answer.at)
        self._mixed = self._mixed or protocol.is_mixed(answer.node.value)
        return Found(protocol.read(answer.node.value), answer.node.value, answer.at, answer.node.modified)

    def _edit(self, found: Found, edit: Edit, term: Deadline) -> Found | None:
        """Change the state, if it is still as it was found; what it is then."""
        text, started = protocol.written(edit.state, mixed=self._mixed), time.monotonic()
        swapped = self._keys.swap(self._active, text, term, before=found.text or None, ttl_s=edit.ttl_s)
        if swapped.done:
            self._conflicts = 0
            return Found(edit.state, text, swapped.modified, swapped.modified)
        self._conflicts += 1
        step_back(self._conflicts, time.monotonic() - started, term)
        return None

    def _wait(self, found: Found, limit_s: float, term: Deadline) -> Found | None:
        """Wait until the state has changed, or for so long; None, for the step is not done."""
        if self._pause(found.state):
            now = self._look(term)
            if now.text != found.text:
                self._known = now
                return None
        wait_for_event(self._keys, [(self._active, False)], found.at, min(limit_s, term.left_s()))
        return None

    def _pause(self, state: State) -> bool:
        """Among many nodes the state changes all the time: look seldom while many are missing, often at the end.

        Returns whether the pause was long enough for a change.
        """
        here = len(state.get("participants", ()))
        missing = here - len(state["keep_alives"]) if "keep_alives" in state else self._max - here
        pause_s = min(max(missing, 0) * _ONE_NODE_S, 2 * here * _ONE_NODE_S, _LONGEST_PAUSE_S)
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        return pause_s > _ONE_NODE_S

    def _create(self, term: Deadline) -> Found | None:
        """Begin a version, and return its state; None where another node begins one, or has."""
        self._prepare(term)
        setup = self._edit(Found({}, "", 0), protocol.set_up(), term)
        if setup is None:
            return None
        while True:
            node = self._keys.read(self._counter, term).node
            number = int(node.value) if node is not None and node.value.strip().isdigit() else 0
            before = None if node is None else node.value
            if self._keys.swap(self._counter, str(number + 1), term, before=before).done:
                break
        self._keys.make_directory(self._directory(str(number + 1)), term)
        return self._edit(setup, protocol.opened(str(number + 1)), term)

    def _prepare(self, term: Deadline) -> None:
        """Make the directories and the counter that a run needs, where they are missing."""
        self._keys.make_directory(self._root, term, ttl_s=protocol.RUN_TTL_S)
        self._keys.make_directory(self.get_path("rdzv"), term)
        self._keys.swap(self._counter, "0", term)

    def _prepare_again(self) -> None:
        """The run's directory expired while etcd could not be reached."""
        self._prepare(self._brief())

    def _missing(self, state: State, term: Deadline) -> tuple[bool, bool, int]:
        """Whether a keep-alive key is gone, whether one of PyTorch's is there, and etcd's index at that moment."""
        answer = self._keys.read(self._directory(state["version"]), term)
        there = {node.key: node.value for node in (answer.node.nodes if answer.node is not None else ())}
        keys = [str(key) for key in state["keep_alives"]]
        return any(key not in there for key in keys), any(there.get(key, OURS) != OURS for key in keys), answer.at

    def _revive(self) -> None:
        """The keep-alive key expired while etcd could not be reached; where the world still stands, it comes back."""
        seat, term = self._seat, self._brief()
        if seat is not None and self._look(term).state.get("version") == seat.version:
            self._keys.write(self._keep_alive(seat), OURS, term, ttl_s=protocol.KEEP_ALIVE_TTL_S)

    def _give_up_seat(self) -> None:
        """Give up the place in the last world: where all its members are ours, at once, else by letting the key expire."""
        lease, self._lease, seat, self._seat = self._lease, None, self._seat, None
        if lease is None or seat is None:
            return
        lease.stop()
        term = self._brief()
        with suppress(StoreError):  # then it expires
            node = self._keys.read(self._directory(seat.version), term).node
            members = [child for child in (node.nodes if node is not None else ()) if "/rank_" in child.key]
            if all(child.value == OURS for child in members):
                self._keys.delete(self._keep_alive(seat), term)

    def _brief(self) -> Deadline:
        return Deadline.after(min(5.0, self._keys.request_timeout_s))

    def _directory(self, version: str) -> str:
        return self.get_path(f"rdzv/v_{version}")

    def _keep_alive(self, seat: VersionRank) -> str:
        return f"{self._directory(seat.version)}/rank_{seat.rank}"

    def _said(self, found: Found) -> str:
        return f"run {self.run_id!r}: {protocol.described(found.state, self._min, self._max)}"

    def _too_late(self, why: str) -> RendezvousTimeoutError:
        return RendezvousTimeoutError(f"run {self.run_id!r} was not joined within {self._timeout_s:g} s: {why}")

    def _shown(self, found: Found) -> tuple[Any, State]:
        if not found.state:
            raise python_etcd().EtcdKeyNotFound(f"run {self.run_id!r} has no state")
        return self._result(found), found.state

    def _result(self, found: Found, action: str = "get") -> Any:
        """The state as python-etcd shows a key."""
        node = {"key": self._active, "value": found.text, "modifiedIndex": found.modified}
        result = python_etcd().EtcdResult(action, node)
        result.etcd_index = found.at
        return result
