"""What the recorder is told of a run, wherever it is hosted."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint import events
from rallypoint.core.events import Lost
from rallypoint.core.model import Phase, Run, takes_part
from rallypoint.messages.requests import Left
from rallypoint.messages.types import Reason


def tell(before: Run, after: Run, why: str, losses: Sequence[Lost] = (), leave: Left | None = None) -> None:
    """Record every sealed world, loss, leave, break and close, with its reason."""
    run_id = after.run_id
    for loss in losses:
        if _takes_part(before, loss.node_id):
            events.record("lost", run_id, loss.why, node=loss.node_id)
    if leave is not None and leave.reason is not Reason.FINISHED:
        events.record("left", run_id, why, node=leave.node_id, reason=leave.reason.value)
    world = after.world
    if before.current is not None and (after.current is None or after.current.seal_id != before.current.seal_id):
        events.record("broken", run_id, why, round=before.current.round, seal_id=before.current.seal_id)
    if world is not None and after.current is world and (before.world is None or before.world.seal_id != world.seal_id):
        named = {"round": world.round, "seal_id": world.seal_id, "incarnation": world.incarnation}
        events.record("sealed", run_id, why, **named, members=[node.id for node in world.members])
    if len(after.finished) > len(before.finished):
        events.record("finished", run_id, why)
    if after.phase is Phase.CLOSED and before.phase is not Phase.CLOSED and after.closing is not None:
        events.record("closed", run_id, after.closing.why, ending=after.closing.ending.value)


def _takes_part(run: Run, node_id: str) -> bool:
    """Whether a node that is gone was awaited; a node that was told that the run is closed just hangs up."""
    return run.phase is not Phase.CLOSED and (
        (run.phase is Phase.RECOVERING and node_id in run.ranks) or takes_part(run, node_id)
    )
