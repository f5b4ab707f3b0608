"""Collects how workers failed in one world, and gives every node of it the same verdict; bounded in memory.

A launcher reports until it is answered with a verdict, so a new server learns all that the one before it knew.  A verdict is
given when every node that is still here has reported, or a moment after a failure that explains itself, or a while after the
first report; then it stands.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import msgspec

from rallypoint.core.model import Phase, Run
from rallypoint.protocol import AskVerdict, VerdictGiven
from rallypoint.verdict import Failure, Verdict, judge

CLEAR_S = 0.3
"""How long a failure that explains itself waits for an earlier one."""
WAIT_S = 2.0
"""How long other failures wait: a worker that raised may end a while after the peers that it takes along."""
CASES = 4
"""Worlds of a run whose reports are kept."""
RANKS = 10_000
"""Failures of a world that are kept at all."""
FAILURES = 256
"""Failures of a world that are kept with their last lines; of more, only that they failed."""


@dataclass
class Case:
    """What was reported of one world."""

    opened: float
    failures: dict[int, Failure] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    verdict: Verdict | None = None


class Verdicts:
    """The cases of all runs of a server."""

    def __init__(self) -> None:
        self._cases: dict[tuple[str, str], Case] = {}

    def answer(
        self, ask: AskVerdict, asker: tuple[str, str], run: Run | None, here: Container[tuple[str, str]], now: float
    ) -> VerdictGiven:
        """The answer to a node; `here` are run and id of the nodes that are connected."""
        run_id, node_id = asker
        if run is None or run.world is None:
            # A server that has just started has yet to hear which world there is.
            return VerdictGiven(ask.number, None, run is None or run.phase is Phase.RECOVERING)
        awaited, lost = {node_id}, []
        if run.world.seal_id == ask.seal_id:
            unfinished = [member for member in run.world.members if member.id not in run.finished]
            awaited |= {member.id for member in unfinished if (run_id, member.id) in here}
            lost = [member.name for member in unfinished if (run_id, member.id) not in here]
        case = self.hear(run_id, ask.seal_id, node_id, ask.failures, now, awaited=awaited, lost=tuple(lost))
        return VerdictGiven(ask.number, case.verdict if case is not None else None, case is not None)

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
    ) -> Case | None:
        """A node reports how its workers failed, each so many seconds ago; the case with the verdict, once there is one.

        `awaited` are the nodes of the world that can still report, `lost` the names of those that are gone without a report.
        None where no worker of the world is known to have failed.
        """
        case = self._case(run_id, seal_id, now, opens=bool(failures))
        if case is None or case.verdict is not None:
            return case
        for failure in failures:
            if failure.rank not in case.failures and len(case.failures) < RANKS:
                kept = failure if len(case.failures) < FAILURES else msgspec.structs.replace(failure, tail=())
                case.failures[failure.rank] = msgspec.structs.replace(kept, at=now - failure.at)
        case.reported.add(node_id)
        wait_s = CLEAR_S if any(failure.is_genuine for failure in case.failures.values()) else WAIT_S
        if awaited <= case.reported or now - case.opened >= wait_s:
            case.verdict = judge(case.failures.values(), lost)
        return case

    def forget(self, run_id: str) -> None:
        """A run has ended."""
        for key in [key for key in self._cases if key[0] == run_id]:
            del self._cases[key]

    def _case(self, run_id: str, seal_id: str, now: float, *, opens: bool) -> Case | None:
        key = (run_id, seal_id)
        case = self._cases.get(key)
        if case is None and opens:
            case = self._cases[key] = Case(now)
            for other in [other for other in self._cases if other[0] == run_id][:-CASES]:
                del self._cases[other]
        return case
