"""Long random histories where client and server are of different kinds: they do what a dictionary would."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis.stateful import rule

from rallypoint.stores import Store
from tests.stores.test_model import KEYS, Histories
from tests.support.store_kinds import SOON
from tests.support.torch_store_kinds import TORCH_KINDS


class _Mixed(Histories):
    kind = ""

    def open(self) -> list[Store]:
        self._stack = ExitStack()
        open_store = TORCH_KINDS[self.kind].make(self._stack)
        return [open_store(), open_store()]

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        super().get(key)
        # torch's client waits before it gets, even for what is there: in no time at all it would not succeed.
        self.store.set_timeout(SOON)

    def teardown(self) -> None:
        self._stack.close()


class OursOnTheirs(_Mixed):
    kind = "tcp on torch's server"


class TheirsOnOurs(_Mixed):
    kind = "torch on our server"


class TheirsOnTheirs(_Mixed):
    kind = "torch"


TestOursOnTheirs = OursOnTheirs.TestCase
TestTheirsOnOurs = TheirsOnOurs.TestCase
TestTheirsOnTheirs = TheirsOnTheirs.TestCase
for case in (TestOursOnTheirs, TestTheirsOnOurs, TestTheirsOnTheirs):
    case.settings = settings(max_examples=10, stateful_step_count=40)
del case
