"""Hosts on this machine: network namespaces with interfaces, addresses and a name of their own, on one switch.  Needs root."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


class Lan:
    """Hosts that reach each other over a bridge; they end with `end`."""

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            pytest.fail("There is no `ip`: install iproute2 (apt-get install iproute2).", pytrace=False)
        self._made: list[str] = []
        self._switch = self._namespace("switch")
        self._ip(self._switch, "link", "add", "br0", "type", "bridge")
        self._ip(self._switch, "link", "set", "br0", "up")

    def host(self, name: str, *addresses: str) -> tuple[str, ...]:
        """A host with an interface for each address (with its prefix length); the words to run a command on it.

        Its name is known to nobody, itself included.
        """
        space = self._namespace(name)
        self._ip(space, "link", "set", "lo", "up")
        for number, address in enumerate(addresses):
            port = f"{name}{number}"
            self.run(
                "ip", "link", "add", f"eth{number}", "netns", space, "type", "veth", "peer", port, "netns", self._switch
            )
            self._ip(self._switch, "link", "set", port, "master", "br0", "up")
            self._ip(space, "link", "set", f"eth{number}", "up")
            # A new IPv6 address cannot be bound until nobody else has claimed it, unless it is told not to ask.
            self._ip(space, "address", "add", address, "dev", f"eth{number}", *(["nodad"] if ":" in address else []))
        rename = 'hostname "$0" && exec "$@"'
        return ("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", rename, f"{name}.nowhere")

    def end(self) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def _namespace(self, name: str) -> str:
        space = f"rallypoint-{os.getpid()}-{name}"
        self.run("ip", "netns", "add", space)
        self._made.append(space)
        return space

    def _ip(self, space: str, *words: str) -> None:
        self.run("ip", "-netns", space, *words)

    def switch(self, port: str, *words: str) -> None:
        """Do something to a port of the switch: the name of a host, and the number of its interface."""
        self._ip(self._switch, "link", "set", port, *words)

    def run(self, *command: str) -> None:
        """Run a command; the test fails where that does."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.end()
            pytest.fail(
                f"`{' '.join(command)}` failed: {done.stderr.strip()}: it needs root and iproute2.", pytrace=False
            )


def with_hosts_file(file: str) -> Sequence[str]:
    """The words to run a command with a file of its own in the place of /etc/hosts."""
    return ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', file)


def with_files(files: Mapping[str, Path]) -> tuple[str, ...]:
    """The words to run a command with files of its own in the place of some of the machine's, such as /etc/resolv.conf."""
    mounts = [f"mount --bind {shlex.quote(str(file))} {shlex.quote(place)}" for place, file in files.items()]
    return ("unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"']))
