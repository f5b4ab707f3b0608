"""What nodes say beside the document, in the store that they share: beats, announcements, and a bell for news.

So heartbeats do not rewrite the document, many who join at once are taken in with one write, and who waits for news is
woken instead of asking again and again.  Nothing here is needed for the document to be right: where the store is not
one and the same for all nodes, everything goes into the document.

Any store with c10d's `set`, `add`, `check` and `compare_set` will do; it may bring a roll that many sign at once.  A key
is read by comparing it with what it never is, because `get` would wait for a key that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rallypoint.core import codec
from rallypoint.core.events import Message
from rallypoint.document.plans import Heard
from rallypoint.document.silence import EVICTED, is_evicted
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.stores.errors import StoreError

_NEVER = "\x00never"
MOST_AT_ONCE = 2048

FAILURES = (StoreError, RuntimeError, OSError, LookupError, ValueError)
"""What the stores of ours, of torch and of others raise when they cannot be reached."""
CANNOT = (AttributeError, NotImplementedError, TypeError)
"""What a store raises that lacks a method; the second is a RuntimeError, and looked for first."""


class Beside:
    """The keys of one run in a store; all of them stand under the name of the document."""

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._start = f"rallypoint.{run_id}"

    def bell_key(self, nonce: str, epoch: int) -> str:
        """The key that is there once the document has come to this epoch."""
        return f"{self._start}/{nonce}/news/{epoch}"

    def open(self, nonce: str) -> bool:
        """Make the place of a new document; whether the store can do all that is needed."""
        key = f"{self._start}/{nonce}/open"
        try:
            if self._roll(nonce) is not None:
                self._store.set(key, "open")
                return True
            self._store.compare_set(key, "", "open")
            self._store.add(self._count(nonce), 0)
            return bool(self._store.check([key])) and self._peek(key) == b"open"
        except CANNOT:
            return False
        except FAILURES:
            return False

    def is_shared(self, nonce: str) -> bool:
        """Whether this store is the one that the document's founder used."""
        try:
            return bool(self._store.check([f"{self._start}/{nonce}/open"]))
        except CANNOT:
            return False
        except FAILURES as exc:
            raise _away(exc) from exc

    def beat(self, nonce: str, node_id: str, before: str, sign: str) -> str:
        """Replace the last sign of life by the next; what stands there now: another mark where it was given up."""
        key = self._beat(nonce, node_id)
        try:
            there = _text(self._store.compare_set(key, before, sign))
            if there == before and before:
                # The store has lost it, or it would have been replaced.
                there = _text(self._store.compare_set(key, "", sign))
            if there != sign and not is_evicted(there):
                there = _text(self._store.compare_set(key, there, sign))
        except FAILURES as exc:
            raise _away(exc) from exc
        return there

    def signs(self, nonce: str, node_ids: Iterable[str]) -> dict[str, str]:
        """Everybody's sign of life; empty where there is none."""
        names = {node_id: self._beat(nonce, node_id) for node_id in node_ids}
        keys = list(names.values())
        if not keys:
            return {}
        try:
            # Several at once where all are there; `multi_get` would wait for one that is missing.
            if len(keys) > 1 and self._store.check(keys):
                return dict(zip(names, map(_text, self._store.multi_get(keys)), strict=True))
            return {node_id: _text(self._peek(key) or b"") for node_id, key in names.items()}
        except FAILURES as exc:
            raise _away(exc) from exc

    def evict(self, nonce: str, node_id: str, sign: str, by: str) -> bool:
        """Give a node up, if its sign is still the same; whether this call did it."""
        key, mark = self._beat(nonce, node_id), f"{EVICTED} by {by}"
        try:
            there = _text(self._store.compare_set(key, sign, mark))
            if there == sign and sign:
                there = _text(self._store.compare_set(key, "", mark))
        except FAILURES as exc:
            raise _away(exc) from exc
        return there == mark

    def say(self, nonce: str, message: Message, folded: int) -> tuple[int, Sequence[int]]:
        """Announce something; the number that it stands under, and those before it that were not taken in yet."""
        data = codec.encode_message(message)
        try:
            roll = self._roll(nonce)
            if roll is not None:
                ticket = int(roll.sign(data))
                return ticket, [number for number, _ in roll.after(folded) if number < ticket]
            ticket = int(self._store.add(self._count(nonce), 1))
            self._store.set(self._said(nonce, ticket), data)
        except FAILURES as exc:
            raise _away(exc) from exc
        return ticket, range(folded + 1, ticket)

    def pending(self, nonce: str, folded: int, gaps: Iterable[int]) -> Heard:
        """What was announced and not taken in yet; what makes no sense is passed over."""
        messages: list[Message] = []
        missing: list[int] = []
        try:
            roll = self._roll(nonce)
            if roll is not None:
                entries = roll.after(folded)
                return Heard(list(_understood(data for _, data in entries)), entries[-1][0] if entries else folded)
            last = min(int(self._store.add(self._count(nonce), 0)), folded + MOST_AT_ONCE)
            for ticket in (*gaps, *range(folded + 1, last + 1)):
                data = self._peek(self._said(nonce, ticket))
                if data is None:
                    missing.append(ticket)
                    continue
                messages += _understood([data])
        except FAILURES as exc:
            raise _away(exc) from exc
        return Heard(messages, last, tuple(missing))

    def ring(self, nonce: str, epoch: int) -> None:
        """There is news."""
        try:
            self._store.set(self.bell_key(nonce, epoch), "1")
        except FAILURES as exc:
            raise _away(exc) from exc

    def has_rung(self, nonce: str, epoch: int) -> bool:
        """Whether there is news of this epoch."""
        try:
            return bool(self._store.check([self.bell_key(nonce, epoch)]))
        except FAILURES as exc:
            raise _away(exc) from exc

    def tidy(self, nonce: str, first: int, last: int, epoch: int) -> None:
        """Delete what nobody needs any more: announcements that were taken in, a bell that nobody waits for."""
        try:
            if self._roll(nonce) is None:  # what stands on a roll is forgotten by itself
                for ticket in range(first, last + 1):
                    self._store.delete_key(self._said(nonce, ticket))
            if epoch > 0:
                self._store.delete_key(self.bell_key(nonce, epoch))
        except (*CANNOT, *FAILURES):
            return

    def _roll(self, nonce: str) -> Any | None:
        """Where all announcements stand, in a store that brings such a thing: a counter is written by one at a time."""
        return self._store.roll(self._count(nonce)) if hasattr(self._store, "roll") else None

    def _count(self, nonce: str) -> str:
        return f"{self._start}/{nonce}/said"

    def _said(self, nonce: str, ticket: int) -> str:
        return f"{self._start}/{nonce}/said/{ticket}"

    def _beat(self, nonce: str, node_id: str) -> str:
        return f"{self._start}/{nonce}/beat/{node_id}"

    def _peek(self, key: str) -> bytes | None:
        value = self._store.compare_set(key, _NEVER, _NEVER)
        data = value.encode() if isinstance(value, str) else bytes(value)
        return None if data == _NEVER.encode() else data


def _understood(said: Iterable[bytes]) -> Iterator[Message]:
    """The messages that make sense."""
    for data in said:
        try:
            yield codec.decode_message(data)
        except RendezvousStateError:  # noqa: PERF203  # each by itself
            continue


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


def _away(exc: Exception) -> RendezvousConnectionError:
    return RendezvousConnectionError(f"the store beside the document cannot be used: {str(exc) or type(exc).__name__}")
