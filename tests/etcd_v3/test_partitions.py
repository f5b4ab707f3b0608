"""Networks that fall apart, as root, in namespaces of the test's own: a minority of etcd's members, with nodes on both sides."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.etcd.servers import binary
from tests.etcd_v3.harness import EtcdNode, EtcdStage, by_rank, undisturbed, until
from tests.torchrun.lan import Lan

pytestmark = pytest.mark.root

TTL_S = 3


class Town:
    """Three hosts, each with a member of etcd, on one network for clients and another for the members among themselves."""

    def __init__(self, lan: Lan, folder: Path, version: str, stack: ExitStack) -> None:
        self.lan = lan
        self.hosts = [
            lan.host(f"h{number}", f"10.9.0.{number + 1}/24", f"10.9.1.{number + 1}/24") for number in range(3)
        ]
        self.endpoints = [f"10.9.0.{number + 1}:2379" for number in range(3)]
        peers = ",".join(f"m{number}=http://10.9.1.{number + 1}:2380" for number in range(3))
        for number, host in enumerate(self.hosts):
            client, peer = f"http://10.9.0.{number + 1}:2379", f"http://10.9.1.{number + 1}:2380"
            command = [
                *(binary(version), "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers),
                *("--heartbeat-interval", "100", "--election-timeout", "1000"),
            ]
            with (folder / f"m{number}.log").open("ab") as log:
                process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *host, *command],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
        for number in range(3):
            until(partial(self.is_healthy, number), f"member {number} answers")

    def is_healthy(self, number: int) -> bool:
        """Whether a member answers, and its cluster has a leader."""
        return self.ctl(number, self.endpoints[number], "endpoint", "health").returncode == 0

    def ctl(self, number: int, endpoints: str, *words: str) -> subprocess.CompletedProcess[str]:
        """etcd's own tool, on one of the hosts."""
        program = str(Path(binary("3.5")).with_name("etcdctl"))
        return subprocess.run(
            [*self.hosts[number], program, f"--endpoints={endpoints}", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def leader(self) -> int:
        """The member that leads."""
        for number, endpoint in enumerate(self.endpoints):
            status = self.ctl(0, endpoint, "endpoint", "status", "--write-out=fields")
            fields = dict(line.split(" : ") for line in status.stdout.splitlines() if " : " in line)
            if fields['"MemberID"'] == fields['"Leader"']:
                return number
        raise AssertionError("nobody leads")

    def near(self, number: int) -> str:
        """The endpoints as a node on a host has them: its own member first."""
        return ",".join(self.endpoints[number:] + self.endpoints[:number])

    def cut(self, number: int, *networks: int) -> None:
        """A host is cut off from these of its networks."""
        for network in networks:
            self._switch(f"h{number}{network}", "down")

    def heal(self, number: int) -> None:
        for network in (0, 1):
            self._switch(f"h{number}{network}", "up")

    def _switch(self, port: str, state: str) -> None:
        self.lan._ip(self.lan._switch, "link", "set", port, state)


@contextmanager
def town(folder: Path, version: str) -> Iterator[Town]:
    with ExitStack() as stack:
        lan = Lan()
        stack.callback(lan.end)
        yield Town(lan, folder, version, stack)


@pytest.mark.parametrize("version", ["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def test_a_minority_is_cut_off(stage: EtcdStage, run: str, tmp_path: Path, version: str) -> None:
    with town(tmp_path, version) as place:
        nodes: list[EtcdNode] = [stage.node(f"n{number}", before=place.hosts[number]) for number in range(3)]
        for number, node in enumerate(nodes):
            node.join(place.near(number), "2:3", run, lease_ttl=TTL_S, last_call_timeout=30.0)
        by_rank(nodes, round=1)
        # A member that only the other members have lost: nodes go to those.
        lonely = next(number for number in range(3) if number != place.leader())
        place.cut(lonely, 1)
        until(lambda: not place.is_healthy(lonely), "it is alone")
        undisturbed(nodes)
        place.heal(lonely)
        until(lambda: place.is_healthy(lonely), "it is back")
        undisturbed(nodes)
        # A whole host, be it the one that leads: its node is missed by the others, and itself told nothing.
        place.cut(lonely, 0, 1)
        alone, rest = nodes[lonely], [node for number, node in enumerate(nodes) if number != lonely]
        for node in rest:
            assert node.changed()["why"] == f"{alone.name} was lost: its lease ended"
            node.again()
        by_rank(rest, round=2, size=2)
        assert alone.ask("outage", "outage", seconds=0.1)["still"]
        assert alone.waiting() == 0
        assert alone.heard("changed") == []
        place.heal(lonely)
        # It learns that it is out, and comes back as another.
        alone.changed()
        assert alone.waiting() == 1
        alone.again()
        for node in rest:
            node.changed()
            node.again()
        by_rank(nodes, round=3, size=3)
