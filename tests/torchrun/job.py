"""A job on this machine: agents as nodes of one run, the server that they meet at, and what a test asks of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.torchrun.agents import PATIENCE_S, TRAIN, WORKER, Agent, Event

RUN_ID = "job"


class Backend(Protocol):
    """A server of its own, apart from the agents."""

    name: str
    endpoint: str
    address: str
    """The endpoint as `rallypoint.join` takes it."""
    options: dict[str, Any]
    """What makes it quick, and lets nodes in; None for what it does not have."""
    access: dict[str, str]
    """Those options by which nodes and commands are let in."""
    has_server: bool
    """Whether it serves the run itself; otherwise one of the agents does."""

    def start(self) -> None:
        """Start it, or start it again at the same endpoint."""

    def kill(self) -> None:
        """SIGKILL."""


class Job:
    """One run and the agents that were started for it."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.checkpoint = folder / "checkpoint.pt"
        self.stop_file = folder / "stop"
        self.agents: list[Agent] = []
        self.run_id = RUN_ID

    def agent(
        self,
        name: str,
        nnodes: str,
        *,
        endpoint: str = "",
        options: dict[str, Any] | None = None,
        torchrun: Sequence[str] = (),
        script: Sequence[str] = (),
        before: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        max_restarts: int = 9,
    ) -> Agent:
        """Start an agent; with no script of its own it trains."""
        given = {**self.backend.options, "node_name": name, **(options or {})}
        config = ",".join(f"{key}={value}" for key, value in given.items() if value is not None)
        train = [str(TRAIN), "--checkpoint", str(self.checkpoint), "--stop-file", str(self.stop_file)]
        arguments = [
            *("--nnodes", nnodes, "--nproc-per-node", "1", "--max-restarts", str(max_restarts)),
            *("--rdzv-backend", self.backend.name, "--rdzv-endpoint", endpoint or self.backend.endpoint),
            *("--rdzv-id", self.run_id, "--rdzv-conf", config, *torchrun),
            *(script or [*train, "--steps", "100000", "--every", "5"]),
        ]
        agent = Agent(name, arguments, before=before, environment=environment)
        self.agents.append(agent)
        return agent

    def works(self, *more: str) -> tuple[str, ...]:
        """A script that needs no torch, and ends when the workers are to finish."""
        return (WORKER, "--until", str(self.stop_file), *more)

    def start(self, names: str, nnodes: str, **details: Any) -> list[Agent]:
        """Start several agents at once."""
        return [self.agent(name, nnodes, **details) for name in names.split()]

    def finish(self, *agents: Agent, within_s: float = 5.0) -> None:
        """Let the workers finish: all agents end well, and close to one another.

        Nothing of ours takes longer than a tenth of a second, but torch's processes take seconds to end on a busy machine.
        """
        self.stop_file.touch()
        for agent in agents:
            agent.expect("done")
        for agent in agents:
            assert agent.exit_code() == 0, agent.account()
        ends = [agent.ended_at or 0.0 for agent in agents]
        assert max(ends) - min(ends) <= within_s, f"the agents ended {max(ends) - min(ends):.1f} s apart"

    def end(self) -> None:
        for agent in self.agents:
            agent.end()


def formed(*agents: Agent, timeout_s: float = PATIENCE_S) -> list[Event]:
    """Wait until these agents, and no others, train in one world; their workers' first lines in it, by rank."""
    places = [agent.expect("training", timeout_s, world_size=len(agents)) for agent in agents]
    assert sorted(place["rank"] for place in places) == list(range(len(agents))), places
    assert len({place["master"] for place in places}) == 1, places
    for agent in agents:
        agent.expect("step", world_size=len(agents))
    return places


def started(*agents: Agent, **wanted: Any) -> list[Event]:
    """Wait until the workers of these agents, and of no others, are in one world; what they said, by agent."""
    places = [agent.expect("started", world_size=len(agents), **wanted) for agent in agents]
    assert sorted(place["rank"] for place in places) == list(range(len(agents))), places
    assert len({place["master"] for place in places}) == 1, places
    return places


def in_order(agents: Sequence[Agent], places: Sequence[Event]) -> list[Agent]:
    """The agents by rank."""
    ranks = {agent.name: place["rank"] for agent, place in zip(agents, places, strict=True)}
    return sorted(agents, key=lambda agent: int(ranks[agent.name]))


def learned(*agents: Agent) -> None:
    """The loss went down, over all rounds."""
    for agent in agents:
        losses = agent.losses()
        assert losses[-1] < 0.9 * losses[0], losses
