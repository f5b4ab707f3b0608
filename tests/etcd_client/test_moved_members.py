"""A member that comes back under its name with another address is found soon, as on Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MOVES = """
import subprocess, sys, time
from pathlib import Path
from rallypoint.etcd_client import EtcdClient
from tests.support.etcd_tools import etcd

hosts = Path(sys.argv[1])

def point(address):
    hosts.write_text(f"127.0.0.1 localhost\\n{address} etcd.test\\n")

point("127.0.0.1")
subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
with etcd() as cluster:
    (member,) = cluster.members
    with EtcdClient(f"etcd.test:{member.port}", timeout_s=60) as client:
        lease = client.grant(10)
        client.put("a", "1", lease=lease)
        member.kill()
        old, new = (f"http://{host}:{member.port}" for host in ("127.0.0.1", "127.0.0.2"))
        member.command = [new if word == old else word for word in member.command]
        point("127.0.0.2")
        member.start()
        start = time.monotonic()
        assert client.get("a").value == b"1"
        print(time.monotonic() - start)
        time_to_live = client.time_to_live(lease).ttl
        assert time_to_live > 0 and not lease.lost.is_set()
"""


@pytest.mark.root
def test_a_member_with_a_new_address_is_found_before_its_leases_are_lost(tmp_path: Path) -> None:
    """In a process that has names of its own."""
    command = ["unshare", "--mount", sys.executable, "-c", MOVES, str(tmp_path / "hosts")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10, "grpc's own is 30 s"
