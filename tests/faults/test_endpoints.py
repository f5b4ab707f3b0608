"""What an endpoint may be to the hosts that meet there: names, aliases, loopback, both families, one link (rules 2 and 13).

On two hosts of their own (network namespaces).  In each case one of them serves, the store of the round is at an address that
both reach, or a sentence says at once what is wrong.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from rallypoint.elastic.etcd_server import find_etcd
from tests.support.network_namespaces import Lan
from tests.support.node_processes import Node, Processes
from tests.support.two_hosts import TwoHosts
from tests.support.waiting import until

pytestmark = pytest.mark.root

SILENT = "10.77.0.99"
"""An address to which all packets are lost, and nobody says so."""

ROOM_S = 4.0
"""What a busy machine may take longer."""


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(scope="module")
def lan(stack: ExitStack) -> Lan:
    made = Lan()
    stack.callback(made.end)
    return made


@pytest.fixture(scope="module")
def processes(stack: ExitStack, lan: Lan) -> Processes:
    made = Processes()
    stack.callback(made.end)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def hosts(lan: Lan, processes: Processes, folder: Path) -> TwoHosts:
    """Hosts with two interfaces, both families on the first, and no resolver that answers."""
    made = TwoHosts(lan, processes, folder, "10.77.0.{n}/24", "10.88.0.{n}/24", resolver=SILENT)
    for number, words in enumerate(made.words, 1):
        for address in (f"fd77::{number}/64", f"fe80::77:{number}/64"):
            _run(*words, "ip", "address", "add", address, "dev", "eth0", "nodad")
        for address in (SILENT, "fd77::99"):
            _run(*words, "ip", "neighbour", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "eth0")
    return made


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def now(node: Node) -> float:
    """The time on a node's clock."""
    return float(node.ask("clock", "clock")["monotonic"])


class Case(NamedTuple):
    """What the hosts files say, where the nodes meet, and where the store of rank 0 is then, which is on host a."""

    know: tuple[str, ...]
    at: str
    store: str


CASES = {
    "an address": Case(("",), "10.77.0.1", "10.77.0.1"),
    "a service name": Case(("10.77.0.1 meet.svc.cluster.local",), "meet.svc.cluster.local", "10.77.0.1"),
    "an alias": Case(("10.77.0.1 a.nowhere a meet",), "meet", "10.77.0.1"),
    "a second interface": Case(("10.88.0.1 meet",), "meet", "10.88.0.1"),
    "127.0.1.1": Case(("127.0.1.1 a.nowhere", "10.77.0.1 a.nowhere"), "a.nowhere", "10.77.0.1"),
    "127.0.1.1 beside the address": Case(
        ("127.0.1.1 a.nowhere\n10.77.0.1 a.nowhere", "10.77.0.1 a.nowhere"), "a.nowhere", "10.77.0.1"
    ),
    "IPv6": Case(("fd77::1 meet",), "meet", "fd77::1"),
    "both families": Case(("10.77.0.1 meet\nfd77::1 meet",), "meet", ""),
    "both families, and the second to one": Case(("fd77::1 meet\n10.77.0.1 meet", "10.77.0.1 meet"), "meet", ""),
    "both families, and one to each": Case(("10.77.0.1 meet\nfd77::1 meet", "fd77::1 meet"), "meet", ""),
    "both families, one of which is lost": Case(
        ("10.77.0.1 meet", "fd77::99 meet\n10.77.0.1 meet"), "meet", "10.77.0.1"
    ),
}


@pytest.mark.parametrize("scheme", ["", "c10d://"], ids=["fixed", "c10d"])
@pytest.mark.parametrize("case", CASES)
def test_hosts_meet_at(hosts: TwoHosts, case: str, scheme: str) -> None:
    known, at, store = CASES[case]
    hosts.know(*known)
    (found,) = hosts.meet(hosts.endpoints(at, scheme=scheme), f"{case} {scheme}")
    assert store in ("", found)


@pytest.fixture(scope="module")
def etcd(stack: ExitStack, hosts: TwoHosts, folder: Path) -> None:
    """A member of etcd on host a, at all of its addresses."""
    urls = ("--listen-client-urls", "http://0.0.0.0:2379", "--advertise-client-urls", "http://10.77.0.1:2379")
    command = ["setpriv", "--pdeathsig", "KILL", *hosts.words[0], str(find_etcd()), "--data-dir", str(folder / "etcd")]
    with (folder / "etcd.log").open("wb") as log:
        stack.callback(stack.enter_context(subprocess.Popen([*command, *urls], stdout=log, stderr=log)).kill)


