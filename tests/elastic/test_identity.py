"""Identities: no two nodes have the same."""

from __future__ import annotations

import subprocess
import sys

from rallypoint.client.identity import mint_id

FORKED = """
import os
from rallypoint.client.identity import mint_id, process_token
mint_id("host")
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, process_token().encode())
    os._exit(0)
os.wait()
print(process_token(), os.read(read, 1000).decode())
"""


def test_identities_of_one_process_differ() -> None:
    assert len({mint_id("gpu_7") for _ in range(1000)}) == 1000


def test_a_forked_child_is_another_process() -> None:
    parent, child = subprocess.run(
        [sys.executable, "-c", FORKED], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert parent != child
