"""A virtual register: a real one in memory, reached over a path that delays, loses, repeats and lies.

A call takes time to get there and back.  A write that has left its process is applied even if that process is dead by
then; an answer may be lost; a read may show what was there a moment ago.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rallypoint.location.actions import ReadRecord, WriteRecord
from rallypoint.location.register import Entry
from rallypoint.record import Record, decode
from simulation.memory_register import MemoryRegister
from simulation.virtual_time import VirtualTime

CALL_S = 3.0
"""How long a caller waits for an answer."""
REMEMBERED_S = 1.5
"""How old what a stale read shows may be."""


read_record = functools.lru_cache(maxsize=64)(decode)
"""The invariants look at the record many times as often as it changes."""


@dataclass
class VirtualLease:
    """The lease of a claim, where the register has leases: the process that renews it, and when it ends."""

    keeper: str
    ends: float


@dataclass
class VirtualRegister:
    """One record, with everything that can go wrong on the way to it."""

    virtual_time: VirtualTime
    chance: random.Random
    has_leases: bool = False
    delay_s: tuple[float, float] = (0.001, 0.003)
    loss: float = 0.0
    stale: float = 0.0
    is_away: bool = False
    late_s: float = 0.0
    """How much later than usual writes arrive."""
    cut: set[str] = field(default_factory=set)
    """Processes that cannot reach the register."""
    medium: MemoryRegister = field(default_factory=MemoryRegister)
    leases: dict[str, VirtualLease] = field(default_factory=dict)
    history: list[tuple[float, Entry | None]] = field(default_factory=list)
    writes: int = 0

    def call(
        self,
        name: str,
        call: ReadRecord | WriteRecord,
        answer: Callable[[Entry | None], None],
        away: Callable[[str], None],
        committed: Callable[[Record | None, Record], None],
    ) -> None:
        """Make a call for a process: one of the two functions is called, once."""
        answered = False

        def give(entry: Entry | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(entry)

        def give_up() -> None:
            nonlocal answered
            if not answered:
                answered = True
                away("no answer")

        def reach() -> None:
            if self.is_away or name in self.cut:
                return
            entry = self._read(name) if isinstance(call, ReadRecord) else self._write(name, call, committed)
            if self.chance.random() >= self.loss:
                self.virtual_time.after(self._delay(), lambda: give(entry))

        late = self.late_s if isinstance(call, WriteRecord) else 0.0
        if not (self.is_away or name in self.cut) and self.chance.random() >= self.loss:
            self.virtual_time.after(self._delay() + late, reach)
        self.virtual_time.after(CALL_S, give_up)

    def record(self) -> Record | None:
        """What is there, for the invariants."""
        entry = self.medium.read()
        return None if entry is None else read_record(entry.value)

    def empty(self) -> None:
        """The register loses its memory."""
        self.medium.empty()
        self.leases.clear()
        self._remember()

    def touch(self) -> None:
        """Another client writes the same value again."""
        if self.medium.read() is not None:
            self.medium.touch()
            self._remember()

    def calm(self) -> None:
        """No more faults."""
        self.delay_s, self.loss, self.stale, self.is_away, self.late_s = (0.001, 0.003), 0.0, 0.0, False, 0.0
        self.cut.clear()

    @property
    def is_reliable(self) -> bool:
        """Whether nothing is wrong with it at the moment."""
        return not (self.loss or self.stale or self.is_away or self.late_s or self.cut) and self.delay_s[1] < 0.5

    def keep(self, claim_id: str, ttl_s: float) -> None:
        """A process renews the lease of its claim."""
        lease = self.leases.get(claim_id)
        if (
            lease is not None
            and lease.ends > self.virtual_time.time
            and not self.is_away
            and lease.keeper not in self.cut
        ):
            lease.ends = self.virtual_time.time + ttl_s

    def _delay(self) -> float:
        return self.chance.uniform(*self.delay_s)

    def _read(self, name: str) -> Entry | None:
        entry = self.medium.read()
        if self.stale and self.chance.random() < self.stale:
            since = self.virtual_time.time - self.chance.uniform(0.0, REMEMBERED_S)
            older = [shown for moment, shown in self.history if moment <= since]
            entry = older[-1] if older else entry
        return self._with_lease(entry)

    def _write(self, name: str, call: WriteRecord, committed: Callable[[Record | None, Record], None]) -> Entry | None:
        before = self.record()
        entry = self.medium.write(call.value, call.token)
        if entry is None:
            return None
        self.writes += 1
        claim, old = call.record.claim, before.claim if before is not None else None
        is_new = before is None or before.epoch != call.record.epoch
        if self.has_leases and claim is not None and is_new:
            self.leases[claim.id] = VirtualLease(name, self.virtual_time.time + claim.rest_s)
        if self.has_leases and claim is None and old is not None:
            self.leases.pop(old.id, None)
        self._remember()
        committed(before, call.record)
        return self._with_lease(entry)

    def _with_lease(self, entry: Entry | None) -> Entry | None:
        if entry is None or not self.has_leases:
            return entry
        claim = read_record(entry.value).claim
        lease = self.leases.get(claim.id) if claim is not None else None
        return Entry(entry.value, entry.token, lease is not None and lease.ends > self.virtual_time.time)

    def _remember(self) -> None:
        self.history.append((self.virtual_time.time, self.medium.read()))
        del self.history[:-64]

    def same(self, token: Any) -> bool:
        """Whether nothing was written since this token."""
        entry = self.medium.read()
        return bool(token == (None if entry is None else entry.token))