@pytest.mark.parametrize("case", ["an address", "a second interface", "127.0.1.1"])
@pytest.mark.usefixtures("etcd")
def test_hosts_that_elect_a_server_through_etcd_at(hosts: TwoHosts, case: str) -> None:
    known, at, store = CASES[case]
    hosts.know(*known)
    assert hosts.meet([f"etcd://{at}:2379"] * 2, f"etcd {case}", is_host=None) == {store}


@pytest.mark.parametrize("scheme", ["", "c10d://"], ids=["fixed", "c10d"])
def test_hosts_on_one_link_meet_although_their_interfaces_have_different_names(hosts: TwoHosts, scheme: str) -> None:
    """Each names the link in its own way, in the addresses of others too."""
    hosts.know("")
    links = [f"link{number}{scheme[:1]}" for number in (1, 2)]
    for number, (words, link) in enumerate(zip(hosts.words, links, strict=True), 1):
        _run(*words, "ip", "link", "add", "link", "eth1", "name", link, "type", "macvlan", "mode", "bridge")
        _run(*words, "ip", "link", "set", link, "up")
        _run(*words, "ip", "address", "add", f"fe80::88:{number}/64", "dev", link, "nodad")
    names = [f"fe80::88:1%{link}" for link in links]
    at = hosts.endpoints(*(f"[{name}]" for name in names), scheme=scheme)
    assert hosts.meet(at, f"link {scheme}") == set(names)
    for words, link in zip(hosts.words, links, strict=True):
        _run(*words, "ip", "link", "delete", link)


def test_a_name_that_stands_for_several_machines_is_refused_at_once(hosts: TwoHosts) -> None:
    """Each of them would serve the run; told which is to serve, they meet."""
    hosts.know("10.77.0.1 meet\n10.77.0.2 meet")
    at = hosts.endpoints("meet")
    hosts.join(at, "several")
    for number, node in enumerate(hosts.nodes, 1):
        why = node.failed("RendezvousConnectionError")
        assert f"the name meet stands for several machines: 10.77.0.{number} is this one" in why
        assert "set is_host on each node" in why
    for node, is_host in zip(hosts.nodes, (True, False), strict=True):
        node.join(at[0], 2, "told", is_host=is_host)
    hosts.met()


def test_a_standalone_server_that_binds_a_name_for_loopback_says_who_reaches_it(hosts: TwoHosts) -> None:
    hosts.know("127.0.1.1 a.nowhere", "10.77.0.1 a.nowhere")
    command = [*hosts.words[0], sys.executable, "-m", "rallypoint", "serve", "--bind", "a.nowhere:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert "a.nowhere is 127.0.1.1 on this machine, which no other machine reaches" in server.stderr.readline()
        server.terminate()


@pytest.mark.parametrize(
    ("is_host", "seconds"), [(None, 0.0), (True, 0.0), pytest.param(None, 40.0, marks=pytest.mark.soak)]
)
def test_a_name_that_its_own_machine_learns_late_is_served_there(
    hosts: TwoHosts, is_host: bool | None, seconds: float
) -> None:
    hosts.know("")
    a, b = hosts.nodes
    (at, _) = hosts.endpoints("late.nowhere")
    a.join(at, 2, f"late {is_host} {seconds}", is_host=is_host, rank=0, join_timeout=100.0)
    b.join(at, 2, f"late {is_host} {seconds}", is_host=None, join_timeout=100.0)
    began = now(a)
    for node in hosts.nodes:
        until(lambda node=node: any("what late.nowhere is" in line for line in node.errors))  # type: ignore[misc]
    until(lambda: now(a) - began >= seconds, within_s=seconds + 1.0)
    hosts.know("10.77.0.1 late.nowhere")
    assert hosts.met() == {"10.77.0.1"}


@pytest.mark.parametrize(
    ("scheme", "why"),
    {
        "": "the name service has not said for",
        "c10d://": "the name service has not said for",
        "etcd://": "unknown.nowhere:29400: no answer in time",
    }.items(),
    ids=["fixed", "c10d", "etcd-v3"],
)
def test_a_resolver_that_never_answers_costs_no_more_than_the_join_may_take(
    hosts: TwoHosts, scheme: str, why: str
) -> None:
    hosts.know("")
    node = hosts.nodes[0]
    began = now(node)
    node.join(f"{scheme}unknown.nowhere:29400", 2, f"unknown {scheme}", is_host=None, join_timeout=4.0)
    said = node.failed("RendezvousTimeoutError")
    assert now(node) - began < 4.0 + ROOM_S
    assert f"was not joined within 4.0 s: the server at {scheme}unknown.nowhere" in said
    assert any(why in line for line in [said, *node.errors]), (said, node.errors)
