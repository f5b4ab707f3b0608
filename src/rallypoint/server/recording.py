"""What the recorder is told of a happening in a run."""

from __future__ import annotations

from rallypoint import recording
from rallypoint.server.effects import RunChange


def tell(happening: RunChange) -> None:
    """Record every sealed world, loss, leave, break and close, with its reason."""
    recording.tell(happening.before, happening.after, happening.why, happening.losses, happening.leave)
