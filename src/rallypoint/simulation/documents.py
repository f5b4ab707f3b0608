"""Seeded schedules for the document hosting: nodes come, die, stop and leave while its medium loses answers or is away.

`python -m rallypoint.simulation.documents A:B` plays a range of seeds, and one seed alone with all that happened.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec

from rallypoint.core import transition
from rallypoint.core.model import Bounds, Node, Reason, Role, Run, Settings
from rallypoint.core.node import State, View
from rallypoint.core.recovery import blank
from rallypoint.document import page as pages
from rallypoint.document.page import Page
from rallypoint.simulation.clockwork import Clockwork
from rallypoint.simulation.invariants import Invariants
from rallypoint.simulation.medium import Medium, Shelf
from rallypoint.simulation.node_invariants import BrokenInvariantError
from rallypoint.simulation.writer import Writer

if TYPE_CHECKING:
    from rallypoint.simulation.world import World

REST_S = 18.0
"""Longer than a closed run is remembered, a last call after that, and QUIET_S."""

QUIET_S = 3.0

SLOW_S = (0.05, 0.3)

# Shorter than in production, so that a minute of virtual time holds many rounds; the proportions are the same.
SETTINGS = Settings(
    last_call_s=1.0,
    regroup_s=4.0,
    closed_ttl_s=10.0,
    heartbeat_interval_s=1.0,
    heartbeat_timeout_s=3.0,
    outage_grace_s=20.0,
    crash_pause_s=0.2,
    crash_pause_limit_s=2.0,
)


class DocumentInvariants(Invariants):
    """What must be true of every virtual world, and what of a document besides."""

    def __init__(self, world: DocumentWorld) -> None:
        # A document has no authority that could restart; as far as the others look at a world, this is one.
        super().__init__(cast("World", world))
        self.documents = world
        self.page: Page | None = None

    def edited(self, page: Page, by: Writer) -> None:
        """Judge one edit that stands."""
        before, self.page = self.page, page
        if before is not None and before.nonce == page.nonce:
            self.require(page.epoch >= before.epoch, f"{by.name} took the document back from epoch {before.epoch}")
            self.require(page.folded >= before.folded, f"{by.name} forgot announcements after {before.folded}")
            self.require(page.clock >= before.clock, f"{by.name} set the document's clock back")
        # Clocks that run fast may be ahead by what they gained since the beginning.
        self.require(
            page.clock <= self.documents.time * 1.03 + 0.1, f"the document's clock says {page.clock:.1f}, too much"
        )
        run = before.run if before is not None else blank(self.documents.run_id, 0.0, 0.0, 0.0)
        for node_id in by.editor.life.losses(run, ""):
            self._given_up(node_id, by)
        self.authority_acted(run, page.run, None)

    def _given_up(self, node_id: str, by: Writer) -> None:
        """A node was given up: it must have been dead or silent, and nobody is silent who is well."""
        writer, now, timeout_s = self.documents.find(node_id), self.documents.time, SETTINGS.heartbeat_timeout_s
        if writer is None or writer.id != node_id or not writer.alive:
            return
        silent_s = now - writer.beat_at
        self.require(
            silent_s >= 0.95 * timeout_s,
            f"{by.name} gave {writer.name} up, which was heard {silent_s:.2f} s ago",
        )
        well_s = 0.0 if writer.stopped or writer.cut else now - max(writer.well_since, self.documents.well_since)
        self.require(
            well_s <= 2 * timeout_s,
            f"{by.name} gave {writer.name} up, which has been well for {well_s:.2f} s",
        )


class DocumentWorld:
    """One document, some nodes, and time.  Everything in it follows from its seed."""

    def __init__(self, seed: int, bounds: Bounds, *, beside: bool, rings: bool, unsaid: bool) -> None:
        self.bounds, self.settings = bounds, SETTINGS
        self.apart = False  # whether somebody had a store that the others do not have: then every beat is an edit
        self.beside, self.rings, self.unsaid = beside, rings, unsaid
        self.run_id = "run"
        self.durable = True
        self.chance = random.Random(seed)
        self.clockwork = Clockwork()
        self.medium = Medium(self._committed)
        self.medium.store.beats = self._beat
        self.agents: dict[str, Writer] = {}
        self.by_id: dict[str, Writer] = {}
        self.processes: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.log: list[str] = []
        self.well_since = 0.0
        self.invariants = DocumentInvariants(self)
        self._writer: Writer | None = None
        self._minted = 0

    @property
    def time(self) -> float:
        """The true time of this world, which nobody in it can see."""
        return self.clockwork.time

    @property
    def run(self) -> Run:
        """What the document says."""
        page = self.invariants.page
        return page.run if page is not None else blank(self.run_id, 0.0, 0.0, 0.0)

    def mint(self) -> str:
        """A text that was never used before."""
        self._minted += 1
        return f"{self._minted}"

    def identity(self, node: Node, life: int) -> Node:
        """A process's next identity after it was fenced."""
        base = node.id.partition("'")[0]
        return msgspec.structs.replace(node, id=f"{base}{chr(39) * life}")

    def find(self, node_id: str) -> Writer | None:
        """The process that has, or once had, this identity."""
        return self.by_id.get(node_id.partition("'")[0])

    def delay(self) -> float:
        """How long a call takes to reach the medium, or its answer to come back."""
        return self.chance.uniform(*self.medium.delay_s)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clockwork.run_until(self.time + seconds)

    # What the schedule does ---------------------------------------------------------------------------------------

    def start(self, name: str, *, role: Role, stop_s: float, timeout_s: float, rate: float, own_store: bool) -> None:
        """Start a process of a node."""
        self.processes[name] += 1
        node = Node(id=f"{name}.{self.processes[name]}", name=name, store=f"{name}:{self.processes[name]}", role=role)
        view = View(node=node, bounds=self.bounds, settings=self.settings)
        self.apart = self.apart or own_store
        store = (Shelf() if own_store else self.medium.store) if self.beside else None
        offset = self.chance.uniform(0, 1e6)
        writer = Writer(self, view, offset, rate, store=store, stop_s=stop_s, timeout_s=timeout_s)
        self.agents[name] = self.by_id[node.id] = writer
        writer.begin()

    def end_process(self, writer: Writer) -> None:
        """A node's process ends."""
        writer.alive = False
        self.note(writer.name, "exits")

    def come_back(self) -> None:
        """The medium is back."""
        self.well_since = self.time
        self.medium.come_back()

    # What is written down and checked -----------------------------------------------------------------------------

    @contextmanager
    def written_by(self, writer: Writer) -> Iterator[None]:
        """Whose call this is."""
        self._writer = writer
        try:
            yield
        finally:
            self._writer = None

    def _committed(self, data: bytes) -> None:
        assert self._writer is not None, "somebody wrote it"
        self.events["edit"] += 1
        known, page = self.invariants.page, pages.decode(data, self.run_id)
        for node_id, count in page.beats.items():
            if known is None or known.beats.get(node_id) != count:
                self._beat(node_id, str(count))
        if page.run.world is not None and (known is None or known.run.world != page.run.world):
            self.events["sealed"] += 1
        self.invariants.edited(page, self._writer)

    def _beat(self, node_id: str, sign: str) -> None:
        writer = self.find(node_id)
        if writer is not None and writer.id == node_id and not sign.startswith("evicted"):
            writer.beat_at = self.time

    def writer_changed(self, writer: Writer, before: View) -> None:
        """A node's view changed."""
        view = writer.view
        if view.state is not before.state or view.world is not before.world:
            place = view.world if view.state is State.HOLDS else None
            where = f" round {place.round} as rank {place.rank} of {place.size}" if place else ""
            self.note(writer.name, f"{view.state.value}{where} ({view.why})")
            self.events[view.state.name] += 1
        self.invariants.agent_changed(writer, before)  # type: ignore[arg-type]  # what is looked at, it has

    def note(self, who: str, what: str) -> None:
        """A line of the log."""
        self.log.append(f"{self.time:8.3f} {who}: {what}")

    def situation(self) -> str:
        """Where the run stands, in the words of the core."""
        clock = self.invariants.page.clock if self.invariants.page is not None else 0.0
        return transition.situation(self.run, clock)


