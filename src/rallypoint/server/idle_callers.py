"""Callers that take part in no run: how long each may say nothing, and which goes first where there are too many."""

from __future__ import annotations

from rallypoint.server.admission import ServerLimits


class IdleCallers:
    """Connections that have not said who they are, and those that have said nothing else for a while.

    Both tables are in the order of time, the oldest first.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._unknown: dict[int, float] = {}
        self._idle: dict[int, float] = {}

    def opened(self, caller: int, now: float) -> None:
        """A caller connected."""
        self._unknown[caller] = now

    def rests(self, caller: int, now: float) -> None:
        """A caller is known, and takes part in no run, or no longer."""
        self.gone(caller)
        self._idle[caller] = now

    def heard(self, caller: int, now: float) -> None:
        """A caller said something, whole and understood."""
        if caller in self._idle:
            self.rests(caller, now)

    def takes_part(self, caller: int, now: float, *, leaves: bool) -> None:
        """A node spoke in its run; one that leaves has nothing more to say."""
        if leaves:
            self.rests(caller, now)
        else:
            self.gone(caller)

    def gone(self, caller: int) -> None:
        """A caller has hung up."""
        self._unknown.pop(caller, None)
        self._idle.pop(caller, None)

    def excess(self, caller: int, connections: int) -> tuple[int, str] | None:
        """The caller that must go where the newest one is one too many, and why; None where there is room."""
        limits = self._limits
        if connections > limits.connections:
            others = (other for table in (self._unknown, self._idle) for other in table if other != caller)
            return next(
                others, caller
            ), f"{limits.connections} connections are all that this server can hold (ulimit -n)"
        if len(self._unknown) > limits.silent_connections:
            # The oldest of them: one that has something to say has said it by now.
            return next(iter(self._unknown)), f"{len(self._unknown)} connections have not said who they are: try again"
        return None

    def overdue(self, now: float) -> list[tuple[int, str]]:
        """The callers that have said nothing for too long, and why they must go."""
        found = []
        for table, longest_s in ((self._unknown, self._limits.hello_s), (self._idle, self._limits.idle_s)):
            for caller, since in table.items():
                if now - since <= longest_s:
                    break
                found.append((caller, f"nothing was said for {longest_s:.0f} s"))
        return found
