"""An elected server: a register names the process that serves the run (rule 17)."""

from __future__ import annotations

from collections.abc import Hashable

from rallypoint.client.locator import Locator, Seeker, Target
from rallypoint.forks import run_in_children
from rallypoint.location.election_driver import Candidacy, ElectionDriver

_drivers: dict[Hashable, ElectionDriver] = {}
"""The elections that this process takes part in; touched on the background loop only."""


class ElectedLocator(Locator):
    """Finds the elected server of a run; `where` says in words what the register is.

    Nodes of this process with the same key, run, address and ports share an election.
    """

    def __init__(self, where: str, key: tuple[Hashable, ...], candidacy: Candidacy) -> None:
        self._where, self._candidacy = where, candidacy
        self._key = (*key, candidacy.run_id, candidacy.address, candidacy.ports)
        self._driver: ElectionDriver | None = None
        self._seeker: Seeker | None = None

    async def find(self, seeker: Seeker) -> Target:
        self._seeker = seeker
        if self._driver is None:
            driver = _drivers.get(self._key)
            if driver is None or driver.is_over:
                driver = _drivers[self._key] = ElectionDriver(self._candidacy)
            self._driver = driver
        return await self._driver.find(seeker)

    def welcomed(self, seeker: Seeker, target: Target) -> None:
        if self._driver is not None:
            self._driver.welcomed(seeker, target)

    def failed(self, seeker: Seeker, target: Target, *, refused: bool) -> None:
        if self._driver is not None:
            self._driver.failed(target, refused=refused)

    def beat(self, seeker: Seeker) -> None:
        if self._driver is not None:
            self._driver.beat(seeker)

    def where(self) -> str:
        return self._where

    def explain(self, trouble: str) -> str:
        return trouble if self._driver is None else self._driver.explain(trouble)

    def doubt(self) -> str:
        return "" if self._driver is None else self._driver.doubt()

    @property
    def hosts_medium(self) -> bool:
        return self._driver is not None and self._driver.hosts_medium

    async def release(self, timeout_s: float) -> bool:
        """Leave the election; a process that serves hands over with its last node (rule 17g)."""
        driver, in_time = self._driver, True
        if driver is not None and self._seeker is not None:
            # A node that is interrupted while it waits for the others leaves once more, without waiting.
            in_time = await driver.leave(self._seeker, timeout_s)
            self._forget(driver)
        return in_time

    async def abandon(self) -> None:
        driver = self._driver
        if driver is not None and self._seeker is not None:
            await driver.abandon(self._seeker)
            self._forget(driver)

    def _forget(self, driver: ElectionDriver) -> None:
        self._driver = None
        if driver.is_over and _drivers.get(self._key) is driver:
            del _drivers[self._key]


run_in_children(_drivers.clear)  # a forked child takes part in nothing
