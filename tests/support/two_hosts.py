"""Two hosts on one network, each with a hosts file of its own, and a node on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.network_namespaces import Lan, with_files
from tests.support.node_processes import Processes, by_rank

_ports = count(29400)


class TwoHosts:
    """Hosts a and b; `addresses` have `{n}` where those of a have 1 and those of b have 2."""

    def __init__(
        self,
        lan: Lan,
        processes: Processes,
        folder: Path,
        *addresses: str,
        names: Sequence[str] = ("a", "b"),
        resolver: str = "",
    ) -> None:
        self.lan, self.processes = lan, processes
        self.files = [folder / f"hosts-{name}" for name in names]
        files: Mapping[str, Path] = {}
        if resolver:
            files = {"/etc/resolv.conf": folder / "resolv.conf"}
            files["/etc/resolv.conf"].write_text(
                f"nameserver {resolver}\noptions timeout:3 attempts:1\n", encoding="ascii"
            )
        self.words: list[tuple[str, ...]] = []
        for number, (name, file) in enumerate(zip(names, self.files, strict=True), 1):
            host = lan.host(name, *(address.format(n=number) for address in addresses))
            self.words.append((*host, *with_files({"/etc/hosts": file, **files})))
        self.know("")
        self.nodes = [processes.node(name, before=words) for name, words in zip(names, self.words, strict=True)]

    def know(self, *lines: str) -> None:
        """What the hosts file of each says; the same, where there is one text only."""
        for file, text in zip(self.files, lines * (2 // len(lines)), strict=True):
            file.write_text(f"127.0.0.1 localhost\n{text}\n", encoding="ascii")

    def endpoints(self, *hosts: str, scheme: str = "") -> list[str]:
        """That of each node: this host, or each one's own, at a port that no other test has."""
        port = next(_ports)
        return [f"{scheme}{host}:{port}" for host in hosts * (2 // len(hosts))]

    def join(self, endpoints: Sequence[str], run: str, **options: Any) -> None:
        for rank, (node, endpoint) in enumerate(zip(self.nodes, endpoints, strict=True)):
            node.join(endpoint, 2, run, **{"is_host": None, "rank": rank, **options})

    def meet(self, endpoints: Sequence[str], run: str, **options: Any) -> set[str]:
        """Both come to be in one world and use its store; where that is, as each of them has it."""
        self.join(endpoints, run, **options)
        return self.met()

    def met(self) -> set[str]:
        """Both are in one world and use its store; where that is, as each of them has it."""
        nodes = by_rank(self.nodes)
        stores = {str(node.heard("placed")[-1]["store"]).rpartition(":")[0] for node in nodes}
        for node, other in (nodes, nodes[::-1]):
            node.ask("set", "stored", key=node.name, value="here")
            assert other.ask("get", "value", key=node.name)["value"] == "here"
        for node in nodes:
            node.order("finish")
        for node in nodes:
            node.expect("left", done=True)
        return stores
