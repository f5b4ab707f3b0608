"""Three hosts as network namespaces of this machine, each with a member of etcd and room for nodes.  Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.etcd_node_processes import EtcdNode, EtcdProcesses, by_rank
from tests.support.etcd_servers import binary
from tests.support.network_namespaces import Lan
from tests.support.waiting import until


class EtcdHosts:
    """Three hosts, each with a member of etcd, on one network for clients and another for the members among themselves."""

    def __init__(self, lan: Lan, folder: Path, version: str) -> None:
        self.lan, self.folder = lan, folder
        self.hosts = [
            lan.host(f"h{number}", f"10.9.0.{number + 1}/24", f"10.9.1.{number + 1}/24") for number in range(3)
        ]
        for host in self.hosts:
            # Each address is known by its own interface: else a network that is cut takes the other one with it.
            lan.run(*host, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
        self.endpoints = [f"10.9.0.{number + 1}:2379" for number in range(3)]
        self.members: dict[int, subprocess.Popen[bytes]] = {}
        self._program = binary(version)

    # Its members of etcd ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all members, with the data that they had, and wait until they answer."""
        for number in range(3):
            self._start(number)
        for number in range(3):
            until(partial(self.is_healthy, number), f"member {number} answers")

    def _start(self, number: int) -> None:
        peers = ",".join(f"m{n}=http://10.9.1.{n + 1}:2380" for n in range(3))
        client, peer = f"http://10.9.0.{number + 1}:2379", f"http://10.9.1.{number + 1}:2380"
        command = [
            *(self._program, "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", peers),
            *("--heartbeat-interval", "100", "--election-timeout", "1000"),
        ]
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.members[number] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.hosts[number], *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def restart(self, number: int) -> None:
        """Start one member that was killed, with the data that it had, and wait until it answers."""
        self._start(number)
        until(partial(self.is_healthy, number), f"member {number} answers")

    def kill(self, *numbers: int) -> None:
        """SIGKILL to these members, or to all; their data stays."""
        processes = [self.members[number] for number in numbers or self.members]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def pause(self, number: int) -> None:
        """SIGSTOP to one member, and wait until it has stopped."""
        self.members[number].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.members[number].pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self, number: int) -> None:
        self.members[number].send_signal(signal.SIGCONT)

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

    def pick(self, *, leads: bool) -> int:
        """The member that leads, or one that does not."""
        leader = self.leader()
        return leader if leads else (leader + 1) % 3

    # Its nodes --------------------------------------------------------------------------------------------------------

    def near(self, number: int) -> str:
        """The endpoints as a node on a host has them: its own member first."""
        return ",".join(self.endpoints[number:] + self.endpoints[:number])

    def node(
        self,
        processes: EtcdProcesses,
        run: str,
        number: int,
        nodes: str,
        name: str = "",
        first: int | None = None,
        **options: Any,
    ) -> EtcdNode:
        """A node on a host that joins a run; it talks to the member `first`, or to that of its own host, while that answers."""
        node = processes.node(name or f"n{number}", before=self.hosts[number])
        node.ask("begin_with_the_first", "begins with the first")
        near = self.near(number if first is None else first)
        node.join(near, nodes, run, **{"last_call_timeout": 0.0 if nodes == "3:4" else 30.0, **options})
        return node

    def form(
        self, processes: EtcdProcesses, run: str, nodes: str, *, server: int, companion: bool = False
    ) -> list[EtcdNode]:
        """A node on each host, in one world, which the one on this host serves; where it has a companion, that is the last."""
        made = {server: self.node(processes, run, server, nodes)}
        until(lambda: made[server].standing()["claim"], "it serves")
        made |= {number: self.node(processes, run, number, nodes) for number in range(3) if number != server}
        placed = [made[number] for number in range(3)]
        if companion:
            placed.append(self.node(processes, run, server, nodes, "companion"))
        by_rank(placed, round=1)
        return placed

    # Its networks -----------------------------------------------------------------------------------------------------

    def cut(self, number: int, *networks: int) -> None:
        """A host is cut off from these of its networks."""
        for network in networks:
            self._switch(f"h{number}{network}", "down")

    def hide(self, number: int) -> None:
        """All that the other hosts send to the clients' address of this one is dropped, and nobody says so."""
        # It goes to a neighbour who is not there; of one who is asked for and says nothing it is said that there is no way.
        nobody = ("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
        for other, host in enumerate(self.hosts):
            if other != number:
                self.lan.run(*host, "ip", "neighbour", "replace", f"10.9.0.{number + 1}", *nobody)

    def is_silent(self, number: int, to: int) -> bool:
        """Whether a member does not even refuse to talk to a host."""
        dial = "import socket, sys; socket.create_connection(('10.9.0.' + sys.argv[1], 2379), 1.0)"
        tried = subprocess.run(
            [*self.hosts[to], sys.executable, "-c", dial, str(number + 1)], capture_output=True, text=True, check=False
        )
        return tried.returncode != 0 and tried.stderr.rstrip().endswith("TimeoutError: timed out")

    def heal(self, number: int) -> None:
        for network in (0, 1):
            self._switch(f"h{number}{network}", "up")

    def _switch(self, port: str, state: str) -> None:
        self.lan.switch(port, state)


@contextmanager
def etcd_hosts(folder: Path, version: str) -> Iterator[EtcdHosts]:
    """Hosts that end with the block."""
    with ExitStack() as stack:
        lan = Lan()
        stack.callback(lan.end)
        made = EtcdHosts(lan, folder, version)
        stack.callback(made.kill)
        made.start()
        yield made
