"""Hosts on this machine: network namespaces with interfaces, addresses and a name of their own, on one switch.  Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

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
            self._run(
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
        self._run("ip", "netns", "add", space)
        self._made.append(space)
        return space

    def _ip(self, space: str, *words: str) -> None:
        self._run("ip", "-netns", space, *words)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.end()
            pytest.fail(
                f"`{' '.join(command)}` failed: {done.stderr.strip()}: it needs root and iproute2.", pytrace=False
            )


def with_hosts_file(file: str) -> Sequence[str]:
    """The words to run a command with a file of its own in the place of /etc/hosts."""
    return ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', file)
