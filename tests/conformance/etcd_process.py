"""etcd as one of the processes that the conformance suite pauses, kills and starts again."""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests.support.etcd_servers import running
from tests.support.node_processes import ControlledProcess


class EtcdProcess(ControlledProcess):
    """A single member, with its data; it says nothing, and is told by signals only."""

    def __init__(self, version: str = "3.5") -> None:
        self._stack = ExitStack()
        self._cluster = self._stack.enter_context(running(version))
        self._member = self._cluster.members[0]
        self.endpoint = self._member.endpoint
        self._take_over()

    def kill(self) -> None:
        """SIGKILL; its data stays until `end`."""
        self._member.kill()

    def start_again(self) -> None:
        """With the data that it had."""
        self._member.start()
        self._member.wait()
        self._take_over()

    def pause(self) -> None:
        self._member.pause()
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._member.go_on()

    def end(self) -> None:
        """Nothing is left of it."""
        self._stack.close()

    def _take_over(self) -> None:
        assert self._member.process is not None
        self._pid = self._member.process.pid

    @property
    def pid(self) -> int:
        return self._pid
