"""`status`, `runs`, `close` and `evict` on an etcd that wants certificates and a user with a password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli_processes import Process, Started, answer, answer_json, refused
from tests.support.etcd_servers import Certificates
from tests.support.etcd_tools import etcd, etcdctl

NODE = """
import json, sys, rallypoint
with rallypoint.join(sys.argv[1], run="llama", node_name="node1", lease_ttl=2, last_call_timeout=0,
                     local_addr="127.0.0.1", **json.loads(sys.argv[2])) as place:
    print("placed", flush=True)
    place.changed.wait()
    print("changed:", place._member.view.why, flush=True)
"""


class Guarded(NamedTuple):
    """An etcd that lets in only who shows a certificate and knows a password; `files` are what is asked for."""

    endpoint: str
    files: dict[str, str]

    def at(self, **others: str) -> list[str]:
        """The options that lead to it, with some changed; an empty one is left out."""
        given = {"endpoint": self.endpoint, "etcd-prefix": "/alice/runs", **self.files, **others}
        return [word for name, value in given.items() if value for word in (f"--{name}", value)]


@pytest.fixture(scope="module", params=["3.5", pytest.param("3.4", marks=pytest.mark.soak)])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with etcd(request.param, 3, tls=True) as cluster:
        certificates = cluster.tls
        assert certificates is not None
        shown = {"cacert": certificates.ca, "cert": certificates.cert, "key": certificates.key}
        tls = [f"--{name}={file}" for name, file in shown.items()]
        for words in (
            "user add root:secret",
            "user grant-role root root",
            "user add alice:wonderland",
            "role add alices",
            "role grant-permission alices readwrite /alice/ --prefix=true",
            "user grant-role alice alices",
            "auth enable",
        ):
            etcdctl(cluster, *tls, *words.split())
        for name, password in (("right", "wonderland\n"), ("wrong", "looking-glass\n")):
            (folder / name).write_text(password, encoding="utf-8")
        files = {**shown, "username": "alice", "password-file": str(folder / "right")}
        yield Guarded(f"etcd://{cluster.endpoints}", files)


@pytest.fixture
def node(started: Started, guarded: Guarded) -> Process:
    """A node of run `llama` that is alone in its world."""
    options = {name.replace("-", "_"): file for name, file in guarded.files.items()}
    given = json.dumps({**options, "etcd_prefix": "/alice/runs"})
    alone = started.add(Process("-c", NODE, guarded.endpoint, given))
    alone.expect("placed")
    return alone


def test_who_shows_certificates_and_knows_the_password_is_answered(node: Process, guarded: Guarded) -> None:
    assert answer("status", "llama", *guarded.at()).startswith(
        "run 'llama' (sealed, nodes 1): round 1 runs with 1 node"
    )
    (told,) = answer_json("status", *guarded.at())
    assert (told["run_id"], told["live"]) == ("llama", 1)
    assert answer("runs", *guarded.at()).splitlines()[1].split()[:2] == ["llama", "sealed"]
    assert (
        answer("evict", "llama", "node1", *guarded.at())
        == "node 'node1' was evicted from run 'llama' and is kept out for 30 s\n"
    )
    node.expect("changed: node1 was evicted by an administrator and is kept out for another 30 s")


def test_a_run_is_closed(node: Process, guarded: Guarded) -> None:
    told = answer("close", "llama", *guarded.at(), "--why", "the budget is spent")
    assert told == "run 'llama': closed as failed: the budget is spent\n"
    node.expect("changed: the budget is spent")


def test_who_lacks_something_is_told_what(guarded: Guarded, tmp_path: Path) -> None:
    wrong = str(Path(guarded.files["password-file"]).with_name("wrong"))
    assert "etcd refuses the user's name or password" in refused("runs", *guarded.at(**{"password-file": wrong}))
    assert "no permission for that key range" in refused("runs", *guarded.at(**{"etcd-prefix": "/bob"}))
    stranger = Certificates(tmp_path)
    for file, words in (
        ({"cacert": stranger.ca}, "its certificate was not issued by an authority in the CA file"),
        ({"cert": "", "key": ""}, "client certificate"),
    ):
        assert words in refused("runs", *guarded.at(**file))
