"""What the recorder is told of an edit by the node that made it."""

from __future__ import annotations

from rallypoint import events
from rallypoint.core.model import Phase, Run


def tell(before: Run, after: Run, why: str) -> None:
    """Record every sealed world, break and close, with its reason; once in a run, by whoever wrote it."""
    run_id, world = after.run_id, after.world
    if before.current is not None and (after.current is None or after.current.seal_id != before.current.seal_id):
        events.record("broken", run_id, why, round=before.current.round, seal_id=before.current.seal_id)
    if world is not None and after.current is world and (before.world is None or before.world.seal_id != world.seal_id):
        members = [node.id for node in world.members]
        events.record(
            "sealed",
            run_id,
            why,
            round=world.round,
            seal_id=world.seal_id,
            incarnation=world.incarnation,
            members=members,
        )
    if len(after.finished) > len(before.finished):
        events.record("finished", run_id, why)
    if after.phase is Phase.CLOSED and before.phase is not Phase.CLOSED and after.closing is not None:
        events.record("closed", run_id, after.closing.why, ending=after.closing.ending.value)
