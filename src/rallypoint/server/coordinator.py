"""The server's end of the protocol, sans-IO: many runs, many connections, one core.

It converses with callers; the runs that they speak of are in `runs`.  Bytes and the ends of connections go in with the time; what is to be sent, hung up, written down and told comes out as
`Effects`.  The shell that brings sockets is `service`; the simulation brings virtual ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rallypoint import heartbeats, protocol
from rallypoint.core import authority as host
from rallypoint.core import codec
from rallypoint.core.clock import LOOK_S, AwakeClock, look
from rallypoint.core.events import Announced, CloseAsked, Joined, Left, Lost, Message, Standing
from rallypoint.core.model import Run
from rallypoint.core.ranks import POLICIES, RankPolicy
from rallypoint.errors import RendezvousError, RendezvousStateError
from rallypoint.report import node_to_evict
from rallypoint.server import queries
from rallypoint.server.limits import Limits
from rallypoint.server.runs import Runs, Turn

DEFAULTS = Limits()


@dataclass
class Happening:
    """Something worth recording: which run, why, the state before and after, who was given up, and who left."""

    run_id: str
    why: str
    before: Run
    after: Run
    losses: tuple[Lost, ...] = ()
    leave: Left | None = None


@dataclass
class Effects:
    """What the shell is to do, in this order: write the records, send, hang up; and what happened, to be told."""

    records: list[tuple[str, bytes]] = field(default_factory=list)
    sends: list[tuple[int, bytes]] = field(default_factory=list)
    hang_ups: list[tuple[int, str]] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do; after a mere heartbeat there is not."""
        return bool(self.sends or self.hang_ups or self.happenings or self.records)


@dataclass
class _Caller:
    """One connection: nobody until it has said hello."""

    opened: float
    reader: protocol.Reader
    hello: protocol.Hello | None = None
    frame: bytes = b""
    """The last announcement that needed no answer, as it came, and the run as it was then."""
    known: Run | None = None
    holds: bool = False
    answered: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        assert self.hello is not None, "only who said hello has a name"
        return self.hello.run_id, self.hello.node_id


