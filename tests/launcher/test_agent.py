"""What a launcher does with an event, where no real job would bring it at that moment every time."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.launcher import agent
from rallypoint.launcher.agent import Agent
from rallypoint.launcher.round import RoundChange
from rallypoint.verdict import Failure


class Half:
    """A round in which one worker lost its peer, and the other one stands still."""

    seal_id = "s1"
    running = True
    failures = (Failure(0, "a", 1, tail=("ConnectionResetError: Connection closed by peer",)),)


class Plan:
    def __init__(self) -> None:
        self.options = {"max_restarts": 3, "restart_window": None, "no_progress": 3}


def test_the_cause_is_not_awaited_on_this_node_once_another_is_known_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "CAUSE_S", 1e6)
    parts: Any = (Plan(), None, None)
    launcher = Agent(*parts)
    half: Any = Half()
    launcher._events.put(RoundChange("s0", "of the last round"))
    launcher._events.put(RoundChange("s1", "b was lost"))
    launcher._await_the_cause(half)
    assert launcher._events.empty()
