"""The election of one run's server as it happens in this process: the register, the sockets and the clock around it.

`election` decides; this carries it out on the background loop.  It makes the calls of the register, one at a time and off
the loop, listens for changes while there is something to be found, binds the port and runs the service when this process is
elected, and tells the links of this process where to connect.  All nodes of a process in one run share one driver.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial

import msgspec

from rallypoint.client.addresses import on_our_link
from rallypoint.client.identity import process_token
from rallypoint.client.locator import Seeker, Target
from rallypoint.client.view import State
from rallypoint.core.model import Phase, Run
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.location import actions as do
from rallypoint.location.actions import Action, ReadRecord, WriteRecord
from rallypoint.location.claiming import Claimant
from rallypoint.location.election import SUSPICIOUS, Election
from rallypoint.location.member import ranks_of_process
from rallypoint.location.register import Entry, Register, RegisterRefusedError, Token
from rallypoint.location.register_calls import CallQueue, ChangeListener
from rallypoint.messages.types import Settings
from rallypoint.record import Claim
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.service import Service, mint
from rallypoint.server.sockets import listen_on_first, ports_in_words
from rallypoint.tokens import token_of

log = logging.getLogger("rallypoint.server")

HAND_OVER_S = 1.0
"""How long a handover is tried at least."""
HURRIED_HAND_OVER_S = 0.25
"""The same for a process that has no time left, as after Ctrl-C."""

SAID_AFTER = 2
"""After how many writes in a row that fail this is said."""


class Candidacy(msgspec.Struct, frozen=True):
    """With what a process takes part in an election.

    `open_register` is given a function that says whether the server's loop has run lately.  `address` is where this process
    can be reached, `ports` are those that it may serve on, in this order.  `rest_s` is how long the claim's beat may rest;
    None: for the heartbeat time-out.  `trains` says that the program trains in this process, and would be slow to serve.
    """

    run_id: str
    open_register: Callable[[Callable[[], bool]], Register]
    settings: Settings
    address: str
    ports: tuple[int, ...] = (0,)
    rest_s: float | None = None
    is_host: bool | None = None
    trains: bool = False


class ElectionDriver:
    """One election.  On the background loop only, but for `serves_on`."""

    def __init__(self, candidacy: Candidacy) -> None:
        self.run_id = candidacy.run_id
        self.users: list[Seeker] = []
        self._candidacy = candidacy
        self._loop = asyncio.get_running_loop()
        self._register = candidacy.open_register(self.serves_on)
        self._calls = CallQueue(self._loop, "rallypoint-register")
        self._changes = ChangeListener(self._loop, self._register, self._listened)
        self._is_reached = False
        """Whether the register answered the last call."""
        self._refusal = ""
        """What the register's medium said where it did not."""
        self._failed_writes = 0
        """How many writes of a server here were not answered in a row."""
        self._token: Token | None = None
        """That of the record as it was last read or written."""
        self._heard: tuple[Token] | None = None
        """That of a change which was heard of while a call was in flight: it may be that call's own."""
        self._timer: asyncio.TimerHandle | None = None
        self._listener: socket.socket | None = None
        self._service: Service | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ran_at = 0.0
        self._target: Target | None = None
        self._happened = asyncio.Event()
        """Set whenever something may have changed that `_until` waits for."""
        self.is_over = self._is_closed = False  # it ends, and the next node needs another one; and nothing is done
        self._election = Election(
            self.run_id,
            self._candidate,
            mint=mint,
            chance=random.random,
            rest_s=candidacy.rest_s or candidacy.settings.heartbeat_timeout_s,
            is_host=candidacy.is_host,
            secret=lambda: secrets.token_hex(16),
        )

    # For locators -------------------------------------------------------------------------------------------------

    async def find(self, seeker: Seeker) -> Target:
        """Where the server is, as far as is known; waits where nothing is."""
        if seeker not in self.users:
            self.users.append(seeker)
        self._do(self._election.look(time.monotonic()))
        if self._target is None:
            # No server is known: until one is, the node waits with the election's reason (rule 11).
            seeker.session.ended(time.monotonic())
            await self._until(lambda: self._target is not None)
        assert self._target is not None, "it was found"
        return self._target

    def welcomed(self, seeker: Seeker, target: Target) -> None:
        """The server there has taken a node in."""
        self._do(self._election.welcomed(target.claim_id, seeker.session.serving.epoch, time.monotonic()))

    def failed(self, target: Target, *, refused: bool) -> None:
        """A connection there could not be made, or ended."""
        self._do(self._election.failed(target.claim_id, time.monotonic(), refused=refused))

    def beat(self, seeker: Seeker) -> None:
        """A node beats: if it does not hear the server, the register is read."""
        now = time.monotonic()
        if not self._hears(seeker, now):
            self._do(self._election.look(now))
        elif all(self._hears(user, now) for user in self.users):
            self._do(self._election.content(now))

    def explain(self, trouble: str) -> str:
        """Why the server is not reached."""
        if self._target is None:
            return self._election.why
        why = "" if self._election.is_content else f"; {self._election.why}"
        return f"{self._target.in_words}: {trouble}{why}"

    def doubt(self) -> str:
        """What is wrong with a server that cannot renew its claim: what the register says to this process."""
        server = "the server" if self._target is None else self._target.in_words
        said = f" ({self._refusal})" if self._refusal else ""
        return f"{server} answers, but cannot renew its claim, and seals nothing until it can{said}"

    async def leave(self, seeker: Seeker, timeout_s: float) -> bool:
        """A node has no more use for the server; the last one of this process ends the election here."""
        deadline = time.monotonic() + timeout_s
        at_least_s = HAND_OVER_S if timeout_s > 0 else HURRIED_HAND_OVER_S
        if seeker in self.users and len(self.users) > 1:
            self.users.remove(seeker)
            return True
        self.is_over = True
        if seeker.session.view.state in (State.FINISHED, State.CLOSED):
            await self._until(self._may_go, timeout_s)
        self._do(self._election.leave(self._run, time.monotonic()))
        # Where the register is away there is nothing to be waited for: the others will find this address refused.
        left_s = max(deadline - time.monotonic(), at_least_s)
        await self._until(lambda: self._election.is_done or not self._is_reached, left_s)
        handed_over = await self._until(lambda: self._election.is_done, at_least_s)
        if seeker in self.users:
            self.users.remove(seeker)
        await self._close()
        return handed_over

    async def abandon(self, seeker: Seeker) -> None:
        """A node is gone and told nobody; with the last one of this process the claim is left behind."""
        if seeker in self.users:
            self.users.remove(seeker)
        if not self.users:
            self.is_over = True
            await self._close()

    async def _until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until something holds; False where the time was up before."""

        async def wait() -> None:
            while not holds():
                self._happened.clear()
                await self._happened.wait()

        try:
            await asyncio.wait_for(wait(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            return holds()
        return True

    @property
    def hosts_medium(self) -> bool:
        """Whether the register's medium lives in this process, and no other node of it is left to keep it."""
        return bool(self._register.is_hosted_here) and len(self.users) < 2

    def serves_on(self) -> bool:
        """Whether the loop has run lately; from any thread (rule 17e)."""
        return time.monotonic() - self._ran_at < self._candidacy.settings.heartbeat_timeout_s / 2

    def _hears(self, seeker: Seeker, now: float) -> bool:
        """Whether a node hears a server that is sure of its claim."""
        session = seeker.session
        silent = now - session.heard_at > SUSPICIOUS * session.view.settings.heartbeat_timeout_s
        return session.welcomed and not silent and not session.serving.in_doubt

    def _candidate(self) -> Claimant:
        """What this process knows of its own nodes."""
        sessions = [user.session for user in self.users]
        seal_id, ranks = ranks_of_process(sessions)
        newest = max(sessions, key=lambda session: session.view.round_seen).view
        return Claimant(
            bounds=sessions[0].view.bounds,
            settings=sessions[0].view.settings,
            incarnation=newest.incarnation,
            round=newest.round_seen,
            seal_id=seal_id,
            ranks=ranks,
            # One that knows that the run is closed has no use for a server either.
            leaving=all(session.has_left or session.view.state is State.CLOSED for session in sessions),
            delivers=not all(session.is_heard for session in sessions),
            trains=self._candidacy.trains,
            heard_at=max(session.answered_at for session in sessions),
            hosts=self._register.is_hosted_here,
        )

    def _do(self, actions: list[Action]) -> None:
        if self._is_closed:
            return
        try:
            for action in actions:
                self._perform(action)
        except Exception:  # a mistake of our own must not end the election of a run that goes on
            log.exception("run %r: what the election decided was not done", self.run_id)
        self._happened.set()
        self._listen()
        self._plan()

    def _perform(self, action: Action) -> None:
        if isinstance(action, ReadRecord):
            self._calls.call(self._register.read, partial(self._answered, action))
        elif isinstance(action, WriteRecord):
            write = partial(self._register.write, action.value, action.token)
            self._calls.call(write, partial(self._answered, action))
        elif isinstance(action, do.Bind):
            # Off the loop, because an address may be a name, and name services take their time.
            self._calls.call(lambda: listen_on_first(self._candidacy.address, self._candidacy.ports), self._bound)
        elif isinstance(action, do.Unbind):
            self._unbind()
        elif isinstance(action, do.Connect):
            self._go_to(action.claim)
        elif isinstance(action, do.Serve):
            self._serve(action)
        elif isinstance(action, do.Stop):
            self._stop(action)
        elif isinstance(action, do.Ended):
            for user in self.users:
                user.tell_ended(action.how)
        elif self._service is not None:
            self._tell_server(self._service, action)

    def _tell_server(self, service: Service, action: Action) -> None:
        now, coordinator = time.monotonic(), service.coordinator
        if isinstance(action, do.Recorded):
            service.recorded(self.run_id)
        elif isinstance(action, do.Renewed):
            service.perform(coordinator.renewed(self.run_id, action.asked_at, now))
        elif isinstance(action, do.Doubt):
            log.warning("run %r: %s", self.run_id, action.why or "the claim is renewed, and nothing is in doubt")
            service.perform(coordinator.set_doubt(action.why, now))
        else:
            assert isinstance(action, do.ClaimedAgain), f"{action!r} is done"
            log.info("run %r: claimed again, with epoch %d", self.run_id, action.epoch)
            coordinator.claimed_again(action.epoch)

    def _plan(self) -> None:
        due = self._election.wake_at()
        if self._timer is not None:
            self._timer.cancel()
        if due is not None and due != float("inf"):
            soonest = time.monotonic() + 0.001
            self._timer = self._loop.call_at(max(due, soonest), lambda: self._do(self._election.tick(time.monotonic())))

    # The register -------------------------------------------------------------------------------------------------

    def _say_whether_written(self) -> None:
        """Say once that writes fail, however often they are tried, and why; not of a single one, as in a process that ends."""
        failed, self._failed_writes = self._failed_writes, 0 if self._is_reached else self._failed_writes + 1
        if self._failed_writes == SAID_AFTER:
            said = f"cannot be written, and is tried again: {self._refusal}"
            log.warning("run %r: its record %s", self.run_id, said)
        elif self._is_reached and failed >= SAID_AFTER:
            log.warning("run %r: its record can be written again", self.run_id)

    def _answered(self, call: Action, entry: Entry | None, problem: Exception | None) -> None:
        if self._is_closed:
            return
        now, election = time.monotonic(), self._election
        self._is_reached = problem is None
        self._refusal = "" if problem is None else str(problem) or repr(problem)
        if isinstance(call, WriteRecord) and self._service is not None:
            self._say_whether_written()
        if problem is not None:
            if not isinstance(problem, (RendezvousConnectionError, RendezvousStateError)):
                log.error("the register of run %r failed: %r", self.run_id, problem, exc_info=problem)
            if isinstance(problem, RegisterRefusedError):
                for user in self.users:
                    user.refuse(problem.problem)
            self._do(election.away(self._refusal, now))
            return
        is_read = isinstance(call, ReadRecord)
        if entry is not None or is_read:
            self._token = entry and entry.token
        self._do(election.read(entry, now) if is_read else election.wrote(entry, now))
        self._look_at_change()

    def _listen(self) -> None:
        """Listen for changes while this process looks for a server or serves."""
        if self._election.is_content and self._election.serving is None:
            self._changes.stop()
        elif self._is_reached:
            self._changes.listen(self._token)

    def _listened(self, token: Token | None) -> None:
        if token is not None:
            self._heard = (token,)
            self._look_at_change()
        self._listen()

    def _look_at_change(self) -> None:
        """What was heard may be this process's own write, whose answer is then known or on its way."""
        if self._heard is None or self._election.is_calling:
            return
        (token,), self._heard = self._heard, None
        if token != self._token:
            self._do(self._election.changed(time.monotonic()))

    def _go_to(self, claim: Claim) -> None:
        hosts = tuple(on_our_link(host, self._candidacy.address) for host in claim.addresses)
        before, self._target = self._target, Target(hosts, claim.port, claim.id, token_of(claim.secret))
        if before is not None and before.claim_id != claim.id:
            for user in self.users:
                user.move()

    # Serving ------------------------------------------------------------------------------------------------------

    def _bound(self, listener: socket.socket | None, problem: Exception | None) -> None:
        now, address = time.monotonic(), self._candidacy.address
        if listener is None:
            why = f"it cannot listen on {address}, port {ports_in_words(self._candidacy.ports)}: {problem}"
            self._do(self._election.not_bound(why, now))
        elif self._is_closed:
            listener.close()
        else:
            self._listener = listener
            self._do(self._election.bound((address,), listener.getsockname()[1], now))

    def _unbind(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._calls.call(self._register.resign, _ignore)

    def _serve(self, serve: do.Serve) -> None:
        listener, self._listener = self._listener, None
        assert listener is not None, "a process that claims has a port"
        claim = serve.claim
        log.info("run %r: this process serves from now on, at %s:%d", self.run_id, claim.addresses[0], claim.port)
        self._ran_at = time.monotonic()
        make = partial(
            Coordinator,
            only_run=self.run_id,
            keeps_records=True,
            process=process_token(),
            own_place=ranks_of_process([user.session for user in self.users]),
            claim_id=claim.id,
            token=token_of(claim.secret),
            pause_s=claim.rest_s / 2,
            restored=[(serve.run, serve.record.epoch)],
        )
        self._service = Service(make, acted=self._acted)
        self._starting = self._loop.create_task(self._service.start(listener))

    def _acted(self, effects: Effects) -> None:
        """The server took an input: what it wants to be recorded, and what it must know of its claim."""
        service, serving, now = self._service, self._election.serving, time.monotonic()
        self._ran_at = now
        if service is None or serving is None:
            return
        coordinator = service.coordinator
        for each in effects.records:
            serving.want(each.run, each.own_ranks)
        for incarnation, epoch in effects.epochs_heard:
            serving.hear_epoch(incarnation, epoch)
        for run in effects.deserted:
            serving.relinquish(run, now)
        is_new = coordinator.met and serving.meet()
        must_renew, coordinator.must_renew = coordinator.must_renew, False
        if must_renew:
            serving.renew(now)
        if effects.records or effects.epochs_heard or effects.deserted or is_new or must_renew:
            self._do(self._election.tick(now))
        self._happened.set()

    def _may_go(self) -> bool:
        """Whether no node is connected, or they find in the record, which outlives this process, that the run is closed."""
        service, run = self._service, self._run
        if service is None or run is None or not service.coordinator.is_attended:
            return True
        return run.phase is Phase.CLOSED and not self.hosts_medium

    @property
    def _run(self) -> Run | None:
        return None if self._service is None else self._service.coordinator.runs.known[self.run_id].run

    def _stop(self, stop: do.Stop) -> None:
        log.info("run %r: this process serves no longer: %s", self.run_id, stop.why)
        service, self._service = self._service, None
        if service is not None:
            service.perform(service.coordinator.step_down(stop.why))
            self._loop.create_task(self._end_service(service))
        self._calls.call(self._register.resign, _ignore)

    async def _end_service(self, service: Service) -> None:
        if self._starting is not None:
            await self._starting
        await service.stop()

    async def _close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._service is not None:
            await self._end_service(self._service)
            self._service = None
        if self._listener is not None:
            self._listener.close()
        self._changes.close()
        self._calls.call(self._register.close, _ignore)
        self._calls.close()


def _ignore(result: object, problem: Exception | None) -> None:
    """What is let go of in vain expires by itself."""
    if problem is not None:
        log.debug("not let go of: %s", problem)