@dataclass
class Played:
    """How a schedule went."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    failure: str = ""


def play(seed: int) -> Played:
    """Play one schedule to its end, and say whether an invariant broke."""
    chance = random.Random(f"documents/{seed}")
    nodes = chance.choice([2, 2, 3, 3, 4, 5])
    high = chance.randint(2, nodes)
    low = high if chance.random() < 0.25 else chance.randint(1, high // 2 + 1)
    beside = chance.random() < 0.6
    world = DocumentWorld(
        seed, Bounds(low, high), beside=beside, rings=chance.random() < 0.6, unsaid=chance.random() < 0.15
    )
    world.note("world", f"{nodes} nodes, {world.bounds}, beside={beside}, rings={world.rings}, unsaid={world.unsaid}")
    played = Played(seed)
    try:
        _play(world, nodes, chance)
        _mend(world)
        world.invariants.check_rest(QUIET_S)
    except BrokenInvariantError as exc:
        played.failure = str(exc)
    except AssertionError as exc:
        played.failure = f"at {world.time:.3f} s: assertion failed: {exc}"
    played.events, played.log = world.events, world.log
    return played


def _play(world: DocumentWorld, nodes: int, chance: random.Random) -> None:
    names = [f"n{number}" for number in range(nodes)]
    for name in chance.sample(names, chance.randint(min(world.bounds.min, nodes), nodes)):
        _start(world, name, chance)
        world.advance(chance.choice([0.0, 0.0, chance.uniform(0.0, 0.3)]))
    world.advance(chance.uniform(0.5, 3.0))
    for _ in range(chance.randint(5, 12)):
        _happen(world, names, chance)
        kind = chance.random()
        if kind < 0.5:
            world.advance(chance.uniform(0.001, 0.3))
        else:
            world.advance(chance.uniform(0.3, 2.0) if kind < 0.85 else chance.uniform(2.0, 7.0))


def _start(world: DocumentWorld, name: str, chance: random.Random) -> None:
    world.note("schedule", f"start {name}")
    world.start(
        name,
        role=Role.SPARE if chance.random() < 0.1 else Role.MEMBER,
        stop_s=chance.choice([0.05, 0.05, 0.5, 2.0]),
        timeout_s=chance.choice([5.0, 600.0, 600.0, 600.0]),
        rate=chance.choice([1.0, 1.0, 1.0, 0.98, 1.02]),
        own_store=chance.random() < 0.03 and world.medium.delay_s != SLOW_S,
    )


def _happen(world: DocumentWorld, names: list[str], chance: random.Random) -> None:
    """Something happens: to the medium, to a node, or by a node."""
    running = [writer for writer in world.agents.values() if writer.alive]
    idle = [name for name in names if name not in world.agents or not world.agents[name].alive]
    options: list[tuple[float, str, Callable[[], None]]] = [*_to_the_medium(world.medium, world, chance)]
    if idle:
        name = chance.choice(idle)
        options.append((6.0, "", lambda: _start(world, name, chance)))
    if running:
        options += _to_a_node(world, chance.choice(running))
    holders = [writer for writer in running if writer.view.state is State.HOLDS and not writer.stopped]
    if holders:
        options += _by_a_node(chance.choice(holders))
    _, what, action = chance.choices(options, [weight for weight, _, _ in options])[0]
    if what:
        world.note("schedule", what)
        world.events[what.split()[0]] += 1
    action()


def _to_the_medium(
    medium: Medium, world: DocumentWorld, chance: random.Random
) -> list[tuple[float, str, Callable[[], None]]]:
    if medium.is_away:
        return [(5.0, "back", world.come_back)]
    hangs, loss = chance.random() < 0.5, chance.choice([0.0, 0.05, 0.3])
    # Where every beat is an edit, a slow medium has no room for the beats of all: that is known, and said in the docs.
    delay_s = chance.choice(
        [(0.001, 0.002), (0.001, 0.05), SLOW_S if world.beside and not world.apart else (0.01, 0.06)]
    )

    def lose() -> None:
        medium.loss = loss

    def slow() -> None:
        medium.delay_s = delay_s

    return [
        (1.0, f"away {'hanging' if hangs else 'refusing'}", lambda: medium.go(hangs=hangs)),
        (1.0, f"loss {loss}", lose),
        (1.0, f"delay {delay_s}", slow),
    ]


def _to_a_node(world: DocumentWorld, writer: Writer) -> list[tuple[float, str, Callable[[], None]]]:
    def cut() -> None:
        writer.cut = True

    def heal() -> None:
        writer.cut, writer.well_since = False, world.time

    def resume() -> None:
        writer.well_since = world.time
        writer.resume()

    return [
        (2.5, f"kill {writer.name}", lambda: world.end_process(writer)),
        (3.0, f"resume {writer.name}", resume) if writer.stopped else (1.5, f"pause {writer.name}", writer.stop),
        (3.0, f"heal {writer.name}", heal) if writer.cut else (1.0, f"cut {writer.name}", cut),
    ]


def _by_a_node(writer: Writer) -> list[tuple[float, str, Callable[[], None]]]:
    return [
        (0.4, f"finish {writer.name}", lambda: writer.leave(Reason.FINISHED)),
        (0.7, f"withdraw {writer.name}", lambda: writer.leave(Reason.WITHDREW)),
        (0.4, f"give-up {writer.name}", lambda: writer.leave(Reason.GAVE_UP)),
        (2.0, f"fail {writer.name}", writer.fail_workers),
        (0.3, f"close {writer.name}", writer.close),
    ]


def _mend(world: DocumentWorld) -> None:
    """End all that is broken, and give the run time to come to rest."""
    world.note("schedule", "everything is mended")
    world.medium.loss, world.medium.delay_s = 0.0, (0.001, 0.002)
    if world.medium.is_away:
        world.come_back()
    for writer in world.agents.values():
        if writer.alive:
            writer.cut, writer.well_since = False, world.time
            writer.resume()
    world.advance(REST_S)


def main(arguments: list[str]) -> int:
    """Play seeds; the exit code is 1 where one of them failed."""
    first, colon, end = (arguments[0] if arguments else "0:1000").partition(":")
    if not colon:
        played = play(int(first))
        print("\n".join(played.log), played.failure or "every invariant held", sep="\n")
        return 1 if played.failure else 0
    total: Counter[str] = Counter()
    failures = 0
    for seed in range(int(first), int(end)):
        played = play(seed)
        total += played.events
        if played.failure:
            failures += 1
            print(f"seed {seed}: {played.failure}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in total.most_common()))
    print(f"{int(end) - int(first) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
