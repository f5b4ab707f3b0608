"""Many schedules at once: play a range of seeds on all cores, add up what they did, and name the ones that failed."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from simulation.commands import FAULTS
from simulation.schedule import MIN_EVENTS, MIN_FAULT_KINDS, Played, play, significant

CHUNK = 50
FEW = 3
"""With fewer nodes than this, or one place only, little can happen."""


@dataclass
class Totals:
    """What a number of schedules did, added up."""

    schedules: int = 0
    nodes: Counter[int] = field(default_factory=Counter)
    events: Counter[int] = field(default_factory=Counter)
    kinds: Counter[int] = field(default_factory=Counter)
    rounds: Counter[int] = field(default_factory=Counter)
    event_kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    with_crash: int = 0
    with_record: int = 0
    elected: int = 0
    with_rivals: int = 0
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, played: Played) -> None:
        """Count one schedule."""
        faults = [kind for kind, count in played.faults.items() if count]
        self.schedules += 1
        self.nodes[played.nodes] += 1
        if played.nodes >= FEW and played.setup.bounds.max > 1:
            self.events[significant(played.events)] += 1
        self.kinds[len(faults)] += 1
        self.rounds[played.rounds] += 1
        self.event_kinds.update(played.events)
        self.faults.update(faults)
        self.with_crash += "crash" in faults
        self.with_record += played.setup.durable and not played.setup.elected
        self.elected += played.setup.elected
        self.with_rivals += "rivals" in faults
        if played.failure:
            self.failures[seed] = played.failure

    def merge(self, other: Totals) -> None:
        """Add what other totals counted."""
        self.schedules += other.schedules
        self.with_crash += other.with_crash
        self.with_record += other.with_record
        self.elected += other.elected
        self.with_rivals += other.with_rivals
        self.failures.update(other.failures)
        for name in ("nodes", "events", "kinds", "rounds", "event_kinds", "faults"):
            getattr(self, name).update(getattr(other, name))

    def shortcomings(self) -> Iterator[str]:
        """What a hundred schedules or more must show, and did not."""
        if self.schedules < 100:
            return
        if min(self.nodes) != 1 or max(self.nodes) != 12:
            yield f"schedules have 1 to 12 nodes, not {min(self.nodes)} to {max(self.nodes)}"
        if min(self.events) < MIN_EVENTS:
            yield f"a schedule of {FEW} nodes or more has at least {MIN_EVENTS} events, not {min(self.events)}"
        if min(self.kinds) < MIN_FAULT_KINDS:
            yield f"a schedule has at least {MIN_FAULT_KINDS} kinds of fault, not {min(self.kinds)}"
        fixed = self.schedules - self.elected
        if self.with_crash * 3 < fixed:
            yield f"a fixed server crashes in a third of its schedules, not in {self.with_crash} of {fixed}"
        if self.elected * 2 < self.schedules - 1:
            yield f"half of the schedules elect their server, not {self.elected} of {self.schedules}"
        if self.with_rivals * 3 < self.elected:
            yield f"two servers are alive at once in a third of those, not in {self.with_rivals} of {self.elected}"

    def lines(self) -> Iterator[str]:
        """The histogram, in words and bars."""
        fixed = self.schedules - self.elected
        yield f"{self.schedules} schedules: {fixed} with a fixed server, which crashes in {self.with_crash} of them and has a"
        yield f"record on disk in {self.with_record}; {self.elected} elect their server, two of which are alive at once in"
        yield f"{self.with_rivals} of them"
        yield from _histogram("nodes", self.nodes, 1)
        yield from _histogram("events, heartbeats not counted", self.events, 30)
        yield from _histogram("kinds of fault", self.kinds, 1)
        yield from _histogram("rounds sealed", self.rounds, 4)
        yield ""
        yield "schedules in which this happened:"
        for kind, count in self.faults.most_common():
            yield f"  {FAULTS[kind]:<24}{count:8d}"
        yield ""
        yield "events: " + ", ".join(f"{count} {kind}" for kind, count in self.event_kinds.most_common())


def run_seeds(seeds: range, jobs: int = 0, *, stop_at_first: bool = False) -> Totals:
    """Play every seed of a range."""
    total = Totals()
    jobs = jobs or os.cpu_count() or 1
    at_a_time = 1 if stop_at_first and jobs == 1 else CHUNK
    chunks = [seeds[i : i + at_a_time] for i in range(0, len(seeds), at_a_time)]
    if jobs == 1:
        for totals in map(_play_chunk, chunks):
            total.merge(totals)
            if stop_at_first and total.failures:
                break
        return total
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(_play_chunk, chunk) for chunk in chunks]
        for future in futures:
            if future.cancelled():
                continue
            total.merge(future.result())
            if stop_at_first and total.failures:
                for other in futures:
                    other.cancel()
    return total


def _play_chunk(seeds: range) -> Totals:
    gc.set_threshold(100_000)  # A cluster is one large cycle, and is free only when its schedule is over.
    totals = Totals()
    for seed in seeds:
        totals.add(seed, play(seed))
    return totals


def _histogram(title: str, counts: Counter[int], width: int) -> Iterator[str]:
    yield ""
    yield f"{title}: {min(counts, default=0)} to {max(counts, default=0)}"
    buckets: Counter[int] = Counter()
    for value, count in counts.items():
        buckets[value // width * width] += count
    most = max(chain(buckets.values(), (1,)))
    for low in sorted(buckets):
        label = str(low) if width == 1 else f"{low} to {low + width - 1}"
        yield f"  {label:<12}{buckets[low]:8d} {'█' * round(40 * buckets[low] / most)}"
