"""The server's end of the protocol, sans-IO: many runs, many connections, one core.

It talks with callers; `runs` holds the runs that they speak of.  Bytes and the ends of connections go in with the time;
what is to be recorded, sent, hung up and told comes out as `Effects`.  `service` brings sockets, the simulation virtual ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field

import msgspec

from rallypoint import heartbeats, protocol
from rallypoint.core import recovery
from rallypoint.core.model import Predecessor, Run
from rallypoint.errors import RendezvousStateError
from rallypoint.messages import requests
from rallypoint.messages.notices import KeepWaiting, Placed
from rallypoint.messages.requests import Announced, CloseAsked, Joined, Left, NodeMessage, Standing
from rallypoint.server import administration, run_state
from rallypoint.server.admission import NEWER, Admission, Connection, ServerLimits, conflict
from rallypoint.server.clock import LOOK_S, AwakeClock, just_woke, look
from rallypoint.server.effects import Effects, RunChange, ToRecord
from rallypoint.server.idle_callers import IdleCallers
from rallypoint.server.run_state import RunState
from rallypoint.server.runs import AppliedInput, HostedRuns, RunInput
from rallypoint.server.verdicts import Verdicts
from rallypoint.tokens import Token


@dataclass(kw_only=True, eq=False)
class Coordinator:
    """Everything a server knows.

    `only_run`, `remote_admins` and `token` are those of `Admission`.  `process` is the token of the process that it lives in.
    An elected server has a `claim_id`, and never forgets its run; after a stall of its own of more than `pause_s` it
    waits until its claim is known to stand.
    """

    monotonic: InitVar[float]
    mint: Callable[[], str]
    name: str = "rallypoint"
    only_run: str = ""
    remote_admins: bool = True
    keeps_records: bool = False
    restored: InitVar[Iterable[tuple[Run, int]]] = ()
    limits: ServerLimits = field(default_factory=ServerLimits)
    hold_s: float | None = None
    process: str = ""
    claim_id: str = ""
    token: Token | None = None
    pause_s: float = float("inf")
    own_place: tuple[str, tuple[int, ...]] = ("", ())
    predecessor: Predecessor | None = None

    def __post_init__(self, monotonic: float, restored: Iterable[tuple[Run, int]]) -> None:
        self.runs = HostedRuns(monotonic, self.mint, self.keeps_records, bool(self.claim_id), self.hold_s)
        self.messages: Counter[str] = Counter()
        self.doubt = ""
        self.must_renew = False
        """Whether this server was paused, and the shell is to find out whether its claim stands."""
        self.met = False
        """Whether a node of another process was welcomed."""
        self._unsure_since: float | None = None
        self._recorded_before: set[str] = set()
        """Runs whose record was confirmed while the server did not know whether its claim stands."""
        self._admission = Admission(self.limits, self.only_run, self.remote_admins, self.token, bool(self.claim_id))
        self._verdicts = Verdicts()
        self._own_nodes: dict[str, set[str]] = {}
        self._clock = AwakeClock(monotonic)
        self._connections: dict[int, Connection] = {}
        self._idle = IdleCallers(self.limits)
        self._nodes: dict[tuple[str, str], int] = {}
        self._to_answer: list[Connection] = []
        for run, epoch in restored:
            self.runs.restore(run, epoch, monotonic)

    def opened(self, caller: int, monotonic: float, *, is_local: bool = False) -> Effects:
        """A caller connected, perhaps from the server's own machine."""
        now, effects = self._look(monotonic), Effects()
        self._connections[caller] = Connection(caller, protocol.Reader(self.limits.frame), is_local)
        self._idle.opened(caller, now)
        if (excess := self._idle.excess(caller, len(self._connections))) is not None:
            self._turn_away(*excess, effects)
        return effects

    def received(self, caller: int, data: bytes, monotonic: float) -> Effects:
        """Bytes arrived."""
        now, effects = self._look(monotonic), Effects()
        known = self._connections.get(caller)
        if known is None:
            return effects
        is_same = known.run is not None and known.frame == data and known.reader.is_between_frames
        if is_same and self._run(known) is known.run:
            # What it said last, about a run that has not changed since: a heartbeat, and nothing to decide.
            self.messages["received"] += 1
            self._beat(known, now)
            return effects
        known.questions = 0
        try:
            for body in known.reader.feed(data):
                self.messages["received"] += 1
                self._take(known, body, now, effects)
                if caller not in self._connections:
                    break
        except RendezvousStateError as exc:
            self._turn_away(caller, str(exc), effects, final=not known.nonce)
        return effects

    def ended(self, caller: int, monotonic: float) -> Effects:
        """A connection is gone."""
        now, effects = self._look(monotonic), Effects()
        self._forget(caller, now, effects)
        return effects

    def tick(self, monotonic: float) -> Effects:
        """Time passed; due when `wake_at` says so."""
        now, effects = self._look(monotonic), Effects()
        for known in self._to_answer:  # many at a time, a few times a second: that costs half of answering each at once
            if known.number in self._connections:
                self._send(known.number, self._stand_in(known, now), effects)
        self._to_answer.clear()
        self._tell(self.runs.tick(now), effects)
        for caller, why in self._idle.overdue(now):
            self._turn_away(caller, why, effects)
        return effects

    def recorded(self, run_id: str, monotonic: float) -> Effects:
        """The record of a run is written; or it is not, and is not to be awaited any longer."""
        now, effects = self._look(monotonic), Effects()
        if self._unsure_since is not None:
            self._recorded_before.add(run_id)
        else:
            self._tell(self.runs.recorded(run_id, now), effects)
        return effects

    def renewed(self, run_id: str, asked_at: float, monotonic: float) -> Effects:
        """The claim is known to stand, since the register was asked: go on after the pause."""
        now, effects = self._look(monotonic), Effects()
        if self._unsure_since is None or asked_at < self._unsure_since:
            return effects  # it was paused once more since it asked
        self._unsure_since = None
        go_on = self.runs.recorded if run_id in self._recorded_before else self.runs.resume
        self._recorded_before.discard(run_id)
        self._tell(go_on(run_id, now), effects)
        return effects

    def claimed_again(self, epoch: int) -> None:
        """The claim of this server has a higher epoch now; its nodes and memory stay (rule 17d)."""
        for hosted in self.runs.known.values():
            hosted.epoch = epoch

    def set_doubt(self, why: str, monotonic: float) -> Effects:
        """The claim cannot be renewed, for this reason; or it can again, where the reason is empty (rule 17e)."""
        now, effects = self._look(monotonic), Effects()
        self.doubt = why
        hinder = RunInput(lambda state, run_now, mint: run_state.hinder(state, why, run_now, mint))
        for run_id in list(self.runs.known):
            self._tell(self.runs.take(run_id, hinder, now), effects)
        for (run_id, _), caller in self._nodes.items():
            self._send(caller, self._pong(run_id), effects)
        return effects

    def step_down(self, why: str) -> Effects:
        """Another process serves from now on: every caller is told so and sent on (rule 17d)."""
        effects = Effects()
        for caller, known in self._connections.items():
            self._send(caller, known.opening() + protocol.frame(protocol.Goodbye(why)), effects)
            effects.hang_ups.append((caller, why))
        self._connections.clear()
        self._nodes.clear()
        return effects

    @property
    def is_attended(self) -> bool:
        """Whether a node that takes part is connected."""
        return any(known.takes_part for known in self._connections.values())

    def knows(self, caller: int) -> bool:
        """Whether the server still listens to a connection."""
        return caller in self._connections

    def wake_at(self, monotonic: float) -> float:
        """When `tick` is due, on the shell's own monotonic clock: often enough to know a stall from a pause."""
        latest, due = monotonic + LOOK_S, self.runs.wake_at()
        # Never at this very moment: the two clocks differ by a rounding, and a shell would spin on it.
        return latest if due is None else min(latest, max(due + self._clock.stalled_s, monotonic + 0.0005))

    def _take(self, known: Connection, body: bytes, now: float, effects: Effects) -> None:
        message, caller = protocol.read(body, protocol.FROM_NODE), known.number
        self._idle.heard(caller, now)
        if known.nonce:
            self._hear_proof(known, message, now, effects)
        elif isinstance(message, protocol.Hello):
            self._greet(known, message, now, effects)
        elif known.hello is None:
            self._turn_away(caller, "a connection opens with a hello", effects, final=True)
        elif isinstance(message, protocol.Proof):
            self._turn_away(caller, "a proof answers a challenge, and none was made", effects, final=True)
        elif isinstance(message, protocol.Ping):
            self._send(caller, self._pong(known.key[0]), effects)
        elif isinstance(message, (Joined, Announced, Left, CloseAsked)):
            sent = len(effects.sends)
            self._node_said(known, known.hello, message, now, effects)
            if all(to != caller for to, _ in effects.sends[sent:]):
                # Every message is answered, so that the node knows that it is heard.
                known.answered, default = now, Standing.WAITING if isinstance(message, Joined) else None
                known.standing = message.standing if isinstance(message, Announced) else default
                self._send(caller, self._stand_in(known, now), effects)
                known.frame, known.run = protocol.framed(body), self._run(known)
                known.patience = requests.settings_of(message)
        else:
            self._asked(known, message, now, effects)

    def _run(self, known: Connection) -> Run | None:
        hosted = self.runs.known.get(known.key[0])
        return hosted.run if hosted is not None else None

    def _stand_in(self, known: Connection, now: float) -> bytes:
        """What is sent where there is no answer: a pong, or to a node that waits, why the server holds its run up."""
        hosted = self.runs.known.get(known.key[0])
        why = hosted.held_up(now) if hosted is not None and known.standing is Standing.WAITING else ""
        if hosted is None or not why:
            return self._pong(known.key[0])
        return protocol.frame(KeepWaiting(hosted.run.incarnation, 0, why))

    def _greet(self, known: Connection, hello: protocol.Hello, now: float, effects: Effects) -> None:
        """A caller says who it is.  Where there is a token, it learns nothing more before it has proven that it has it."""
        admission, caller = self._admission, known.number
        if known.hello is not None:
            self._turn_away(caller, "hello is said once", effects, final=True)
        elif refusal := admission.refusal(hello, self.runs.known, is_local=known.is_local, is_proven=False):
            self._turn_away(caller, refusal, effects, final=True)
        elif admission.token is not None:
            known.hello, known.nonce = hello, self.mint()
            self._send(caller, known.opening() + protocol.frame(admission.challenge(hello, known.nonce)), effects)
        else:
            self._welcome(known, hello, now, effects)

    def _hear_proof(self, known: Connection, message: protocol.FromNode, now: float, effects: Effects) -> None:
        """What a challenged caller says: nothing else is heard before it has proven that it has the token."""
        assert known.hello is not None, "a challenge answers a hello"
        admission, hello, caller = self._admission, known.hello, known.number
        if objection := admission.objection(hello, known.nonce, message):
            self.messages["refused"] += 1
            # A wrong secret may be that of an older claim: such a caller reads the register again (rule 17j).
            self._turn_away(caller, objection, effects, final=not self.claim_id)
        elif refusal := admission.refusal(hello, self.runs.known, is_local=known.is_local):
            self._turn_away(caller, refusal, effects, final=True)
        else:
            known.nonce = ""
            self._welcome(known, hello, now, effects)

    def _welcome(self, known: Connection, hello: protocol.Hello, now: float, effects: Effects) -> None:
        known.hello = hello
        self._idle.rests(known.number, now)
        serving = self._serving(hello.run_id)
        if hello.node_id:
            if self.process and hello.process == self.process:
                self._own_nodes.setdefault(hello.run_id, set()).add(hello.node_id)
            else:
                self.met = True
            if hello.incarnation == serving.incarnation and hello.epoch > serving.epoch and self.claim_id:
                effects.epochs_heard.append((hello.incarnation, hello.epoch))
            other, hosted = self._nodes.get(known.key), self.runs.known.get(hello.run_id)
            owner = hosted.owners.get(hello.node_id) if hosted is not None else None
            if why := conflict(hello, owner, self._connections[other].hello if other is not None else None):
                known.hello = None  # its end changes nothing of that node
                self._turn_away(known.number, why, effects)
                return
            if other is not None:
                self._connections.pop(other, None)
                effects.hang_ups.append((other, NEWER))
            self._nodes[known.key] = known.number
        capabilities = (protocol.STANDALONE,) if self.remote_admins and not self.claim_id else ()
        welcome = protocol.Welcome(protocol.VERSION, self.name, capabilities, serving, *self._own_ranks(hello.run_id))
        self._send(known.number, known.opening() + protocol.frame(welcome), effects)

    def _serving(self, run_id: str) -> protocol.Serving:
        hosted = self.runs.known.get(run_id)
        if hosted is None:
            return protocol.Serving(claim_id=self.claim_id)
        return protocol.Serving(hosted.run.incarnation, hosted.epoch, self.claim_id, bool(self.doubt))

    def _own_ranks(self, run_id: str, run: Run | None = None) -> tuple[str, tuple[int, ...]]:
        """The seal id of a run's world, and the ranks in it that are in this server's own process."""
        hosted = self.runs.known.get(run_id)
        run = run or (hosted.run if hosted is not None else None)
        if run is None or run.world is None:
            return self.own_place
        ranks = (run.ranks.get(node_id) for node_id in self._own_nodes.get(run_id, ()))
        return run.world.seal_id, tuple(sorted(rank for rank in ranks if rank is not None))

    def _pong(self, run_id: str) -> bytes:
        return protocol.frame(protocol.Pong(self._serving(run_id)))

    def _beat(self, known: Connection, now: float) -> None:
        run_id, node_id = known.key
        self._idle.heard(known.number, now)
        self.runs.beat(run_id, node_id, now)
        if heartbeats.must_answer(known.patience, now - known.answered, holds=known.standing is Standing.HOLDS):
            known.answered = now
            self._to_answer.append(known)

    def _node_said(
        self, known: Connection, hello: protocol.Hello, message: NodeMessage, now: float, effects: Effects
    ) -> None:
        run_id, node_id = known.key
        sender, speaker = requests.sender_of(message), node_id or "an administrator"
        if not node_id or sender != node_id:
            self._turn_away(known.number, f"{speaker} cannot speak for {sender}", effects, final=True)
            return
        if (fenced := self._admission.forgery(run_id, message)) is not None:
            self.messages["forged places"] += 1
            self._send(known.number, protocol.frame(fenced), effects)
            return
        known.takes_part = True
        self._idle.takes_part(known.number, now, leaves=isinstance(message, Left))
        if run_id not in self.runs.known:
            self._open(run_id, message, now)
        if self._unsure_since is not None:
            self.runs.beat(run_id, node_id, now)  # the message waits, but the node is known to live
        if not isinstance(message, Left):
            self.runs.known[run_id].owners.setdefault(node_id, hello.process)
        taken = RunInput(
            lambda state, run_now, mint: run_state.receive(state, node_id, hello.connection, message, run_now, mint),
            message if isinstance(message, Left) else None,
        )
        self._tell(self.runs.take(run_id, taken, now), effects)

    def _open(self, run_id: str, message: NodeMessage, now: float) -> None:
        """A run that this server has not heard of; the process that served it before may be known to be gone (rule 14)."""
        hosted, predecessor = self.runs.open(run_id, now, requests.settings_of(message)), self.predecessor
        self._admission.warn_of_size(run_id, message)
        if predecessor is not None:
            self.predecessor = None
            run = recovery.without(hosted.run, msgspec.structs.replace(predecessor, until=now + predecessor.until))
            hosted.state = RunState(run, hosted.state.life)

    def _asked(self, known: Connection, ask: protocol.Ask, now: float, effects: Effects) -> None:
        (run_id, node_id), caller = known.key, known.number
        known.questions += 1
        if known.questions > self.limits.questions:
            self._turn_away(caller, "too many questions were asked at once", effects, final=not node_id)
            return
        if isinstance(ask, protocol.AskHeard) and node_id:
            self._tell(self.runs.take(run_id, RunInput(None, None, caller, ask.number), now), effects)
            return
        answer: protocol.Answer | None = administration.refusal(ask, known.hello)
        if answer is None and isinstance(ask, protocol.AskVerdict) and node_id:
            answer = self._verdicts.answer(ask, known.key, self._run(known), self._nodes, now)
        elif answer is None and not node_id and isinstance(ask, administration.ORDERS):
            order = administration.order_of(ask, self.runs.known.get(ask.run_id), now)
            if isinstance(order, administration.Order):  # the answer follows the record
                taken = RunInput(order.change, None, caller, ask.number, order.answer, order.evicted)
                self._tell(self.runs.take(ask.run_id, taken, now), effects)
                return
            answer = order
        elif answer is None:
            answer = administration.answer(ask, run_id, self.runs.known, now, self.messages, is_node=bool(node_id))
        self._send(caller, protocol.frame(answer), effects)

    def _tell(self, applied: Iterable[AppliedInput], effects: Effects) -> None:
        """Send what came of inputs, and ask for the records that must be written."""
        for each in applied:
            self._send_outcome(each, effects)
        for run_id in self.runs.to_record:
            hosted = self.runs.known[run_id]
            assert hosted.ahead is not None, "what is to be recorded is known"
            run = hosted.ahead.run
            effects.records.append(ToRecord(run, hosted.epoch, self._own_ranks(run_id, run)[1]))
        for run_id in self.runs.deserted:
            run = self.runs.known[run_id].run
            self._unsure_since = self._clock.looked
            effects.deserted.append(run)
            why = "most of the nodes have fallen silent: another process may serve them from now on"
            effects.happenings.append(RunChange(run_id, why, run, run))
        effects.forgotten += self.runs.forgotten
        for run_id in self.runs.forgotten:
            self._verdicts.forget(run_id)
        self.runs.to_record.clear()
        self.runs.deserted.clear()
        self.runs.forgotten.clear()

    def _send_outcome(self, applied: AppliedInput, effects: Effects) -> None:
        run_id, output, after, taken = applied.run_id, applied.output, applied.output.state.run, applied.taken
        if output.why or output.losses:
            effects.happenings.append(RunChange(run_id, output.why, applied.before, after, output.losses, taken.leave))
        for gone in filter(None, (self._nodes.get((run_id, node_id)) for node_id in applied.gone)):
            self._idle.rests(gone, self._look(self._clock.looked))
        encoded: dict[int, bytes] = {}
        own_ranks = self._own_ranks(run_id, after)[1] if self._own_nodes else ()
        for node_id, said in output.sends:
            caller = self._nodes.get((run_id, node_id))
            if caller is not None:
                if isinstance(said, Placed) and (own_ranks or self.token is not None):
                    data = protocol.frame(self._admission.placed(said, run_id, node_id, own_ranks))
                else:
                    # One notice to many is the same object, and is encoded once.
                    data = encoded.get(id(said)) or encoded.setdefault(id(said), protocol.frame(said))
                self._send(caller, data, effects, urgent=not isinstance(said, KeepWaiting))
        if taken.asker in self._connections:
            self._send(taken.asker, protocol.frame(protocol.Done(taken.asked, True, taken.answer)), effects)

    def _send(self, caller: int, data: bytes, effects: Effects, *, urgent: bool = True) -> None:
        self.messages["sent"] += 1
        self.messages["bytes sent"] += len(data)
        if urgent:
            effects.urgent.add(caller)
        effects.sends.append((caller, data))

    def _turn_away(self, caller: int, why: str, effects: Effects, *, final: bool = False) -> None:
        self.messages["callers turned away"] += 1
        known = self._connections.get(caller)
        opening = known.opening() if known is not None else b""
        self._send(caller, opening + protocol.frame(protocol.Goodbye(why, final)), effects)
        effects.hang_ups.append((caller, why))
        self._forget(caller, self._look(self._clock.looked), effects)

    def _forget(self, caller: int, now: float, effects: Effects) -> None:
        self._idle.gone(caller)
        known = self._connections.pop(caller, None)
        if known is None or known.nonce or known.hello is None or not known.hello.node_id:
            return  # what is not proven changes nothing of the node that it names
        if self._nodes.get(known.key) == caller:
            del self._nodes[known.key]
        (run_id, node_id), connection = known.key, known.hello.connection
        hosted = self.runs.known.get(run_id)
        if hosted is None:
            return
        hosted.beats.pop(node_id, None)
        fault = just_woke(self._clock, hosted.run.settings.heartbeat_timeout_s, now)
        taken = RunInput(
            lambda state, run_now, _: run_state.connection_ended(state, node_id, connection, run_now, our_fault=fault)
        )
        self._tell(self.runs.take(run_id, taken, now), effects)

    def _look(self, monotonic: float) -> float:
        before = self._clock
        self._clock, now = look(before, monotonic)
        if self._clock.stalled_s - before.stalled_s > self.pause_s:
            # Another process may serve by now: nothing is answered before the claim is known to stand (rule 17e).
            self.must_renew, self._unsure_since = True, monotonic
            self.runs.suspend(now)
        return now
