"""Processes and servers without sockets and threads: a test answers the calls of the register when it wants to."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import msgspec

from rallypoint import protocol
from rallypoint.client.session import Session
from rallypoint.client.view import State, View
from rallypoint.core.model import Run
from rallypoint.location.actions import Action, Bind, ReadRecord, Serve, WriteRecord
from rallypoint.location.claiming import Claimant
from rallypoint.location.election import Election
from rallypoint.location.held_claim import HeldClaim
from rallypoint.location.register import Entry
from rallypoint.messages.types import Bounds, Node, RecordedWorld, Settings
from rallypoint.record import Claim, Record, decode, encode, restored
from rallypoint.server.clock import LOOK_S
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects, ToRecord
from rallypoint.tokens import token_of
from simulation.memory_register import MemoryRegister

T = TypeVar("T")
A = TypeVar("A", bound=Action)

BOUNDS = Bounds(2, 3)
SETTINGS = Settings()
REST_S = 5.0
WORLD = RecordedWorld(4, "s4", 3)
START = 100.0


def a_claim(claim_id: str = "c1", **fields: Any) -> Claim:
    """The claim of some process."""
    return Claim(claim_id, **{"addresses": ("10.0.0.1",), "port": 29400, "rest_s": REST_S, **fields})


def a_record(**fields: Any) -> Record:
    """A record of the incarnation `r1`, which has come to round 4 and is served under `c1`."""
    known: dict[str, Any] = {"epoch": 3, "round": 4, "write_id": "w", "bounds": BOUNDS, "claim": a_claim(), "met": 3}
    return Record(run_id="run", incarnation=fields.pop("incarnation", "r1"), **{**known, **fields})


class ScriptedRegister(MemoryRegister):
    """A register in memory that anybody may overwrite; `claim_lives` is what it says of leases."""

    claim_lives: bool | None = None

    def read(self) -> Entry | None:
        return self._leased(super().read())

    def write(self, value: bytes, token: int | None) -> Entry | None:
        return self._leased(super().write(value, token))

    def _leased(self, entry: Entry | None) -> Entry | None:
        return None if entry is None else msgspec.structs.replace(entry, claim_lives=self.claim_lives)

    def put(self, record: Record) -> None:
        """Another process writes this, whatever is there."""
        entry = super().read()
        assert super().write(encode(record), None if entry is None else entry.token) is not None

    @property
    def record(self) -> Record:
        """What is there."""
        entry = super().read()
        assert entry is not None, "the register is empty"
        return decode(entry.value)


class Process:
    """A process with an election.  At most one of its calls is open at a time; `told` is what it decided."""

    def __init__(
        self,
        register: ScriptedRegister,
        name: str = "a",
        *,
        is_host: bool | None = None,
        chance: float = 0.0,
        **candidate: Any,
    ) -> None:
        numbers = itertools.count(1)
        self.name = name
        self.register = register
        self.candidate = Claimant(**{"bounds": BOUNDS, "settings": SETTINGS, **candidate})
        self.election = Election(
            "run",
            lambda: self.candidate,
            mint=lambda: f"-{name}{next(numbers)}",
            chance=lambda: chance,
            rest_s=REST_S,
            is_host=is_host,
            secret=lambda: f"the secret of {name}",
        )
        self.now = START
        self.call: ReadRecord | WriteRecord | Bind | None = None
        self.told: list[Action] = []

    # What happens to it.

    def do(self, actions: list[Action]) -> None:
        """Note what the election decided."""
        for action in actions:
            if isinstance(action, (ReadRecord, WriteRecord, Bind)):
                assert self.call is None, f"{action} was asked for while {self.call} is open"
                self.call = action
            else:
                self.told.append(action)

    def look(self) -> None:
        """Its nodes have no server."""
        self.do(self.election.look(self.now))

    def welcomed(self, claim: Claim, epoch: int) -> None:
        """A server has taken its node in."""
        self.do(self.election.welcomed(claim.id, epoch, self.now))

    def failed(self, claim: Claim, *, refused: bool = False) -> None:
        """A connection to a server could not be made."""
        self.do(self.election.failed(claim.id, self.now, refused=refused))

    def changed(self) -> None:
        """The register may have changed."""
        self.do(self.election.changed(self.now))

    def tick(self) -> None:
        """It looks at its clock."""
        self.do(self.election.tick(self.now))

    def leave(self, run: Run | None = None) -> None:
        """Its last node leaves."""
        self.do(self.election.leave(run, self.now))

    def check(self) -> None:
        """It reads its own claim."""
        self.changed()
        self.answer(ReadRecord)

    # What the register does.

    def open_call(self, kind: type[T]) -> T:
        """The call that is open, which must be of this kind; it is open no longer."""
        call, self.call = self.call, None
        assert isinstance(call, kind), f"{call} is open"
        return call

    def answer(self, kind: type[Action] | None = None) -> None:
        """The open call is done and answered."""
        call, self.call = self.call, None
        assert call is not None, "no call is open"
        assert kind is None or isinstance(call, kind), f"{call} is open"
        if isinstance(call, Bind):
            self.do(self.election.bound((f"host-{self.name}",), 29400, self.now))
        elif isinstance(call, ReadRecord):
            self.do(self.election.read(self.register.read(), self.now))
        else:
            self.do(self.election.wrote(self.register.write(call.value, call.token), self.now))

    def lose_answer(self, *, applied: bool = False) -> None:
        """The open call is not answered in time; a write of it may have been applied."""
        call, self.call = self.call, None
        if applied:
            assert isinstance(call, WriteRecord), f"{call} is open"
            assert self.register.write(call.value, call.token) is not None
        self.do(self.election.away("timed out", self.now))

    def settle(self) -> None:
        """Every call is answered at once."""
        for _ in range(100):
            if self.call is None:
                return
            self.answer()
        raise AssertionError(f"it never ends: {self.call}")

    def wait(self, seconds: float) -> None:
        """Time passes, and every call is answered at once."""
        until = self.now + seconds
        self.settle()
        while (due := self.election.wake_at()) is not None and max(due, self.now + 0.001) <= until:
            self.now = max(due, self.now + 0.001)
            self.tick()
            self.settle()
        self.now = until

    # What came of it.

    def all(self, kind: type[A]) -> list[A]:
        """Every decision of this kind since the last `forget`."""
        return [action for action in self.told if isinstance(action, kind)]

    def only(self, kind: type[A]) -> A:
        """The one decision of this kind since the last `forget`."""
        (action,) = self.all(kind)
        return action

    def forget(self) -> None:
        """What was decided so far was looked at."""
        self.told.clear()

    @property
    def serving(self) -> HeldClaim:
        """Its claim, which it must have."""
        assert self.election.serving is not None, f"it does not serve: {self.told}"
        return self.election.serving


def elected(register: ScriptedRegister, name: str = "a", **candidate: Any) -> tuple[Process, Run]:
    """A process that has just been elected, and the run that it serves."""
    process = Process(register, name, **candidate)
    process.look()
    process.settle()
    run = process.only(Serve).run
    process.forget()
    return process, run


def state_of(session: Session) -> State:
    """Where a node stands by now; a function, because it changes behind the back of the type checker."""
    return session.view.state


def is_heard(session: Session) -> bool:
    """Whether what a node insists on was acknowledged by now."""
    return session.is_heard


class Server:
    """A coordinator that keeps records, and nodes' sessions, with bytes between them."""

    def __init__(
        self,
        *,
        bounds: Bounds = BOUNDS,
        settings: Settings = SETTINGS,
        incarnation: str = "r1",
        epoch: int = 1,
        claim_id: str = "c1",
        secret: str = "",
        pause_s: float = float("inf"),
    ) -> None:
        numbers = itertools.count(1)
        self._callers = itertools.count(1)
        self.now = START
        self.bounds = bounds
        self.settings = settings
        founded = a_record(
            incarnation=incarnation, epoch=epoch, bounds=bounds, settings=settings, claim=a_claim(claim_id)
        )
        self.coordinator = Coordinator(
            monotonic=self.now,
            mint=lambda: str(next(numbers)),
            only_run="run",
            keeps_records=True,
            restored=[(restored(founded, self.now, 0.0), epoch)],
            claim_id=claim_id,
            token=token_of(secret),
            pause_s=pause_s,
        )
        self.sessions: dict[int, Session] = {}
        self.callers: dict[str, int] = {}
        self.heard: dict[str, list[protocol.FromServer]] = {}
        self.records: list[ToRecord] = []
        """What was to be recorded, the last of them perhaps not yet."""
        self.epochs_heard: list[tuple[str, int]] = []
        self.deserted: list[Run] = []
        """The run, whenever most of its nodes had fallen silent."""

    # What nodes do.

    def session(self, name: str) -> Session:
        """A node that is to be connected."""
        node = Node(id=name, name=name)
        return Session("run", View(node=node, bounds=self.bounds, settings=self.settings))

    def connect(self, session: Session) -> None:
        """A node opens a connection."""
        caller = next(self._callers)
        name = session.view.node.id
        self.sessions[caller], self.callers[name] = session, caller
        self.heard[name] = []
        self.perform(self.coordinator.opened(caller, self.now))
        self.say(session, session.opening(self.now))

    def say(self, session: Session, data: bytes) -> None:
        """A node says something."""
        self.perform(self.coordinator.received(self.callers[session.view.node.id], data, self.now))

    def join(self, *names: str) -> list[Session]:
        """Nodes connect and ask for a place."""
        sessions = [self.session(name) for name in names]
        for session in sessions:
            self.connect(session)
            self.say(session, session.join(self.now, 600.0))
        return sessions

    def beat(self) -> None:
        """Every node that is connected says all that it knows."""
        for session in list(self.sessions.values()):
            self.say(session, session.beat(self.now))

    def hang_up(self, session: Session) -> None:
        """The connection of a node ends."""
        caller = self.callers[session.view.node.id]
        del self.sessions[caller]
        session.ended(self.now)
        self.perform(self.coordinator.ended(caller, self.now))

    # What the shell does.

    def perform(self, effects: Effects) -> None:
        """Send and hang up."""
        self.records += effects.records
        self.epochs_heard += effects.epochs_heard
        self.deserted += effects.deserted
        for caller, data in effects.sends:
            if caller in self.sessions:
                session = self.sessions[caller]
                frames = protocol.Reader().feed(data if data.startswith(protocol.MAGIC) else protocol.MAGIC + data)
                self.heard[session.view.node.id] += [protocol.read(body, protocol.FROM_SERVER) for body in frames]
                if reply := session.received(data, self.now):
                    self.say(session, reply)
        for caller, _ in effects.hang_ups:
            if caller in self.sessions:
                self.sessions.pop(caller).ended(self.now)

    def recorded(self) -> None:
        """The record is written."""
        self.perform(self.coordinator.recorded("run", self.now))

    def renewed(self, asked_at: float) -> None:
        """The claim stood when the register was asked."""
        self.perform(self.coordinator.renewed("run", asked_at, self.now))

    def tick(self) -> None:
        """It looks at its clock."""
        self.perform(self.coordinator.tick(self.now))

    def wait(self, seconds: float, *speaking: Session) -> None:
        """Time passes, and the server looks at its clock all the while; some nodes keep speaking."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + LOOK_S)
            for session in speaking:
                self.say(session, session.beat(self.now))
            self.tick()

    @property
    def run(self) -> Run:
        """What is recorded."""
        return self.coordinator.runs.known["run"].run

    def told(self, name: str, kind: type[T]) -> list[T]:
        """What a node was told of this kind, on its newest connection."""
        return [message for message in self.heard[name] if isinstance(message, kind)]
