"""Identities: no two nodes have the same, and those of one process can be told by how they begin."""

from __future__ import annotations

import subprocess
import sys

from rallypoint.client.identity import mint_id, stem_of

FORKED = """
import os
from rallypoint.client.identity import mint_id
mint_id("host")
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, mint_id("host").encode())
    os._exit(0)
os.wait()
print(mint_id("host"), os.read(read, 1000).decode())
"""


def test_identities_of_one_process_differ_and_begin_alike() -> None:
    minted = [mint_id("gpu_7") for _ in range(1000)]
    assert len(set(minted)) == 1000
    (stem,) = {stem_of(node_id) for node_id in minted}
    assert stem is not None
    assert all(node_id.startswith(stem) for node_id in minted)
    assert not mint_id("gpu_70").startswith(stem)


def test_a_forked_child_mints_identities_of_its_own() -> None:
    parent, child = subprocess.run(
        [sys.executable, "-c", FORKED], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert stem_of(parent) != stem_of(child)


def test_an_identity_that_was_not_minted_has_no_stem() -> None:
    assert stem_of("host-1") is None
    assert stem_of("of_mine") is None
