"""Collects how workers failed in one world, and gives every node of it the same verdict; bounded in memory.

A launcher reports until it is answered with a verdict, so a new server learns all that the one before it knew.  A verdict is
given when every node that is still here has reported, or a moment after the first report; then it stands.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from rallypoint.verdict import Failure, Verdict, judge

WAIT_S = 2.0
"""How long the first report waits for the others: a worker that raised may end a while after the peers that it takes along."""
CASES = 4
"""Worlds of a run whose reports are kept."""
FAILURES = 256
"""Failures of a world that are kept with their last lines; of more, only that they failed."""


@dataclass
class _Case:
    """What was reported of one world."""

    opened: float
    failures: dict[int, Failure] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    verdict: Verdict | None = None


class Verdicts:
    """The cases of all runs of a server."""

    def __init__(self) -> None:
        self._cases: OrderedDict[tuple[str, str], _Case] = OrderedDict()

    def hear(
        self,
        run_id: str,
        seal_id: str,
        node_id: str,
        failures: tuple[Failure, ...],
        now: float,
        *,
        awaited: set[str],
        lost: tuple[str, ...],
    ) -> Verdict | None:
        """A node reports how its workers failed, each so many seconds ago; the verdict, once there is one.

        `awaited` are the nodes of the world that can still report, `lost` the names of those that were lost without a word.
        """
        case = self._case(run_id, seal_id, now)
        if case.verdict is None:
            for failure in failures:
                if failure.rank not in case.failures:
                    kept = failure if len(case.failures) < FAILURES else msgspec.structs.replace(failure, tail=())
                    case.failures[failure.rank] = msgspec.structs.replace(kept, at=now - failure.at)
            case.reported.add(node_id)
            if awaited <= case.reported or now - case.opened >= WAIT_S:
                case.verdict = judge(case.failures.values(), lost)
        return case.verdict

    def forget(self, run_id: str) -> None:
        """A run has ended."""
        for key in [key for key in self._cases if key[0] == run_id]:
            del self._cases[key]

    def _case(self, run_id: str, seal_id: str, now: float) -> _Case:
        key = (run_id, seal_id)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = _Case(now)
            of_run = [other for other in self._cases if other[0] == run_id]
            for other in of_run[:-CASES]:
                del self._cases[other]
        return case