class Coordinator:
    """Everything a server knows.

    `only_run` confines it to one run, as in a server that a node hosts for its own job (rule 16); `visitors` says
    whether it lists and administers runs for whoever connects without being a node.
    """

    def __init__(
        self,
        *,
        monotonic: float,
        mint: Callable[[], str],
        name: str = "rallypoint",
        only_run: str = "",
        visitors: bool = True,
        keeps_records: bool = False,
        records: Iterable[Run] = (),
        limits: Limits = DEFAULTS,
        hold_s: float = host.HOLD_S,
        policies: Mapping[str, RankPolicy] = POLICIES,
    ) -> None:
        self.name = name
        self.only_run = only_run
        self.visitors = visitors
        self.keeps_records = keeps_records
        self.limits = limits
        self.runs = Runs(monotonic, mint, hold_s, policies)
        self.messages: Counter[str] = Counter()
        self._clock = AwakeClock(monotonic)
        self._callers: dict[int, _Caller] = {}
        self._silent: dict[int, float] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._to_answer: list[int] = []
        for run in records:
            self.runs.restore(run, monotonic)

    # What the shell calls -----------------------------------------------------------------------------------------

    def opened(self, caller: int, monotonic: float) -> Effects:
        """Somebody connected."""
        now, effects = self._look(monotonic), Effects()
        self._callers[caller] = _Caller(now, protocol.Reader(self.limits.frame))
        self._silent[caller] = now
        if len(self._callers) > self.limits.connections:
            self._turn_away(caller, f"{self.limits.connections} connections are all that this server can hold", effects)
        elif len(self._silent) > self.limits.silent_connections:
            # The oldest of them: who has something to say has said it by now.
            oldest = next(iter(self._silent))
            self._turn_away(oldest, f"{len(self._silent)} connections have not said who they are: try again", effects)
        return effects

    def received(self, caller: int, data: bytes, monotonic: float) -> Effects:
        """Bytes arrived."""
        now, effects = self._look(monotonic), Effects()
        known = self._callers.get(caller)
        if known is None:
            return effects
        if known.frame == data and known.reader.is_between_frames and self._is_known(known):
            # What it said last, about a run that has not changed since: a heartbeat, and nothing to decide.
            self.messages["received"] += 1
            self._beat(caller, known, now)
            return effects
        try:
            for body in known.reader.feed(data):
                self.messages["received"] += 1
                self._take(caller, known, body, now, effects)
                if caller not in self._callers:
                    break
        except RendezvousStateError as exc:
            self._turn_away(caller, str(exc), effects, final=True)
        return effects

    def ended(self, caller: int, monotonic: float) -> Effects:
        """A connection is gone."""
        now, effects = self._look(monotonic), Effects()
        self._forget(caller, now, effects)
        return effects

    def tick(self, monotonic: float) -> Effects:
        """Time passed; due when `wake_at` says so."""
        now, effects = self._look(monotonic), Effects()
        self._answer_beats(effects)
        for turn in self.runs.tick(now):
            self._done(turn, effects)
        late = [c for c, since in self._silent.items() if now - since > self.limits.hello_s]
        for caller in late:
            self._turn_away(caller, f"nothing was said for {self.limits.hello_s:.0f} s", effects)
        return effects

    def knows(self, caller: int) -> bool:
        """Whether a connection is one that the server still listens to."""
        return caller in self._callers

    def wake_at(self, monotonic: float) -> float:
        """When `tick` is due, on the shell's own monotonic clock: often enough to know a stall from a pause.

        Never at this very moment: the two clocks differ by a rounding, and a shell would spin on it.
        """
        latest, due = monotonic + LOOK_S, self.runs.wake_at()
        if due is None:
            return latest
        return min(latest, max(due + self._clock.stalled_s, monotonic + 0.0005))

    # What callers say ---------------------------------------------------------------------------------------------

    def _take(self, caller: int, known: _Caller, body: bytes, now: float, effects: Effects) -> None:
        message = protocol.read(body, protocol.FROM_NODE)
        if isinstance(message, protocol.Hello):
            self._welcome(caller, known, message, effects)
        elif known.hello is None:
            self._turn_away(caller, "a connection opens with a hello", effects, final=True)
        elif isinstance(message, (Joined, Announced, Left, CloseAsked)):
            sent = len(effects.sends)
            self._node_said(caller, known, message, now, effects)
            if all(to != caller for to, _ in effects.sends[sent:]):
                # Whoever speaks is answered, so that it knows that it is heard.
                known.answered = now
                self._send(caller, _PONG, effects)
                authority = self.runs.known.get(known.key[0])
                known.frame, known.known = protocol.framed(body), authority.run if authority is not None else None
                known.holds = isinstance(message, Announced) and message.standing is Standing.HOLDS
        else:
            self._asked(caller, known, message, now, effects)

    def _is_known(self, known: _Caller) -> bool:
        authority = self.runs.known.get(known.key[0]) if known.hello is not None else None
        return authority is not None and authority.run is known.known

    def _welcome(self, caller: int, known: _Caller, hello: protocol.Hello, effects: Effects) -> None:
        refusal = self._refusal(known, hello)
        if refusal:
            self._turn_away(caller, refusal, effects, final=True)
            return
        known.hello = hello
        self._silent.pop(caller, None)
        if hello.node_id:
            other = self._lines.get(known.key)
            if other is not None and not self._replaces(other, hello):
                self._turn_away(caller, "the node has a newer connection", effects)
                return
            if other is not None:
                self._callers.pop(other, None)
                effects.hang_ups.append((other, "the node has a newer connection"))
            self._lines[known.key] = caller
        welcome = protocol.Welcome(protocol.VERSION, self.name, (protocol.STANDALONE,) if self.visitors else ())
        self._send(caller, protocol.MAGIC + protocol.frame(welcome), effects)

    def _replaces(self, other: int, hello: protocol.Hello) -> bool:
        """The newest connection of a node wins, in whatever order they arrive (rule 14)."""
        known = self._callers[other].hello
        return known is None or hello.connection > known.connection

    def _refusal(self, known: _Caller, hello: protocol.Hello) -> str:
        """Why a caller cannot be let in; empty if it can."""
        if known.hello is not None:
            return "hello is said once"
        if hello.protocol != protocol.VERSION:
            return (
                f"the node speaks version {hello.protocol} of the protocol and the server version {protocol.VERSION}: "
                f"run the same release of Rallypoint on both"
            )
        if bool(hello.run_id) != bool(hello.node_id):
            return "a node names its run and itself"
        if not hello.node_id and not self.visitors:
            return "this server is part of a job: it offers no listing and no administration"
        if self.only_run and hello.run_id and hello.run_id != self.only_run:
            return (
                f"this server is part of the job {self.only_run!r} and serves no other run; for {hello.run_id!r} start "
                f"`rallypoint serve`, or use another port"
            )
        runs = self.runs.known
        if hello.run_id and hello.run_id not in runs and len(runs) >= self.limits.runs:
            return f"the server has {len(runs)} runs, as many as it takes: try again when some have ended"
        run = runs.get(hello.run_id)
        if run is not None and len(run.life.signs) >= self.limits.nodes_a_run:
            return f"run {hello.run_id!r} has {len(run.life.signs)} nodes, as many as the server takes"
        return ""

    def _beat(self, caller: int, known: _Caller, now: float) -> None:
        run_id, node_id = known.key
        self.runs.beat(run_id, node_id, now)
        settings = self.runs.known[run_id].run.settings
        if heartbeats.must_answer(settings, now - known.answered, holds=known.holds):
            known.answered = now
            self._to_answer.append(caller)

    def _answer_beats(self, effects: Effects) -> None:
        """Many at a time, a few times a second: that costs half of answering each in its moment."""
        for caller in self._to_answer:
            if caller in self._callers:
                self._send(caller, _PONG, effects)
        self._to_answer.clear()

    def _node_said(self, caller: int, known: _Caller, message: Message, now: float, effects: Effects) -> None:
        run_id, node_id = known.key
        speaks_for = _speaker(message)
        if not node_id or speaks_for != node_id:
            self._turn_away(caller, f"{node_id or 'a visitor'} cannot speak for {speaks_for}", effects, final=True)
            return
        assert known.hello is not None, "checked by the caller"
        turn = self.runs.receive(run_id, node_id, known.hello.connection, message, now)
        self._done(turn, effects, message if isinstance(message, Left) else None)

    def _asked(self, caller: int, known: _Caller, ask: protocol.Ask, now: float, effects: Effects) -> None:
        if isinstance(ask, protocol.AskPeers):
            authority = self.runs.known.get(known.key[0])
            answer: protocol.Answer = queries.peers(ask, authority.run if authority else None)
        elif known.key[1]:
            answer = protocol.Done(ask.number, False, "a node does not administer its run")
        elif isinstance(ask, protocol.AskRuns):
            answer = queries.runs(ask, self.runs.known, now)
        elif isinstance(ask, protocol.AskStatus):
            answer = queries.status(ask, self.runs.known.get(ask.run_id), now, self.messages)
        else:
            answer = self._administer(ask, now, effects)
        self._send(caller, protocol.frame(answer), effects)

    def _administer(self, ask: protocol.AskClose | protocol.AskEvict, now: float, effects: Effects) -> protocol.Done:
        authority = self.runs.known.get(ask.run_id)
        if authority is None:
            return protocol.Done(ask.number, False, f"there is no run {ask.run_id!r}")
        if isinstance(ask, protocol.AskClose):
            event: CloseAsked | Lost = CloseAsked(by="an administrator", why=ask.why or "an administrator closed it")
        else:
            try:
                node_id = node_to_evict(authority.run, ask.node)
            except RendezvousError as refusal:
                return protocol.Done(ask.number, False, str(refusal))
            if node_id is None:
                return protocol.Done(ask.number, False, f"there is no node {ask.node!r} in run {ask.run_id!r}")
            event = Lost(node_id, "an administrator evicted it")
        self._done(self.runs.apply(ask.run_id, event, now), effects)
        return protocol.Done(ask.number, True)

    # What becomes of it -------------------------------------------------------------------------------------------

    def _done(self, turn: Turn, effects: Effects, leave: Left | None = None) -> None:
        run_id, output, after = turn.run_id, turn.output, turn.output.authority.run
        if output.durable and self.keeps_records:
            effects.records.append((run_id, codec.encode_run(after, turn.now)))
        if output.why or output.losses:
            effects.happenings.append(Happening(run_id, output.why, turn.before, after, output.losses, leave))
        encoded: dict[int, bytes] = {}
        for node_id, said in output.sends:
            caller = self._lines.get((run_id, node_id))
            if caller is not None:
                # One notice to many is the same object, and is encoded once.
                data = encoded.get(id(said)) or encoded.setdefault(id(said), protocol.frame(said))
                self._send(caller, data, effects)

    def _send(self, caller: int, data: bytes, effects: Effects) -> None:
        self.messages["sent"] += 1
        self.messages["bytes sent"] += len(data)
        effects.sends.append((caller, data))

    def _turn_away(self, caller: int, why: str, effects: Effects, *, final: bool = False) -> None:
        known = self._callers.get(caller)
        opening = protocol.MAGIC if known is not None and known.hello is None else b""
        self._send(caller, opening + protocol.frame(protocol.Goodbye(why, final)), effects)
        effects.hang_ups.append((caller, why))
        self._forget(caller, self._look(self._clock.looked), effects)

    def _forget(self, caller: int, now: float, effects: Effects) -> None:
        self._silent.pop(caller, None)
        known = self._callers.pop(caller, None)
        if known is None or known.hello is None or not known.hello.node_id:
            return
        if self._lines.get(known.key) == caller:
            del self._lines[known.key]
        run_id, node_id = known.key
        turn = self.runs.connection_ended(run_id, node_id, known.hello.connection, now, self._clock)
        if turn is not None:
            self._done(turn, effects)

    def _look(self, monotonic: float) -> float:
        self._clock, now = look(self._clock, monotonic)
        return now


_PONG = protocol.frame(protocol.Pong())


def _speaker(message: Message) -> str:
    """On whose behalf a message is."""
    if isinstance(message, (Joined, Announced)):
        return message.node.id
    return message.node_id if isinstance(message, Left) else message.by
