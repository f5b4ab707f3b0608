"""Writing records to the state file without holding up the server: in a thread of its own, many at a time.

A file that cannot be written costs durability only: what was decided is told all the same, and the log says so (rule 14).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from rallypoint import record
from rallypoint.core.model import Run
from rallypoint.errors import RendezvousStateError
from rallypoint.server.effects import Effects
from rallypoint.server.runs import hold_of
from rallypoint.server.state_file import StateFile

log = logging.getLogger("rallypoint.server")


def restored_runs(state: StateFile, now: float) -> Iterator[tuple[Run, int]]:
    """The runs on file, and the epoch of each: it counts the starts of the server."""
    for run_id, data in state.read().items():
        try:
            known = record.decode(data)
        except RendezvousStateError as exc:
            raise RendezvousStateError(f"run {run_id!r} in the state file {state.path}: {exc}") from exc
        yield record.restored(known, now, hold_of(known.settings)), known.epoch + 1


class StateWriter:
    """Records on their way to a state file.  On the server's loop only."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, "rallypoint-state")
        self._changes: dict[str, bytes | None] = {}
        self._awaited: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def write(self, effects: Effects, recorded: Callable[[str], None]) -> None:
        """Write these records soon, and say of each when it is done."""
        self._changes.update(dict.fromkeys(effects.forgotten))
        for each in effects.records:
            written = record.of(each.run, epoch=each.epoch, write_id=secrets.token_hex(8))
            self._changes[each.run.run_id] = record.encode(written)
            self._awaited.append(each.run.run_id)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(recorded))

    async def close(self) -> None:
        """Finish what is being written, and let the file go."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()
        self._state.close()

    async def _write(self, recorded: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._changes:
                changes, self._changes = self._changes, {}
                awaited, self._awaited = self._awaited, []
                try:
                    await loop.run_in_executor(self._thread, self._state.write, changes)
                except OSError as exc:
                    lost = "a restart would not know of the last change of"
                    log.error("%s cannot be written: %s; %s %s", self._state.path, exc, lost, ", ".join(changes))
                for run_id in awaited:
                    # What goes wrong with one run must not keep the others from being told.
                    loop.call_soon(recorded, run_id)
        finally:
            self._task = None
