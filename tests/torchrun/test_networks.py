"""Several hosts: known by address only, with a second interface, with IPv6 only, with a name that comes late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.torchrun.harness import FAST, Agent
from tests.torchrun.lan import Lan, with_hosts_file
from tests.torchrun.stage import Job, formed, learned

pytestmark = [pytest.mark.root, pytest.mark.parametrize("backend", ["rallypoint"], indirect=True)]

EMBEDDED = {**FAST, "is_host": None}


@pytest.fixture
def lan() -> Iterator[Lan]:
    made = Lan()
    try:
        yield made
    finally:
        made.end()


def _trains(job: Job, *agents: Agent, master: str) -> None:
    places = formed(*agents)
    assert {place["master"].split()[0] for place in places} == {master}
    for agent in agents:
        agent.reach(20)
    learned(*agents)
    job.finish(*agents)


def test_hosts_that_know_each_other_only_by_address(job: Job, lan: Lan) -> None:
    """And the first of them serves, as nobody else does."""
    a, b = lan.host("a", "10.77.0.1/24"), lan.host("b", "10.77.0.2/24")
    given: dict[str, Any] = {"endpoint": "10.77.0.1:29400", "environment": {"GLOO_SOCKET_IFNAME": "eth0"}}
    first = job.agent("a", "2", before=a, options={**EMBEDDED, "rank": 0}, **given)
    second = job.agent("b", "2", before=b, options=EMBEDDED, **given)
    _trains(job, first, second, master="10.77.0.1")


@pytest.mark.soak
def test_a_second_interface_is_used_where_it_is_asked_for(job: Job, lan: Lan) -> None:
    hosts = {n: lan.host(f"host{n}", f"10.77.0.{n}/24", f"10.88.0.{n}/24") for n in (1, 2)}
    agents = [
        job.agent(
            f"n{n}",
            "2",
            endpoint="10.77.0.1:29400",
            before=before,
            options={**EMBEDDED, "rank": n - 1},
            torchrun=("--local-addr", f"10.88.0.{n}"),
            environment={"GLOO_SOCKET_IFNAME": "eth1"},
        )
        for n, before in hosts.items()
    ]
    _trains(job, *agents, master="10.88.0.1")


@pytest.mark.soak
def test_hosts_that_have_ipv6_only(job: Job, lan: Lan) -> None:
    hosts = {n: lan.host(f"host{n}", f"fd77::{n}/64") for n in (1, 2)}
    agents = [
        job.agent(
            f"n{n}",
            "2",
            endpoint="[fd77::1]:29400",
            before=before,
            options={**EMBEDDED, "rank": n - 1},
            environment={"GLOO_SOCKET_IFNAME": "eth0"},
        )
        for n, before in hosts.items()
    ]
    _trains(job, *agents, master="fd77::1")


@pytest.mark.soak
def test_a_name_that_resolves_only_later_is_waited_for(job: Job, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n", encoding="ascii")
    port = job.backend.endpoint.rpartition(":")[2]
    given: dict[str, Any] = {"endpoint": f"authority.late:{port}", "before": with_hosts_file(str(hosts))}
    agents = [job.agent(name, "2", **given) for name in ("a", "b")]
    for agent in agents:
        agent.says("the authority at authority.late")
    hosts.write_text("127.0.0.1 localhost authority.late\n", encoding="ascii")
    _trains(job, *agents, master="127.0.0.1")
