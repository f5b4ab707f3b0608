"""The turns of a node's link: it writes what the node says, and makes notices of what the leader wrote.

It does all that waits for etcd, on a thread of the crew.  A node that finds nobody leading becomes the leader.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from rallypoint.client.addresses import address_among
from rallypoint.client.link_port import Prepare, differs
from rallypoint.core import codec
from rallypoint.core import node as core
from rallypoint.core.events import Joined, Left
from rallypoint.core.model import Node, Reason
from rallypoint.core.node import State, View
from rallypoint.core.notices import Fenced, KeepWaiting
from rallypoint.errors import RendezvousError, RendezvousStateError
from rallypoint.etcd import crew
from rallypoint.etcd.following import lacks_place, lacks_word, notices
from rallypoint.etcd.keys import Keys
from rallypoint.etcd.reading import Reading
from rallypoint.etcd.succession import Said, Succession
from rallypoint.etcd_client import (
    EtcdAuthError,
    EtcdClient,
    EtcdClosedError,
    EtcdError,
    EtcdForkError,
    EtcdHopelessError,
    EtcdLeaseLostError,
    EtcdMissingError,
    EtcdNoSpaceError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Lease,
    compare,
    delete_op,
    put_op,
)
from rallypoint.etcd_client.messages import RequestOp

log = logging.getLogger("rallypoint.etcd")

_FIRST_RETRY_S = 0.05
HURRY_S = 2.0
"""How long each of the last steps of a link may take."""

_AGAIN_S = 0.1
"""How soon a last word is tried again."""

_LAST_WORD_S = 1.0
"""How long the end of a run waits for what this node was told before: whether it stood by, and so ends well."""

_HOPELESS = (EtcdAuthError, EtcdHopelessError, EtcdMissingError, EtcdRefusedError)
_TAKES_PART = (State.WAITING, State.SPARE, State.HOLDS, State.BROKEN, State.FINISHED)


class LinkTurns:
    """What one node's link knows and does in its turns; `changed` guards what other threads ask and read."""

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        run_id: str,
        view: View,
        *,
        lease_ttl_s: int,
        prepare: Prepare,
        reborn: Callable[[Node], Node],
    ) -> None:
        self.changed = threading.Condition()
        self._client = client
        self._keys = keys
        self._run_id = run_id
        self._view = view
        self._lease_ttl_s = lease_ttl_s
        self._prepare = prepare
        self._reborn = reborn
        self._pid = os.getpid()
        self._post: crew.Post | None = None
        self._pause_s = _FIRST_RETRY_S
        self._ending = False
        # What is to be written, and what was.
        self._to_say: Joined | Left | None = None
        self._saying: Joined | None = None
        self._prepared: tuple[Joined, Node] | None = None
        self._is_worn = False  # whether the node's name is not to be used again
        self._unsaid = False  # whether a last word was lost, with the node's lease or all of the run
        self._board_by = 0.0  # until when a last word waits for a board that is gone
        self._said_at = 0
        self._lease: Lease | None = None
        self._in_doubt = False
        self._to_wish = b""
        self._wish = ""
        self._look_up_at = math.inf
        self._reading = Reading(client, keys, run_id, self._wake)
        self._succession = Succession(client, keys, run_id, self._wake)
        # How it goes.
        self._refusal: str | None = None
        self._asked = 0
        self._trouble = "nothing was tried yet"
        self._reached = False

    # Turns --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self.changed:
            if self._post is None and not self._ending:
                self._post = crew.enlist(self._take_turn)
        self._wake()

    def _wake(self) -> None:
        """A turn soon."""
        if self._post is not None:
            self._post.wake()

    def _take_turn(self) -> float | None:
        """A turn, whatever comes of it: how long to wait for the next one; None where that was the last."""
        if self._ending:
            self._end()
            return None
        with self.changed:
            asked = self._asked
        try:
            wait_s = self._speak()
            if wait_s <= 0:
                wait_s = self._turn()
                self._pause_s = _FIRST_RETRY_S
                self._well()
            return wait_s
        except EtcdLeaseLostError as exc:
            self._lose(str(exc))
            return 0.0
        except (EtcdClosedError, EtcdForkError):
            self._end()
            return None
        except _HOPELESS as exc:
            self._in_doubt = True
            self._fail(str(exc))
            self._refuse(str(exc), asked)
        except (RendezvousStateError, RendezvousError) as exc:
            self._refuse(str(exc), asked)
        except EtcdError as exc:
            self._in_doubt = True
            self._fail(str(exc), is_outage=not isinstance(exc, EtcdNoSpaceError))
            pause_s = random.uniform(self._pause_s / 2, self._pause_s)
            self._pause_s = min(self._pause_s * 2, self._view.settings.reconnect_backoff_s)
            return min(pause_s, self._patience_s())
        except Exception as exc:
            # A link that had no more turns would leave a node that is renewed and does nothing.
            log.exception("run %r: the link to etcd failed", self._run_id)
            self._refuse(f"the link to etcd failed: {exc!r}", asked)
        return self._patience_s()

    def _speak(self) -> float:
        """Say what is to be said.  Where that takes several turns: how long to wait at most for the next one; else 0."""
        if self._reading.node_id not in ("", self._view.node.id):
            self._shed()  # the node was given up, and comes back as another
        if self._lease is not None:
            self._lease.check()
        return self._say()

    def _turn(self) -> float:
        """Do all else that is to be done; how long to wait for more."""
        self._say_wish()
        if not self._reading.is_open:
            self._reading.stand_down()
            self._reading.look()
            self._hear()
        for _ in self._reading.news():
            self._hear()
        if time.monotonic() >= self._look_up_at:
            self._hear()
        if self._view.state is State.CLOSED and self._reading.is_open and self._reading.board is None:
            self._shed()  # who founds the next run must not find what this node said in the last one
        self._look_after_leader()
        now = time.monotonic()
        lease = self._lease
        if lease is not None and lease.remaining_s() <= 0 and lease.trouble is not None:
            self._fail(lease.trouble)
        self._change(lambda view: core.passed(view, now))
        soon_s = _AGAIN_S if self._to_say is not None else self._patience_s()
        return min(self._succession.look_at - now, self._look_up_at - now, soon_s)

    # What the node says -------------------------------------------------------------------------------------------

    def _say(self) -> float:
        message = self._saying if self._succession.is_speaking else self._to_say
        if isinstance(message, Joined):
            wait_s = self._say_join(message)
            if wait_s > 0:
                return wait_s
        elif message is not None and not self._say_left(message):
            return 0.0  # it is said in a moment, or not at all
        with self.changed:
            if self._to_say is message:
                self._to_say = None
            if isinstance(message, Left):
                self.changed.notify_all()
        # What was asked while it was being said is not to wait for the next turn; another node may be asking by now.
        return self._speak() if self._to_say is not None else 0.0

    def _say_join(self, message: Joined) -> float:
        """Step by step: until the next one, others may have their turns."""
        lease = self._own_lease()  # first of all: etcd sees to it while the rest is made
        if self._succession.is_speaking:
            said = self._succession.said()
        else:
            node = self._prepare_for(message)
            if not lease.answered.is_set():
                self._succession.announce(node.id)
                return self._lease_ttl_s  # it is woken by the answer, or if none comes
            self._saying, self._prepared = message, None
            self._change(lambda view: msgspec.structs.replace(view, node=node) if view.node.id == node.id else view)
            if self._view.node.id != node.id:
                return 0.0  # it has become another meanwhile, which has a word of its own to say
            word = codec.encode_message(msgspec.structs.replace(message, node=node))
            put = put_op(self._keys.node(node.id), word, lease=lease.id)
            said = self._succession.say_with_others(lease, node.id, [put])
        if said is None:
            return self._succession.patience_s or self._lease_ttl_s
        self._said_at = self._take(said, lease)
        self._hear()  # what those who wait are told is known already
        self._reading.begin(message.node.id, self._said_at + 1, in_doubt=self._in_doubt)
        self._in_doubt = False
        return 0.0

    def _prepare_for(self, message: Joined) -> Node:
        """The node that is to join by it, with all that it brings along."""
        if self._prepared is None or self._prepared[0] is not message:
            self._reading.begin_ahead(message.node.id)
            node = self._prepare(message.node, lambda: address_among(self._client.endpoints))
            self._prepared = message, node
        return self._prepared[1]

    def _say_and_lead(self, lease: Lease, puts: Sequence[RequestOp]) -> None:
        """Write, and become the leader where there is none."""
        self._take(self._succession.say(lease, self._view.node.id, puts), lease)

    def _take(self, said: Said, lease: Lease) -> int:
        """What came of saying something; the revision that it was written at."""
        if said.board is not None and self._reading.take_board(said.board):
            self._hear()
        # While there is no board, whoever founds the run may be gone before it was heard of.
        self._succession.looked(lease, self._size if said.board is not None else 1)
        return said.revision

    @property
    def _size(self) -> int:
        """How many nodes there are, as far as one knows."""
        return self._view.world.size if self._view.world is not None else self._view.bounds.max

    def _say_left(self, message: Left) -> bool:
        """The word outlives the node, on the run's own lease; so whoever leads will find it (rule 8).

        False where it is to be tried again in a moment.
        """
        lease, board = self._lease, self._reading.board
        if lease is None or (board is not None and board.ended is not None):
            return True
        if not self._said_at:
            return self._go_without_trace(message)
        if board is None and message.seal_id:
            return self._board_stays_away()
        key = self._keys.node(message.node_id)
        # Before there is a run, nobody has taken the node in yet, and it is enough that it takes its word back.
        last = delete_op(key) if board is None else put_op(key, codec.encode_message(message), lease=board.lease)
        try:
            outcome = self._client.transaction([compare(key, lease=lease.id)], [last], again=True)
        except EtcdLeaseLostError:
            return self._board_stays_away()
        if not outcome.succeeded and self._client.time_to_live(lease).ttl <= 0:
            raise EtcdLeaseLostError(f"lease {lease.id:x} has expired or was revoked")
        self._said_at = outcome.revision
        return message.reason is Reason.FINISHED or self._go_without_trace(message)

    def _go_without_trace(self, message: Left) -> bool:
        """What is in doubt may be in etcd all the same: a word, and the leader's key, by which nobody else could lead."""
        if not self._succession.is_in_doubt or self._succession.leads:
            return True  # who leads and knows it publishes its own last word
        with self.changed:
            if self._to_say is not message:
                return True  # the node has come back meanwhile
            self._is_worn = True
        self._shed()
        return True

    def _board_stays_away(self) -> bool:
        """The board is gone, or the lease that it hangs on: the run has ended, or its leader is about to write it anew.

        Whoever has a last word waits for that, but not for ever: all of the run may have been deleted, its leader too.
        """
        for _ in self._reading.news():  # what has arrived comes before what is there now
            self._hear()
        board = self._reading.board
        if board is not None and board.ended is not None:
            return True
        self._reading.look()
        if not self._board_by:
            self._board_by = time.monotonic() + 2 * self._lease_ttl_s
            log.info("run %r: its board is gone from etcd; its leader may be about to write it anew", self._run_id)
        self._unsaid = time.monotonic() >= self._board_by
        return self._unsaid

    def _say_wish(self) -> None:
        if self._to_wish:
            lease = self._own_lease()
            self._say_and_lead(lease, [put_op(self._wish, self._to_wish, lease=lease.id)])
            with self.changed:
                self._to_wish = b""
                self.changed.notify_all()

    def _own_lease(self) -> Lease:
        """The node's lease; one that is lost is never replaced under the same name (rule 9)."""
        lease = self._lease
        if lease is None:
            lease = self._client.grant(self._lease_ttl_s, ahead=True, wake=self._wake)
            lease.when_lost = self._wake
            self._lease = lease
        lease.check()
        return lease

    # What the leader says -----------------------------------------------------------------------------------------

    def _hear(self) -> None:
        reading = self._reading
        lacks = self._said_at and lacks_place(self._view, reading.board, reading.told)
        self._look_up_at = reading.look_up() if lacks else math.inf
        if lacks_word(self._view, reading.board, reading.told) and reading.board_at > self._said_at > 0:
            until = reading.give_time("the word before the end", _LAST_WORD_S)
            if until:
                self._look_up_at = until
                return
        told = reading.take_told()

        def hear(view: View) -> View:
            if reading.node_id not in ("", view.node.id):
                return view  # it was told to another, whom this one was before
            for said in list(notices(view, reading.board, told)):
                view = core.hear(view, said)
            return view

        self._change(hear)

    # Who leads ----------------------------------------------------------------------------------------------------

    def _look_after_leader(self) -> None:
        lease, view, board = self._lease, self._view, self._reading.board
        if lease is None or view.state not in _TAKES_PART:
            self._succession.rest(self._lease_ttl_s)
            return
        named_at = None
        if board is not None:
            named_at = self._reading.board_at if view.node.id in board.successors else 0
        if self._succession.is_vacant(lease, self._size, named_at=named_at, within_s=self._patience_s()):
            self._say_and_lead(lease, [])

    # How it goes --------------------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        """etcd has given this node up (rule 9): it never writes again under the same name."""
        with self.changed:
            self._forget()
            self._unsaid = self._unsaid or isinstance(self._to_say, Left)
            self._to_say, view = None, self._view
            if view.world is not None:
                self._view = core.hear(view, Fenced(view.world.seal_id, f"this node was given up: {why}"))
            elif view.state in (State.WAITING, State.SPARE):
                now = time.monotonic()
                left_s = max(view.deadline - now, 0.001) if view.deadline is not None else 1e6
                reborn = core.reborn(view, self._reborn(view.node))
                self._view, self._to_say = core.join(reborn, now, left_s)
            self.changed.notify_all()

    def _shed(self) -> None:
        """The node's old name, and its lease with all that hangs on it."""
        lease = self._lease
        self._forget()
        if lease is not None and not lease.lost.is_set():
            try:
                self._client.revoke(lease, timeout_s=HURRY_S)
            except (EtcdClosedError, EtcdForkError):
                raise
            except EtcdError as exc:
                log.info("run %r: the lease of the node's old name was left to expire: %s", self._run_id, exc)

    def _forget(self) -> None:
        """All that belongs to the node's old name."""
        if self._lease is not None:
            self._lease.release()
        self._reading.forget()
        self._succession.forget()
        self._lease, self._said_at = None, 0

    def _ask(self) -> None:
        """Something is asked of the link, with `changed` held: what was refused before is forgotten."""
        self._refusal, self._unsaid, self._board_by = None, False, 0.0
        self._asked += 1

    def _refuse(self, why: str, asked: int) -> None:
        """What was asked so far; what was asked since is for the next turn to answer."""
        with self.changed:
            if asked == self._asked:
                self._refusal, self._to_say = why, None
                self.changed.notify_all()
        self._reading.stand_down()

    def _fail(self, why: str, *, is_outage: bool = True) -> None:
        """etcd cannot be reached; or it can, and takes nothing, which is what who waits is told."""
        if self._reached or self._trouble != why:
            log.info("run %r: etcd takes no word of this node: %s", self._run_id, why)
        self._trouble, self._reached = why, False
        now = time.monotonic()
        if is_outage:
            self._change(lambda view: core.passed(core.disconnected(view, now), now))
        else:
            told = KeepWaiting(self._view.incarnation, self._view.round_seen, why[:4096])
            self._change(lambda view: core.hear(core.connected(view), told))

    def _patience_s(self) -> float:
        """How long to wait for etcd, or between two turns: that it is away is noticed in time, and when the grace is over."""
        view = self._view
        if view.out_since is None:
            return self._lease_ttl_s
        left_s = view.out_since + view.settings.outage_grace_s - time.monotonic()
        return min(left_s, self._lease_ttl_s) if left_s > 0 else self._lease_ttl_s

    def _well(self) -> None:
        lease = self._lease
        if lease is not None and lease.trouble is not None and lease.remaining_s() <= 0:
            return
        was_reached, self._reached = self._reached, True
        if was_reached and self._view.out_since is None:
            return
        self._change(lambda view: view if view.out_since is None else core.connected(view), always=not was_reached)

    def _change(self, change: Callable[[View], View], *, always: bool = False) -> None:
        with self.changed:
            before, self._view = self._view, change(self._view)
            if always or differs(before, self._view):
                self.changed.notify_all()

    def _end(self) -> None:
        """The last steps, each of them in a hurry."""
        self._succession.end(self._said_at, HURRY_S)
        self._reading.forget()
        lease = self._lease
        if lease is not None and not lease.lost.is_set():
            lease.release()
            try:
                self._client.revoke(lease, timeout_s=HURRY_S)
            except EtcdUnavailableError as exc:
                log.info("run %r: the node's lease was left to expire: %s", self._run_id, exc)
            except EtcdError as exc:
                log.debug("run %r: the node's lease was not revoked: %s", self._run_id, exc)
