"""Which worker failed first, and why: a pure judgement on what all launchers report.

A crash is followed by others: peers lose their connection, and launchers stop what is left.  The worker that *causes* this
may well end last, because it prints a traceback while its peers abort at once.  So a failure that names a peer or the
network, that happened after a node was lost, or that the launcher itself brought about, is a consequence as long as there is
another failure that explains it; among those that explain themselves the earliest counts.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Annotated

import msgspec
from msgspec import Meta

from rallypoint.messages.types import Count, Moment, Name, Text

__all__ = ["Failure", "Verdict", "judge", "signal_name", "summary_of"]

LARGEST = 16 * 1024
"""Bytes of a report, at most."""

_NETWORK = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|peer|socket|timed? ?out|unreachable|"
    r"NCCL|gloo|ProcessGroup|DistNetworkError|DistBackendError|DistStoreError|coordination service|UNAVAILABLE|"
    r"heartbeat|barrier|watchdog",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception|Exit|Interrupt|Warning|Failure|Fault)\b.*")
_PLACE = re.compile(r'^ *File "([^"]+)", line (\d+)')
_CRASH_DUMP = re.compile(
    r'Fatal Python error: Aborted|(Current t|T)hread 0x|File "|<(no Python|truncated|invalid) |Extension modules: |\.\.\.$'
)
"""Lines in which Python shows the stacks of a process that crashes: what the program itself said stands before them."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_BY_ITSELF = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one worker ended that did not end well.

    `at` is a moment on the server's clock; in a report, how many seconds ago it was.  `stopped`: its launcher ended it; `after_loss`: a node was already lost then.
    `tail` are the last lines of its stderr.
    """

    rank: Count
    node: Name
    exit_code: Count | None
    signal: Count | None = None
    at: Moment = 0.0
    stopped: bool = False
    after_loss: bool = False
    out_of_memory: bool = False
    tail: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()

    @property
    def code(self) -> int:
        """The exit code as a shell tells it."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)

    @property
    def why(self) -> str:
        """What it died of, in words."""
        if self.out_of_memory:
            return "was killed because memory ran out"
        said = summary_of(self.tail)
        how = f"ended with code {self.exit_code}" if self.signal is None else f"was ended by {signal_name(self.signal)}"
        return f"{how}: {said}" if said else how

    @property
    def signature(self) -> str:
        """What it died of, and where: the same for two failures that are alike."""
        place = next((match for line in reversed(self.tail) if (match := _PLACE.search(line))), None)
        where = f" ({PurePath(place[1]).name}, line {place[2]})" if place is not None else ""
        return _ADDRESS.sub("0x…", self.why) + where

    @property
    def names_a_peer(self) -> bool:
        """Whether what it said last is about its peers or the network."""
        if self.out_of_memory or self.signal in _BY_ITSELF:
            return False
        return bool(
            _NETWORK.search(summary_of(self.tail))
            or (self.signal and _NETWORK.search("\n".join(_said(self.tail)[-15:])))
        )

    @property
    def is_genuine(self) -> bool:
        """Whether it explains itself: neither its launcher nor a peer brought it about."""
        return not (self.stopped or self.after_loss or self.names_a_peer)


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What every node prints: the failure that came first, those that followed from it, or the nodes that were lost."""

    first: Failure | None
    followed: tuple[int, ...] = ()
    """Ranks that failed only because of it."""
    independent: tuple[int, ...] = ()
    """Ranks that failed by themselves too, later."""
    lost: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The verdict for people."""
        first = self.first
        if first is None:
            nodes = ", ".join(self.lost)
            return [f"no worker failed by itself: {nodes} {'was' if len(self.lost) == 1 else 'were'} lost"]
        lines = [f"rank {first.rank} on {first.node} failed first: it {first.why}"]
        if self.independent:
            lines.append(
                f"{_ranks(self.independent)} failed by {'itself' if len(self.independent) == 1 else 'themselves'} after that"
            )
        if self.followed:
            lines.append(f"{_ranks(self.followed)} failed only because of it")
        if first.tail:
            lines += [f"the last lines of rank {first.rank}:", *(f"  {line}" for line in first.tail)]
        return lines


def judge(failures: Iterable[Failure], lost: Sequence[str] = ()) -> Verdict:
    """Which of them came first; the nodes that were `lost` without a report explain what names a peer."""
    by_time = sorted(failures, key=lambda failure: (failure.at, failure.rank))
    genuine = [f for f in by_time if f.is_genuine]
    if not genuine and not lost:
        # Nothing explains itself: the earliest is the best guess, unless its own launcher ended it.
        genuine = [f for f in by_time if not f.stopped][:1] or by_time[:1]
    if not genuine:
        return Verdict(None, tuple(f.rank for f in by_time), (), tuple(lost))
    first = genuine[0]
    independent = {f.rank for f in genuine[1:]}
    followed = tuple(f.rank for f in by_time if f.rank != first.rank and f.rank not in independent)
    return Verdict(first, followed, tuple(sorted(independent)), tuple(lost))


def summary_of(tail: Sequence[str]) -> str:
    """The line that says what went wrong: the last exception, or else the last line with anything in it."""
    lines = _said(tail)
    for line in reversed(lines):
        if _EXCEPTION.match(line):
            return line[:500]
    return lines[-1][:500] if lines else ""


def _said(tail: Sequence[str]) -> list[str]:
    """The lines of the program itself."""
    lines = (line.strip() for line in tail)
    return [line for line in lines if line and not _CRASH_DUMP.match(line)]


def shortened(failure: Failure, limit: int = LARGEST) -> Failure:
    """A failure that fits into a report: the oldest lines of its tail go first."""
    tail = list(failure.tail)
    while tail and len(msgspec.json.encode(msgspec.structs.replace(failure, tail=tuple(tail)))) > limit:
        tail = tail[1:] if len(tail) > 1 else [tail[0][-limit // 8 :]] if len(tail[0]) > limit // 8 else []
    return msgspec.structs.replace(failure, tail=tuple(tail))


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
