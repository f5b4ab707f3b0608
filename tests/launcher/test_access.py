"""Launchers that show a token or certificates, commands with the same options, and a stranger that is refused (rule 16)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch
from tests.launcher.test_exit_codes import WORKS, ends, works
from tests.support.access_files import CERTIFICATES, TOKEN, WAYS, flags
from tests.support.node_processes import free_port

REFUSED = {
    TOKEN: (81, "the server did not prove that it has this node's token"),
    CERTIFICATES: (80, "the two do not believe each other's certificates"),
}


@pytest.mark.parametrize("way", WAYS)
def test_launchers_that_may_come_in_meet_and_a_stranger_is_refused(launch: Launch, way: str, tmp_path: Path) -> None:
    files, port = WAYS[way](tmp_path, "job"), free_port()

    def meeting(access: Mapping[str, str], join_s: int) -> tuple[str, ...]:
        options = {"last_call_timeout": "0.2", "heartbeat_timeout": "5", "join_timeout": str(join_s), **access}
        settings = ",".join(f"{name}={value}" for name, value in options.items())
        return "--nnodes", "2:3", "--rdzv", f"127.0.0.1:{port}", "--run-id", "job", "--rdzv-conf", settings, *WORKS

    both = [launch(*meeting(files.node, 60)) for _ in range(2)]
    works(*both)
    code, _, err = ends(launch(*meeting(files.stranger, 3)))
    assert (code, REFUSED[way][1] in err) == (REFUSED[way][0], True), err
    status = [sys.executable, "-m", "rallypoint", "status", "job", "--endpoint", f"127.0.0.1:{port}"]
    for access, wanted in ((files.node, 0), (files.stranger, 3), ({}, 3)):
        asked = subprocess.run([*status, *flags(access)], capture_output=True, text=True, timeout=60, check=False)
        assert asked.returncode == wanted, asked.stderr
    for launcher in both:
        assert launcher.poll() is None, "nobody was disturbed"
        launcher.send_signal(signal.SIGTERM)
    assert [ends(launcher)[0] for launcher in both] == [83, 83]
