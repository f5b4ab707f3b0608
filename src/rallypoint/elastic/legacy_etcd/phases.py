"""The steps of the older etcd protocol one by one, under PyTorch's names, for programs that take them themselves.

They are the steps of `Barrier`, which takes them in one go and asks etcd less often.  A step that is called by itself may
take as long as a rendezvous; a phase and the steps in it share that time.  Results and errors about keys are python-etcd's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from rallypoint.backends.etcd_v2_client import python_etcd
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.elastic.legacy_etcd.barrier import Barrier, Found, Seat
from rallypoint.elastic.legacy_etcd.lease import Lease
from rallypoint.elastic.legacy_etcd.protocol import FINAL, FROZEN, JOINABLE, State
from rallypoint.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdAwayError, Keys
from rallypoint.stores.etcd_v2.watch import wait_for_event
from rallypoint.waiting import Deadline

T = TypeVar("T")


class EtcdRendezvousRetryableFailure(Exception):  # noqa: N818  # the name is PyTorch's
    """The rendezvous did not come about, and may after a while: go through the phases again."""


class EtcdRendezvousRetryImmediately(Exception):  # noqa: N818  # the name is PyTorch's
    """The rendezvous did not come about, and may at once: go through the phases again."""


class EtcdPhases:
    """One node's steps through a run whose keys are under `<prefix>/run_<run_id>`."""

    def __init__(self, keys: Keys, barrier: Barrier, root: str, run_id: str, min_nodes: int, timeout_s: float) -> None:
        self.run_id = run_id
        self._keys, self._barrier, self._root = keys, barrier, root
        self._min, self._timeout_s = min_nodes, timeout_s
        self._leases: list[Lease] = []
        self._phase_term: Deadline | None = None

    # Phases ---------------------------------------------------------------------------------------------------------

    def init_phase(self) -> tuple[str, int, int]:
        """Begin a version or join the one that there is; its version, this node's rank, and the size.

        Where neither can be done now, waits until something has changed, and raises one of the two failures.
        """
        with self._one_phase():
            try:
                active = self.try_create_rendezvous()
                state = protocol.read(active.value)
            except python_etcd().EtcdAlreadyExist:
                active, state = self.get_rdzv_state()
            match state["status"]:
                case protocol.CLOSED:
                    raise RendezvousClosedError(f"run {self.run_id!r} is closed: nobody can join it any more")
                case protocol.JOINABLE:
                    return self.join_phase(state["version"])
                case protocol.FINAL:
                    self.handle_existing_rendezvous(state["version"])
                    raise EtcdRendezvousRetryImmediately(f"version {state['version']} of run {self.run_id!r} is over")
                case status:
                    self.try_wait_for_state_change(active.etcd_index + 1)
                    raise EtcdRendezvousRetryableFailure(f"run {self.run_id!r} was {status}, and has changed")

    def join_phase(self, expected_version: str) -> tuple[str, int, int]:
        """Join a version, wait until its members are settled, and confirm; version, rank and size."""
        with self._one_phase():
            active, rank = self.join_rendezvous(expected_version)
            if rank == self._min - 1 and protocol.read(active.value)["status"] == JOINABLE:
                # PyTorch's deadlines are times of the wall clock.
                self.handle_join_last_call(expected_version, time.time() + self._barrier.last_call_s)  # noqa: TID251
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

    # Steps ----------------------------------------------------------------------------------------------------------

    def try_create_rendezvous(self) -> Any:
        """Begin a version, and return its state; EtcdAlreadyExist where there is a state."""
        with self._one_phase() as term:
            try:
                created = self._barrier.create(term)
            except StoreError as exc:
                raise away(self.run_id, exc) from exc
        if created is None:
            raise python_etcd().EtcdAlreadyExist(f"run {self.run_id!r} has a state already")
        return self._result(created, "compareAndSwap")

    def join_rendezvous(self, expected_version: str) -> tuple[Any, int]:
        """Take a place in a version that can be joined; the state then, and this node's rank."""

        def step(found: Found, term: Deadline) -> tuple[Any, int] | None:
            status, version = _of(found)
            if status != JOINABLE:
                raise EtcdRendezvousRetryableFailure(f"{self._said(found)}: it cannot be joined now")
            if version != expected_version:
                raise EtcdRendezvousRetryImmediately(f"{self._said(found)}: it is not version {expected_version} now")
            seat, joined = self._barrier.join(found, term)
            return None if seat is None or joined is None else (self._result(joined, "compareAndSwap"), seat.rank)

        return self._repeat(step)

    def handle_join_last_call(self, expected_version: str, deadline: float) -> None:
        """Keep a version open for more nodes until the deadline, a time of `time.time()`; then settle its members."""
        self._barrier.begin_last_call(max(deadline - time.time(), 0.0))  # noqa: TID251  # PyTorch's deadlines are such
        keeper = Seat(expected_version, self._min - 1)

        def step(found: Found, term: Deadline) -> bool | None:
            if _of(found) == (FROZEN, expected_version):
                return True
            self._require(found, JOINABLE, expected_version)
            self._barrier.hold(keeper, found, term)
            return None

        self._repeat(step)

    def wait_for_peers(self, expected_version: str) -> Any:
        """Wait until the members of a version are settled; the state then."""
        return self._wait_from(JOINABLE, FROZEN, expected_version)

    def confirm_membership(self, expected_version: str, this_rank: int) -> Any:
        """Confirm that this node is there, and keep its key alive from now on; the state then."""
        seat = Seat(expected_version, this_rank)

        def step(found: Found, term: Deadline) -> Any:
            if _of(found) != (FROZEN, expected_version):
                raise EtcdRendezvousRetryImmediately(
                    f"{self._said(found)}: version {expected_version} cannot be confirmed now"
                )
            assert found.state is not None
            if self._barrier.keep_alive(seat) in found.state["keep_alives"]:
                return self._result(found)
            confirmed = self._barrier.confirm(seat, found, term)
            return None if confirmed is None else self._result(confirmed, "compareAndSwap")

        return self._repeat(step)

    def wait_for_final(self, expected_version: str) -> Any:
        """Wait until all members of a version have confirmed; the state then."""
        return self._wait_from(FROZEN, FINAL, expected_version)

    def announce_self_waiting(self, expected_version: str) -> Any:
        """Say that one more node waits for the version after this one; the state then."""

        def step(found: Found, term: Deadline) -> Any:
            if _of(found) != (FINAL, expected_version):
                raise EtcdRendezvousRetryImmediately(f"{self._said(found)}: version {expected_version} is over")
            announced = self._barrier.announce(found, term)
            return None if announced is None else self._result(announced, "compareAndSwap")

        return self._repeat(step)

    def wait_for_rendezvous_to_free(self, expected_version: str) -> None:
        """Wait until a final version is over; where one of its members is gone, clear it away."""

        def step(found: Found, term: Deadline) -> bool | None:
            if _of(found) != (FINAL, expected_version):
                return True
            self._barrier.wait_until_free(found, term)
            return None

        self._repeat(step)

    # The state ------------------------------------------------------------------------------------------------------

    def get_rdzv_state(self) -> tuple[Any, State]:
        """The state as etcd has it, and as it reads; EtcdKeyNotFound where there is none."""
        with self._one_phase() as term:
            try:
                found = self._barrier.look(term)
            except StoreError as exc:
                raise away(self.run_id, exc) from exc
        if found.state is None:
            raise python_etcd().EtcdKeyNotFound(f"run {self.run_id!r} has no state")
        return self._result(found), found.state

    def try_wait_for_state_change(self, etcd_index: int, timeout: float | None = None) -> tuple[Any, State]:
        """Wait for a change at this index or after it, or for so long; the state then, as `get_rdzv_state` gives it."""
        waiting = Deadline.of(timedelta.max if timeout is None else timedelta(seconds=timeout))
        since = etcd_index - 1

        def step(found: Found, term: Deadline) -> bool | None:
            nonlocal since
            if found.state is None or found.modified >= etcd_index or waiting.left_s() <= 0:
                return True
            limit_s = min(waiting.left_s(), term.left_s())
            if wait_for_event(self._keys, [(self._active(), False)], since, limit_s) is not None:
                return True
            since = max(since, found.at)  # nothing has happened until then, and the history may not reach back
            return None

        with self._one_phase():
            self._repeat(step)
            return self.get_rdzv_state()

    # Keys -----------------------------------------------------------------------------------------------------------

    def get_path(self, path: str) -> str:
        """The full path of something under the run's own directory."""
        return f"{self._root}/{path.lstrip('/')}"

    def create_path_if_not_exists(self, full_path: str, ttl: int | None = None) -> None:
        """Make a directory, for good or for so many seconds, where nothing is."""
        try:
            self._keys.make_directory(full_path, self._patience(), ttl_s=ttl)
        except StoreError as exc:
            raise away(self.run_id, exc) from exc

    def setup_lease_renewal(self, full_path: str, ttl: int) -> threading.Event:
        """Keep a key or directory alive, until the event is set, the key is gone, or nobody holds this object."""
        try:
            node = self._keys.read(full_path, self._patience()).node
            is_directory = node is not None and node.is_directory
            alive = self._keys.prolong(full_path, ttl, self._patience(), directory=is_directory)
        except StoreError as exc:
            raise away(self.run_id, exc) from exc
        lease = Lease(self._keys, full_path, ttl, directory=is_directory)
        if not alive:
            lease.stop()
        self._leases = [*(held for held in self._leases if not held.stopped.is_set()), lease]
        return lease.stopped

    # Inside ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _one_phase(self) -> Iterator[Deadline]:
        """The time of the phase that is under way, or that begins here."""
        outer = self._phase_term
        self._phase_term = term = outer or Deadline.after(self._timeout_s)
        try:
            yield term
        finally:
            self._phase_term = outer

    def _repeat(self, step: Callable[[Found, Deadline], T | None]) -> T:
        """Look at the state and take a step, until one returns something; an etcd that is away is waited for."""
        with self._one_phase() as term:
            while True:
                try:
                    found = self._barrier.look(term)
                    if term.left_s() <= 0:
                        raise RendezvousTimeoutError(f"{self._said(found)} after {self._timeout_s:g} s")
                    done = step(found, term)
                except EtcdAwayError as exc:
                    if term.left_s() <= 0:
                        raise RendezvousTimeoutError(f"run {self.run_id!r} was not joined in time: {exc}") from exc
                    continue
                except StoreError as exc:
                    raise away(self.run_id, exc) from exc
                if done is not None:
                    return done

    def _wait_from(self, before: str, after: str, expected_version: str) -> Any:
        """Wait until a version has come from one status to the next."""

        def step(found: Found, term: Deadline) -> Any:
            if _of(found) == (after, expected_version):
                return self._result(found)
            self._require(found, before, expected_version)
            self._barrier.wait_for_change(found, protocol.FROZEN_TTL_S, term)
            return None

        return self._repeat(step)

    def _require(self, found: Found, status: str, expected_version: str) -> None:
        if _of(found) != (status, expected_version):
            raise EtcdRendezvousRetryableFailure(
                f"{self._said(found)}: version {expected_version} is not {status} any more"
            )

    def _said(self, found: Found) -> str:
        return f"run {self.run_id!r}: {protocol.described(found.state, self._min, self._min)}"

    def _active(self) -> str:
        return self.get_path("rdzv/active_version")

    def _result(self, found: Found, action: str = "get") -> Any:
        """The state as python-etcd shows a key."""
        result = python_etcd().EtcdResult(
            action, {"key": self._active(), "value": found.text, "modifiedIndex": found.modified}
        )
        result.etcd_index = found.at
        return result

    def _patience(self) -> Deadline:
        return Deadline.after(self._keys.request_timeout_s)


def away(run_id: str, exc: StoreError) -> RendezvousConnectionError:
    """What a step raises where etcd cannot be used."""
    return RendezvousConnectionError(f"the keys of run {run_id!r} cannot be used: {exc}")


def _of(found: Found) -> tuple[str, str]:
    """Status and version; both empty where there is no state."""
    state = found.state or {}
    return state.get("status", ""), state.get("version", "")
