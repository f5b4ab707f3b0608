"""How handlers live in a process: from many threads, on one background thread, and not across a fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.node_processes import ROOT, free_port

PRELUDE = """
import os, threading, time, warnings
import rallypoint
from rallypoint import RendezvousParameters, get_rendezvous_handler
def handler(run="run", low=1, high=1, **options):
    given = {"heartbeat_interval": 0.3, "heartbeat_timeout": 3, "join_timeout": 30, "close_timeout": 10, **options}
    return get_rendezvous_handler(RendezvousParameters("rallypoint", "127.0.0.1:PORT", run, low, high, **given))
"""


def _run(script: str) -> str:
    code = PRELUDE.replace("PORT", str(free_port())) + script
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


FORK = """
mine = handler()
info = mine.next_rendezvous()
for act in (mine.next_rendezvous, mine.num_nodes_waiting, mine.is_closed, mine.set_closed, mine.shutdown):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except rallypoint.RendezvousError as exc:
            print(act.__name__, type(exc).__name__, exc, flush=True)
            os._exit(0)
        except BaseException as exc:
            print(act.__name__, "!", repr(exc), flush=True)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert mine.num_nodes_waiting() == 0
assert mine.shutdown()
"""


def test_using_a_handler_in_a_forked_child_is_a_clear_error() -> None:
    lines = _run(FORK).splitlines()
    assert [line.split()[0] for line in lines] == [
        "next_rendezvous",
        "num_nodes_waiting",
        "is_closed",
        "set_closed",
        "shutdown",
    ]
    for line in lines:
        assert "was opened in process" in line
        assert "its child by fork" in line
        assert "open it in the child, or start the child with 'spawn' or exec" in line


ANEW = """
mine = handler()
mine.next_rendezvous()
pid = os.fork()
if pid == 0:
    other = handler(high=2)
    try:
        other.next_rendezvous()
    except rallypoint.RendezvousError as exc:
        print(exc, flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert mine.shutdown()
"""


def test_a_forked_child_opens_a_handler_of_its_own() -> None:
    assert "asks for 1:2 nodes, but run 'run' was founded for 1 node" in _run(ANEW)


THREADS = """
many = [handler(low=8, high=8, node_name=f"n{i}") for i in range(8)]
infos = {}
def join(i):
    infos[i] = many[i].next_rendezvous()
threads = [threading.Thread(target=join, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(info.rank for info in infos.values()) == list(range(8)), infos
names = [thread.name for thread in threading.enumerate()]
print(names.count("rallypoint"), sum(name.startswith("rallypoint") for name in names), len(names))
threads = [threading.Thread(target=each.shutdown) for each in many]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_a_process_has_one_background_thread_however_many_handlers_and_one_for_the_store_that_it_serves() -> None:
    assert _run(THREADS).split() == ["1", "2", "3"]


SHARED = """
mine, peer = handler(low=2, high=2, node_name="mine"), handler(low=2, high=2, node_name="peer")
troubles = []
def guarded(act):
    def run():
        try:
            act()
        except BaseException as exc:
            troubles.append(exc)
    return run
joined = threading.Event()
def ask():
    while not joined.is_set():
        assert mine.num_nodes_waiting() >= 0
        assert not mine.is_closed()
        assert mine.get_run_id() == "run"
def use(each, key):
    info = each.next_rendezvous()
    info.store.set(key, b"1")
    info.store.wait(["mine", "peer"])
asking = [threading.Thread(target=guarded(ask)) for _ in range(8)]
joining = [threading.Thread(target=guarded(lambda e=e, k=k: use(e, k))) for e, k in ((mine, "mine"), (peer, "peer"))]
for thread in asking + joining: thread.start()
for thread in joining: thread.join()
joined.set()
for thread in asking: thread.join()
assert not troubles, troubles
done = []
leaving = [threading.Thread(target=lambda e=e: done.append(e.shutdown())) for e in (mine, peer, mine, peer)]
for thread in leaving: thread.start()
for thread in leaving: thread.join()
print(done)
"""


def test_a_handler_is_used_from_many_threads() -> None:
    assert _run(SHARED).strip() == "[True, True, True, True]"


TWO_JOINS = """
mine = handler()
infos = []
threads = [threading.Thread(target=lambda: infos.append(mine.next_rendezvous())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
last = mine.next_rendezvous()
last.store.set("k", b"v")
print([info.rank for info in infos], mine.num_nodes_waiting())
assert mine.shutdown()
"""


def test_threads_that_join_with_one_handler_all_get_a_place() -> None:
    assert _run(TWO_JOINS).strip() == "[0, 0, 0, 0] 0"


LEFT = """
mine = handler()
mine.next_rendezvous()
assert mine.shutdown()
assert mine.shutdown()
try:
    mine.next_rendezvous()
except rallypoint.RendezvousError as exc:
    print(exc)
"""


def test_a_handler_that_was_shut_down_says_so() -> None:
    assert _run(LEFT).strip() == "run 'run' was left by this node: a new handler can join it again"


MEANWHILE = """
import time
def until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
first, spare = handler(), handler()
first.next_rendezvous()
def join():
    try:
        spare.next_rendezvous()
    except rallypoint.RendezvousError as exc:
        print(exc)
joining = threading.Thread(target=join, daemon=True)
joining.start()
until(lambda: spare._member.view.stood_by)
began = time.monotonic()
assert spare.shutdown()
assert time.monotonic() - began < 8, "it waited for the handler that goes on, which serves on its own"
joining.join(20)
assert not joining.is_alive(), "its join goes on"
assert first.num_nodes_waiting() == 0
assert first.shutdown()
"""


def test_a_shutdown_ends_a_join_that_is_under_way_and_holds_up_no_other_handler() -> None:
    assert _run(MEANWHILE).strip() == "run 'run' was left by this node: a new handler can join it again"


OVER = """
pair = [handler(low=2, high=2, node_name=name) for name in ("a", "b")]
def take_part(mine):
    mine.next_rendezvous()
    member = mine._member
    watching = threading.Thread(target=member.wait_until_over, args=(member.view.world,), daemon=True)
    watching.start()
    assert mine.shutdown()
    watching.join(20)
    ends.append("over" if not watching.is_alive() else "watched for ever")
ends = []
threads = [threading.Thread(target=take_part, args=(mine,)) for mine in pair]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*ends)
"""


def test_a_world_that_was_finished_and_left_is_over_for_who_watches_it() -> None:
    assert _run(OVER).split() == ["over", "over"]


CLOSED = """
mine = handler()
mine.set_closed()
assert mine.is_closed()
other = handler(high=2)
assert not other.is_closed()
mine.shutdown()
other.shutdown()
"""


UNJOINED = """
mine, other = handler(close_timeout=600), handler(is_host=False)
link = other._member.link
assert link.wait(lambda _: link.is_connected, time.monotonic() + 30)
mine.next_rendezvous()
assert mine.shutdown()
other.shutdown()
"""


def test_a_process_that_serves_does_not_stay_for_a_handler_that_never_joined() -> None:
    _run(UNJOINED)


def test_a_run_can_be_closed_without_having_joined_it() -> None:
    _run(CLOSED)


AGAIN = """
import gc
for _ in range(30):
    with rallypoint.join("127.0.0.1:PORT_", run="run", nodes=1, close_timeout=5) as place:
        assert (place.rank, place.world_size) == (0, 1)
        place.store.set("k", "v")
        assert place.store.get("k") == b"v"
    del place
gc.collect()
print(len(os.listdir("/proc/self/fd")))
"""


def test_a_process_that_joins_over_and_over_leaves_nothing_open() -> None:
    assert int(_run(AGAIN.replace("PORT_", str(free_port())))) < 20


REFUSED = """
import gc
mine = handler(low=2, high=2)
for _ in range(20):
    try:
        rallypoint.join("127.0.0.1:PORT_", run="run", nodes=2, is_host=True, join_timeout=0.1)
    except rallypoint.RendezvousTimeoutError as exc:
        assert "1 of at least 2 nodes" in str(exc) or "has just started" in str(exc), exc
gc.collect()
mine.shutdown()
print(len(os.listdir("/proc/self/fd")))
"""


def test_a_join_that_failed_leaves_nothing_open() -> None:
    assert int(_run(REFUSED.replace("PORT_", str(free_port())))) < 20


STORE_IN_CHILD = """
import sys, rallypoint.stores
def in_a_child(act):
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(act())
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(theirs, said.encode())
        sys.exit()
    os.close(theirs)
    with os.fdopen(ours) as answers:
        said = answers.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    return said

warnings.simplefilter("ignore", DeprecationWarning)
place = rallypoint.join("127.0.0.1:PORT", run="run", nodes=1, **OPTIONS)
assert in_a_child(lambda: place.store.add("n", 1)) == "1", "who opens it first in the child has it there"
assert place.store.add("n", 1) == 2
told = in_a_child(lambda: place.store.add("n", 1))
assert told.startswith("StoreForkError: ") and "its child by fork" in told, told
assert in_a_child(lambda: place.store.clone().add("n", 1)) == "3"
assert in_a_child(lambda: place.finished()).startswith("RendezvousError: ")
assert place.store.add("n", 1) == 4
assert place.finished()
try:
    place.store.get("n")
except rallypoint.stores.RoundOverError as exc:
    print(exc)
"""


@pytest.mark.parametrize("options", [{}, {"store": "torch"}])
def test_the_store_of_a_round_and_its_server_survive_forks(options: dict[str, str]) -> None:
    script = STORE_IN_CHILD.replace("PORT", str(free_port())).replace("OPTIONS", repr(options))
    assert "the store of round 1 of run 'run' is of no use any more" in _run(script)
