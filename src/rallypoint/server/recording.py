"""What the recorder is told of a happening in a run."""

from __future__ import annotations

from rallypoint import events
from rallypoint.core.model import Phase, Reason, Run, find_waiter
from rallypoint.server.coordinator import Happening


def tell(happening: Happening) -> None:
    """Record every sealed world, loss, leave, break and close, with its reason."""
    before, after, run_id = happening.before, happening.after, happening.run_id
    for loss in happening.losses:
        if _takes_part(before, loss.node_id):
            events.record("lost", run_id, loss.why, node=loss.node_id)
    if happening.leave is not None and happening.leave.reason is not Reason.FINISHED:
        reason = happening.leave.reason.value
        events.record("left", run_id, happening.why, node=happening.leave.node_id, reason=reason)
    world = after.world
    if before.current is not None and after.current is not before.current:
        events.record("broken", run_id, happening.why, round=before.current.round, seal_id=before.current.seal_id)
    if world is not None and after.current is world and (before.world is None or before.world.seal_id != world.seal_id):
        members = [node.id for node in world.members]
        events.record(
            "sealed",
            run_id,
            happening.why,
            round=world.round,
            seal_id=world.seal_id,
            incarnation=world.incarnation,
            members=members,
        )
    if len(after.finished) > len(before.finished):
        events.record("finished", run_id, happening.why)
    if after.phase is Phase.CLOSED and before.phase is not Phase.CLOSED and after.closing is not None:
        events.record("closed", run_id, after.closing.why, ending=after.closing.ending.value)


def _takes_part(run: Run, node_id: str) -> bool:
    """Whether a node that is gone was awaited by anybody; who was told that the run is closed just hangs up."""
    if run.phase is Phase.CLOSED:
        return False
    claimed = run.phase is Phase.RECOVERING and node_id in run.ranks
    return claimed or node_id in run.active or find_waiter(run, node_id) is not None
