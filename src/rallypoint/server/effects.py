"""What a coordinator asks of its shell: records to write, bytes to send, connections to close, and what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from rallypoint.core.events import Lost
from rallypoint.core.model import Run
from rallypoint.messages.requests import Left


@dataclass
class RunChange:
    """Something worth recording: which run, why, the run before and after, the nodes that were lost, and one that left."""

    run_id: str
    why: str
    before: Run
    after: Run
    losses: tuple[Lost, ...] = ()
    leave: Left | None = None


@dataclass(frozen=True)
class ToRecord:
    """A run as it is to be recorded, with the epoch of the server and the ranks of the server's own process."""

    run: Run
    epoch: int
    own_ranks: tuple[int, ...] = ()


@dataclass
class Effects:
    """What the shell is to do.  Of a run that is both in `forgotten` and in `records`, the record is the newer.

    What follows from a record comes out of `Coordinator.recorded`, once the shell has written it (rule 17c).
    """

    records: list[ToRecord] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    epochs_heard: list[tuple[str, int]] = field(default_factory=list)
    """Incarnations with higher epochs than this server's, as nodes have heard them elsewhere (rule 17d)."""
    deserted: list[Run] = field(default_factory=list)
    """Runs whose claim is to be given up, because another process may hear the nodes that this one does not (17e)."""
    sends: list[tuple[int, bytes]] = field(default_factory=list)
    urgent: set[int] = field(default_factory=set)
    """Callers that are sent more than the reason for a wait, which can wait for a moment itself."""
    hang_ups: list[tuple[int, str]] = field(default_factory=list)
    happenings: list[RunChange] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do; after a mere heartbeat there is not."""
        due = self.sends or self.hang_ups or self.happenings or self.records or self.forgotten or self.epochs_heard
        return bool(due)
