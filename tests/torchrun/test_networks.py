"""Several hosts: known by address only, with a second interface, with IPv6 only, with a name that comes late."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rallypoint.client.addresses import own_address
from rallypoint.elastic.etcd_server import find_etcd
from tests.support.network_namespaces import Lan, with_hosts_file
from tests.torchrun.agents import FAST, Agent
from tests.torchrun.job import Job, formed, learned, started

pytestmark = pytest.mark.root


@pytest.fixture
def lan() -> Iterator[Lan]:
    made = Lan()
    try:
        yield made
    finally:
        made.end()


class Hosted:
    """What the hosts of a test meet at: etcd on one of them, or nothing but the first of them that comes."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder, self._stack = job, folder, ExitStack()

    def on(self, host: Sequence[str], address: str) -> dict[str, Any]:
        """How agents are told of it, which is at this address of this host."""
        if self._job.backend.name == "rallypoint":
            return {"endpoint": f"{_scheme(self._job)}{address}:29400", "options": {**FAST, "is_host": None}}
        url = f"http://{address}:2379"
        words = ["--listen-client-urls", url, "--advertise-client-urls", url]
        etcd = [find_etcd(), "--data-dir", str(self._folder / "etcd"), *words]
        with (self._folder / "etcd.log").open("wb") as log:
            # It ends with this process, however that ends.
            command = [*host, "setpriv", "--pdeathsig", "KILL", *etcd]
            process = self._stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        self._stack.callback(process.kill)
        return {"endpoint": f"{address}:2379", "options": {}}

    def end(self) -> None:
        self._stack.close()


def _scheme(job: Job) -> str:
    """How the endpoint begins: with that of a store, or with nothing."""
    scheme, mark, _ = job.backend.endpoint.rpartition("://")
    return scheme + mark


@pytest.fixture
def hosted(job: Job, lan: Lan, tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(job, tmp_path)
    try:
        yield made
    finally:
        made.end()


def _trains(job: Job, *agents: Agent, master: str = "") -> None:
    places = formed(*agents)
    assert not master or {place["master"].split()[0] for place in places} == {master}
    for agent in agents:
        agent.reach(20)
    learned(*agents)
    job.finish(*agents)


def test_hosts_that_know_each_other_only_by_address(job: Job, lan: Lan, hosted: Hosted) -> None:
    """And the first of them serves, as nobody else does."""
    a, b = lan.host("a", "10.77.0.1/24"), lan.host("b", "10.77.0.2/24")
    given = {**hosted.on(a, "10.77.0.1"), "script": job.works()}
    first, second = (
        job.agent(name, "2", before=before, **with_rank(given, rank))
        for rank, (name, before) in enumerate({"a": a, "b": b}.items())
    )
    assert {place["master"].split()[0] for place in started(first, second)} == {"10.77.0.1"}
    job.finish(first, second)


@pytest.mark.soak
def test_a_second_interface_is_used_where_it_is_asked_for(job: Job, lan: Lan, hosted: Hosted) -> None:
    hosts = {n: lan.host(f"host{n}", f"10.77.0.{n}/24", f"10.88.0.{n}/24") for n in (1, 2)}
    given = {**hosted.on(hosts[1], "10.77.0.1"), "environment": {"GLOO_SOCKET_IFNAME": "eth1"}}
    agents = [
        job.agent(f"n{n}", "2", before=before, torchrun=("--local-addr", f"10.88.0.{n}"), **with_rank(given, n - 1))
        for n, before in hosts.items()
    ]
    _trains(job, *agents, master="10.88.0.1")


@pytest.mark.soak
def test_hosts_that_have_ipv6_only(job: Job, lan: Lan, hosted: Hosted) -> None:
    hosts = {n: lan.host(f"host{n}", f"fd77::{n}/64") for n in (1, 2)}
    given = {**hosted.on(hosts[1], "[fd77::1]"), "environment": {"GLOO_SOCKET_IFNAME": "eth0"}}
    agents = [job.agent(f"n{n}", "2", before=before, **with_rank(given, n - 1)) for n, before in hosts.items()]
    _trains(job, *agents, master="fd77::1")


def with_rank(given: dict[str, Any], rank: int) -> dict[str, Any]:
    return {**given, "options": {**given["options"], "rank": rank}}


@pytest.mark.soak
def test_a_name_that_resolves_only_later_is_waited_for(job: Job, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n", encoding="ascii")
    port = job.backend.endpoint.split(",")[0].rpartition(":")[2]
    given: dict[str, Any] = {"endpoint": f"{_scheme(job)}server.late:{port}", "before": with_hosts_file(str(hosts))}
    agents = [job.agent(name, "2", **given) for name in ("a", "b")]
    for agent in agents:
        agent.says("server.late")
    hosts.write_text("127.0.0.1 localhost server.late\n", encoding="ascii")
    # What a name means on one machine may be a loopback address, as in Debian's hosts file: nodes give one that others reach.
    _trains(job, *agents, master=own_address())
