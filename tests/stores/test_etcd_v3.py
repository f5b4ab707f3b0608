"""EtcdV3Store beyond the contract of all stores: its keys, lost and late answers, leases, large values, torch, failures."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch.distributed as dist

from rallypoint.etcd_client import EtcdClient, GuardedPut, User, Watch
from rallypoint.etcd_client.watch_state import WatchPhase
from rallypoint.stores import EtcdV3Store, QueueEmptyError, StoreError, StoreTimeoutError
from rallypoint.stores.etcd_v3.large_values import PART_BYTES
from rallypoint.torch_bridge.etcd_v3_store import EtcdV3StoreForTorch
from tests.support.etcd_leader_failures import count_while_leaders_fail
from tests.support.etcd_servers import Cluster, running, shared
from tests.support.etcd_tools import Proxy, compact, cut_off, enable_users, etcd, etcdctl, proxy_to, user_of
from tests.support.gloo_rank import sum_up
from tests.support.remote_stores import start_process
from tests.support.store_histories import call_at_random, check_history
from tests.support.waiting import until

SOON = timedelta(seconds=60)
SOON_S = SOON.total_seconds()
BRIEFLY = timedelta(milliseconds=20)


@pytest.fixture
def one_etcd() -> Cluster:
    """A server that all tests share."""
    return shared("3.5")


@pytest.fixture
def own_etcd() -> Iterator[Cluster]:
    """A server to do harm to."""
    with running("3.5") as cluster:
        yield cluster


@pytest.fixture
def name() -> str:
    """A prefix that nobody else has."""
    return uuid.uuid4().hex


@pytest.fixture
def direct(one_etcd: Cluster) -> Iterator[EtcdClient]:
    """A client that nothing comes between."""
    with user_of(one_etcd) as client:
        yield client


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three members, to which no harm is done that does not pass."""
    with running("3.5", 3) as cluster:
        yield cluster


@pytest.fixture
def store(direct: EtcdClient, name: str) -> EtcdV3Store:
    return EtcdV3Store(direct, name, timeout=SOON)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def keys_under(client: EtcdClient, prefix: str) -> list[str]:
    return [kv.key.decode() for kv in client.range(prefix, prefix=True, keys_only=True).kvs]


def open_watch(client: EtcdClient) -> Watch:
    """The watch of somebody who waits, once etcd has confirmed it."""

    def found() -> list[Watch]:
        return [watch for watch in list(client._watches) if watch._watched.phase is WatchPhase.OPEN]

    until(found, "somebody waits")
    return found()[0]


# Its keys -------------------------------------------------------------------------------------------------------------


def test_its_keys_lie_under_the_prefix_and_can_be_read_by_people(
    store: EtcdV3Store, one_etcd: Cluster, name: str
) -> None:
    store.set("greeting", "hello")
    store.queue_push("jobs", "one")
    assert etcdctl(one_etcd, "get", f"{name}/~keys/greeting=", "--print-value-only") == "=hello\n"
    assert etcdctl(one_etcd, "get", f"{name}/~keys/jobs>", "--print-value-only") == "0 1\n"
    lines = etcdctl(one_etcd, "get", "--prefix", "--keys-only", name).split()
    assert sorted({line.split("/")[1] for line in lines}) == ["~entries", "~keys", "~receipts"]


def test_a_store_within_anothers_prefix_is_a_store_of_its_own(direct: EtcdClient, name: str) -> None:
    outer, inner = EtcdV3Store(direct, name), EtcdV3Store(direct, f"{name}/inner/")
    sibling = EtcdV3Store(direct, f"{name}2")
    outer.set("inner/~keys/key=", "outer")
    outer.set("/inner/~keys/key", "outer")
    for other in (inner, sibling):
        assert (other.num_keys(), other.check(["key"])) == (0, False)
        other.set("key", "other")
    assert sorted(outer.list_keys()) == ["/inner/~keys/key", "inner/~keys/key="]
    assert EtcdV3Store(direct, f"{name}/inner").get("key") == b"other"


@pytest.mark.parametrize("prefix", ["", "/", "~keys", "a/~b", "a/~keys/b"])
def test_prefixes_that_would_lie_among_anothers_keys_are_refused(direct: EtcdClient, prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        EtcdV3Store(direct, prefix)


def test_what_no_store_has_written_is_told(store: EtcdV3Store, direct: EtcdClient, name: str) -> None:
    direct.put(f"{name}/~keys/key=", "plain")
    direct.put(f"{name}/~keys/queue>", "plain")
    for ask in (lambda: store.get("key"), lambda: store.queue_len("queue"), lambda: store.queue_push("queue", "x")):
        with pytest.raises(StoreError, match=r"holds b'plain', which no store has written"):
            ask()


def test_a_queue_is_neither_listed_nor_taken_for_the_value_of_a_longer_name(store: EtcdV3Store) -> None:
    for key in ("q", "q=", "q>", "q=x", "q>x"):
        store.queue_push(key, key)
        assert store.list_keys() == []
    store.set("q>", "value")
    assert [store.queue_pop(key) for key in ("q", "q=", "q>", "q=x", "q>x")] == [b"q", b"q=", b"q>", b"q=x", b"q>x"]
    assert store.list_keys() == ["q>"]


def test_changes_leave_no_more_behind_than_a_receipt_a_thread(
    store: EtcdV3Store, direct: EtcdClient, name: str
) -> None:
    for number in range(20):
        store.set("key", "x" * number)
        store.append("key", "y")
        store.queue_push("q", "entry")
        store.queue_pop("q")
    with pytest.raises(StoreError, match="number"):
        store.add("key", 1)
    assert store.add("n", 1) == 1
    assert store.delete_key("key")
    assert store.delete_key("n")
    (receipt,) = keys_under(direct, name)
    assert receipt.startswith(f"{name}/~receipts/")


def test_importing_stores_imports_neither_the_client_nor_grpc() -> None:
    program = """
import sys
import rallypoint.stores
assert not {name for name in sys.modules if name.startswith(("rallypoint.etcd_client", "grpc"))}
from rallypoint.stores import EtcdV3Store
assert "rallypoint.etcd_client" in sys.modules
assert not {"grpc", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# Waiting --------------------------------------------------------------------------------------------------------------


class CountingClient(EtcdClient):
    """Counts what is asked."""

    asked = 0

    def transaction(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return super().transaction(*args, **options)

    def range(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return super().range(*args, **options)


WAITS: dict[str, tuple[Callable[[EtcdV3Store], object], int]] = {
    "wait": (lambda store: store.wait(["key"]), 1),
    "get": (lambda store: store.get("key"), 2),
    "queue_pop": (lambda store: store.queue_pop("key"), 2),
}


@pytest.mark.parametrize("ask", WAITS)
def test_who_waits_watches_and_does_not_ask_again(
    one_etcd: Cluster, store: EtcdV3Store, name: str, pool: ThreadPoolExecutor, ask: str
) -> None:
    wait, questions = WAITS[ask]
    client = CountingClient(one_etcd.endpoints)
    with client:
        waiting = pool.submit(wait, EtcdV3Store(client, name, timeout=SOON))
        open_watch(client)
        for number in range(20):
            store.set(f"other{number}", "x")
            store.set("kez", "between them, in the order of names")
        assert not waiting.done()
        store.set("key", "value") if ask != "queue_pop" else store.queue_push("key", "value")
        waiting.result(SOON_S)
        assert client.asked == questions


def test_what_is_written_between_others_in_the_order_of_names_is_not_awaited(
    one_etcd: Cluster, store: EtcdV3Store, name: str, pool: ThreadPoolExecutor
) -> None:
    def wait_and_look(waiting: EtcdV3Store) -> bool:
        waiting.wait(["a", "c"])
        return waiting.check(["a", "c"])

    with EtcdClient(one_etcd.endpoints) as client:
        looked = pool.submit(wait_and_look, EtcdV3Store(client, name, timeout=SOON))
        watch = open_watch(client)
        store.multi_set(["a", "a=", "a>", "b"], ["", "", "", ""])
        written = client.get(f"{name}/~keys/b=")
        assert written is not None
        until(
            lambda: watch._watched.next_revision > written.mod_revision and watch._watched.items.empty(), "all was seen"
        )
        store.set("c", "")
        assert looked.result(SOON_S)


class HesitantClient(EtcdClient):
    """Something happens after it has looked and before it watches."""

    meanwhile: Callable[[], object]

    def watch(self, *args: Any, **options: Any) -> Watch:
        self.meanwhile()
        return super().watch(*args, **options)


def test_nothing_is_overlooked_between_the_look_and_the_watch(one_etcd: Cluster, store: EtcdV3Store, name: str) -> None:
    client = HesitantClient(one_etcd.endpoints)
    hesitant = EtcdV3Store(client, name, timeout=SOON)
    with client:
        client.meanwhile = lambda: (store.add("key", 1), store.delete_key("key"))
        hesitant.wait(["key"])
        client.meanwhile = lambda: store.add("key", 1)
        assert hesitant.get("key") == b"1"
        client.meanwhile = lambda: store.queue_push("q", "entry")
        assert hesitant.queue_pop("q") == b"entry"
        client.meanwhile = lambda: store.barrier("b", 2)
        hesitant.barrier("b", 2)


def test_all_waits_of_a_process_are_on_one_stream(
    store: EtcdV3Store, direct: EtcdClient, pool: ThreadPoolExecutor
) -> None:
    waiting = [pool.submit(store.clone().get, f"key{number}") for number in range(8)]
    until(lambda: len(direct._watches) == 8, "all wait")
    assert len({watch._watch_stream for watch in direct._watches}) == 1
    store.multi_set([f"key{number}" for number in range(8)], ["v"] * 8)
    assert [future.result(SOON_S) for future in waiting] == [b"v"] * 8


def test_a_wait_outlives_a_compaction_of_what_it_has_not_seen(
    store: EtcdV3Store, direct: EtcdClient, one_etcd: Cluster, name: str, pool: ThreadPoolExecutor
) -> None:
    with EtcdClient(one_etcd.endpoints) as client:
        waiting = pool.submit(EtcdV3Store(client, name, timeout=SOON).wait, ["a", "b", "c"])
        open_watch(client)
        with cut_off(client):
            store.multi_set(["a", "b"], ["1", "2"])
            store.set("passing", "by")
            store.delete_key("passing")
            compact(direct, direct.put("history", "over").revision)
        assert not waiting.done()
        store.set("c", "3")
        waiting.result(SOON_S)


def test_waits_outlive_the_member_that_they_watch(three: Cluster, name: str, pool: ThreadPoolExecutor) -> None:
    with user_of(three) as client:
        store = EtcdV3Store(client, name, timeout=SOON)
        waits: list[Future[Any]]
        waits = [pool.submit(store.get, "key"), pool.submit(store.queue_pop, "q"), pool.submit(store.barrier, "b", 2)]
        until(lambda: sum(w._watched.phase is WatchPhase.OPEN for w in list(client._watches)) == 3, "all wait")
        stream = open_watch(client)._watch_stream._stream
        assert stream is not None
        watched = next(member for member in three.members if member.endpoint == stream.endpoint)
        watched.kill()
        try:
            others = ",".join(member.endpoint for member in three.members if member is not watched)
            with EtcdClient(others, timeout_s=SOON_S) as other_client:
                other = EtcdV3Store(other_client, name, timeout=SOON)
                other.set("key", "value")
                other.queue_push("q", "entry")
                other.barrier("b", 2)
            assert [future.result(SOON_S) for future in waits] == [b"value", b"entry", None]
        finally:
            watched.start()
            watched.wait()


def test_a_wait_that_ends_in_vain_while_etcd_is_away_says_so(own_etcd: Cluster, pool: ThreadPoolExecutor) -> None:
    with user_of(own_etcd, timeout_s=1) as client:
        store = EtcdV3Store(client, "job", timeout=timedelta(seconds=3))
        assert not store.check(["key"])  # the connection stands
        waiting = pool.submit(store.get, "key")
        open_watch(client)
        own_etcd.members[0].kill()
        with pytest.raises(
            StoreTimeoutError, match=r"get 'key': not within 3 s; still missing: 'key'; no watch stream"
        ):
            waiting.result(SOON_S)
        with pytest.raises(StoreError, match=rf"set 'key', in the store 'job': .*{own_etcd.members[0].port}"):
            store.set("key", "value")


# Answers that get lost, and requests that are late ---------------------------------------------------------------------


class LosingClient(EtcdClient):
    """Loses the answer to one write after it was carried out; something may happen before it asks again."""

    def __init__(self, proxy: Proxy, direct: EtcdClient) -> None:
        super().__init__(proxy.endpoint, timeout_s=SOON_S)
        self.proxy, self.direct = proxy, direct
        self.meanwhile: Callable[[], object] | None = None
        self.lost = 0

    def guarded_put(self, key: Any, value: Any, **options: Any) -> GuardedPut:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            return super().guarded_put(key, value, **options)

        def is_written() -> bool:
            found = self.direct.get(key)
            return found is not None and found.value == value

        self.proxy.loses_answers = True
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(super().guarded_put, key, value, **options)
            until(is_written, "it is written")
            meanwhile()
            self.lost += 1
            self.proxy.loses_answers = False
            self.proxy.cut()
            return asked.result(SOON_S)


@pytest.fixture
def losing(one_etcd: Cluster, direct: EtcdClient) -> Iterator[LosingClient]:
    with proxy_to(one_etcd.members[0].port) as proxy:
        client = LosingClient(proxy, direct)
        with client:
            yield client


# What is asked, what another one does before the answer to it comes, the answer, what is there then.
Ask = Callable[[EtcdV3Store], object]
EXACTLY_ONCE: dict[str, tuple[Ask, Ask, object, Ask, object]] = {
    "set": (
        lambda store: store.set("key", "new"),
        lambda other: other.set("key", "newer"),
        None,
        lambda store: store.get("key"),
        b"newer",
    ),
    "multi_set": (
        lambda store: store.multi_set(["key", "n"], ["new", "1"]),
        lambda other: other.add("n", 1),
        None,
        lambda store: store.multi_get(["key", "n"]),
        [b"new", b"2"],
    ),
    "add": (lambda store: store.add("n", 1), lambda other: other.add("n", 10), 6, lambda store: store.get("n"), b"16"),
    "append": (
        lambda store: store.append("log", "b"),
        lambda other: other.append("log", "c"),
        None,
        lambda store: store.get("log"),
        b"abc",
    ),
    "compare_set": (
        lambda store: store.compare_set("key", "old", "new"),
        lambda other: other.compare_set("key", "new", "old"),
        b"new",
        lambda store: store.get("key"),
        b"old",
    ),
    "delete_key": (
        lambda store: store.delete_key("key"),
        lambda other: other.set("key", "again"),
        True,
        lambda store: store.get("key"),
        b"again",
    ),
    "queue_push": (
        lambda store: store.queue_push("q", "3"),
        lambda other: [other.queue_pop("q") for _ in range(3)],
        None,
        lambda store: store.queue_len("q"),
        0,
    ),
    "queue_pop": (
        lambda store: store.queue_pop("q"),
        lambda other: other.queue_pop("q"),
        b"1",
        lambda store: store.queue_len("q"),
        0,
    ),
    "barrier": (
        lambda store: store.barrier("b", 1),
        lambda other: other.barrier("b", 2),
        None,
        lambda store: store.get("b"),
        b"2",
    ),
}


@pytest.mark.parametrize("change", EXACTLY_ONCE)
def test_a_change_whose_answer_is_lost_happens_once_whatever_others_do_meanwhile(
    losing: LosingClient, store: EtcdV3Store, name: str, change: str
) -> None:
    ask, meanwhile, answer, look, there = EXACTLY_ONCE[change]
    store.multi_set(["key", "n", "log"], ["old", "5", "a"])
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    changing = EtcdV3Store(losing, name, timeout=SOON)
    assert changing.check(["key"])  # the connection stands
    losing.meanwhile = lambda: meanwhile(store)
    assert ask(changing) == answer
    assert losing.lost == 1
    assert look(store) == there
    assert changing.add("n", 0) == store.add("n", 0)


class LateClient(EtcdClient):
    """One write of it is taken for refused, and arrives only when it is told to, or before the next one."""

    meanwhile: Callable[[], object] | None = None
    late: Callable[[], GuardedPut] | None = None

    def guarded_put(self, key: Any, value: Any, **options: Any) -> GuardedPut:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            self.late = lambda: super(LateClient, self).guarded_put(key, value, **options)
            meanwhile()
            return GuardedPut(False, options["mod_revision"], self.get(key))
        if options.get("then"):  # else it is what keeps the late one out
            self.arrive()
        return super().guarded_put(key, value, **options)

    def arrive(self) -> bool:
        late, self.late = self.late, None
        return late is not None and late().succeeded


@pytest.fixture
def late(one_etcd: Cluster) -> Iterator[LateClient]:
    client = LateClient(one_etcd.endpoints, timeout_s=SOON_S)
    with client:
        yield client


@pytest.mark.parametrize("used_before", [False, True])
def test_an_addition_that_arrives_late_is_not_made_twice(
    late: LateClient, store: EtcdV3Store, name: str, used_before: bool
) -> None:
    adding = EtcdV3Store(late, name, timeout=SOON)
    if used_before:
        adding.set("other", "x")
    store.set("n", "5")
    late.meanwhile = lambda: store.set("other", "y")
    assert adding.add("n", 1) == 6
    assert late.late is None
    assert store.get("n") == b"6"
    assert adding.add("n", 1) == 7


def test_a_comparison_that_has_failed_does_not_succeed_later(late: LateClient, store: EtcdV3Store, name: str) -> None:
    """The key that stood in its way is deleted, and only then the first attempt arrives."""
    late.meanwhile = lambda: store.set("leader", "another")
    assert EtcdV3Store(late, name, timeout=SOON).compare_set("leader", "", "me") == b"another"
    assert store.delete_key("leader")
    assert late.late is not None
    assert not late.arrive()
    assert not store.check(["leader"])


def test_a_deletion_that_came_too_late_does_not_delete_what_is_set_later(
    late: LateClient, store: EtcdV3Store, name: str
) -> None:
    store.set("key", "old")
    late.meanwhile = lambda: store.delete_key("key")
    assert not EtcdV3Store(late, name, timeout=SOON).delete_key("key")
    store.set("key", "new")
    assert late.late is not None
    assert not late.arrive()
    assert store.get("key") == b"new"


def record(endpoints: str, prefix: str, seed: int, callers: int, pipe: Connection) -> None:
    with EtcdClient(endpoints) as client:
        call_at_random(EtcdV3Store(client, prefix, timeout=SOON), seed, callers, pipe)


def test_add_and_compare_set_are_linearizable_whichever_member_is_asked(three: Cluster, name: str) -> None:
    check_history(record, [(member.endpoint, name) for member in three.members])


def test_no_count_is_lost_or_doubled_while_leaders_die_and_pause(three: Cluster, name: str) -> None:
    with user_of(three) as client:
        count_while_leaders_fail(three, [EtcdV3Store(client, name, timeout=SOON) for _ in range(4)])


# Leases ---------------------------------------------------------------------------------------------------------------


def test_all_that_a_store_has_written_goes_with_its_lease(direct: EtcdClient, name: str) -> None:
    lease = direct.grant(60)
    store = EtcdV3Store(direct, name, lease=lease, timeout=SOON)
    fill(store)
    assert len({key.split("/")[1] for key in keys_under(direct, name)}) == 4
    lease.revoke()
    assert keys_under(direct, name) == []


def fill(store: EtcdV3Store) -> None:
    """Something of everything, written by everything that writes."""
    store.set("key", "value")
    store.multi_set(["a", "b"], ["1", "x" * (PART_BYTES + 1)])
    store.append("a", "2")
    store.append("b", "more")
    store.add("n", 1)
    store.compare_set("n", "1", "2")
    store.barrier("barrier", 1)
    store.queue_push("q", "x" * (PART_BYTES + 1))
    store.queue_push("q", "two")


@pytest.mark.parametrize("by_number", [False, True])
def test_a_lost_lease_is_the_end_of_the_store(
    direct: EtcdClient, one_etcd: Cluster, name: str, pool: ThreadPoolExecutor, by_number: bool
) -> None:
    lease = direct.grant(5)
    store = EtcdV3Store(direct, name, lease=lease.id if by_number else lease, timeout=SOON)
    store.set("key", "value")
    over = rf"the store '{name}' is over: its keys hung on the lease {lease.id:x}, which has expired or was revoked"
    clone = store.clone()
    if by_number:  # somebody else's lease: the next change tells
        direct.revoke(lease.id)
        with pytest.raises(StoreError, match=over):
            clone.add("n", 1)
    else:  # who waits is told, too
        waiting: list[Future[Any]] = [
            pool.submit(store.get, "gone"),
            pool.submit(store.barrier, "b", 2),
            pool.submit(store.queue_pop, "q"),
        ]
        open_watch(direct)
        with user_of(one_etcd) as other:
            other.revoke(lease.id)
        for future in waiting:
            with pytest.raises(StoreError, match=over):
                future.result(SOON_S)
    for ask in (
        lambda: store.set("key", "value"),
        lambda: clone.get("key"),
        lambda: store.check(["key"]),
        lambda: clone.wait(["key"]),
        store.num_keys,
        lambda: store.queue_pop("q", block=False),
    ):
        with pytest.raises(StoreError, match=over):
            ask()
    lease.release()


def test_keys_that_somebody_deletes_under_a_store_are_told(store: EtcdV3Store, direct: EtcdClient, name: str) -> None:
    store.set("key", "value")
    direct.delete(f"{name}/", prefix=True)
    with pytest.raises(StoreError, match=rf"somebody has deleted the keys of the store '{name}'"):
        store.add("n", 1)


def test_a_user_needs_no_more_than_the_prefix() -> None:
    with etcd() as cluster:
        enable_users(cluster)
        with EtcdClient(cluster.endpoints, user=User("alice", "wonderland")) as client:
            store = EtcdV3Store(client, "alice/job", lease=client.grant(60), timeout=SOON)
            fill(store)
            assert sorted(store.list_keys()) == ["a", "b", "barrier", "key", "n"]
            store.wait(["a", "q"])
            assert store.queue_len("q") == 2
            with pytest.raises(StoreTimeoutError, match="still missing: 'gone'"):
                store.wait(["gone"], BRIEFLY)
            assert store.delete_key("b")
            with pytest.raises(StoreError, match=r"set 'key', in the store 'bob/job': .* no permission"):
                EtcdV3Store(client, "bob/job").set("key", "value")


# Large values ---------------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * (3 * PART_BYTES // 256) + b"the end"


def parts_of(client: EtcdClient, name: str) -> int:
    return client.range(f"{name}/~parts/", prefix=True, count_only=True).count


def delete_and_set(store: EtcdV3Store) -> None:
    assert store.delete_key("key")
    store.set("key", "")


def append_until_large(store: EtcdV3Store) -> None:
    store.set("key", LARGE[:PART_BYTES])
    store.append("key", LARGE[PART_BYTES:])


CHANGES: dict[str, tuple[Ask, object, int]] = {
    "set": (lambda store: store.set("key", "small"), b"small", 0),
    "set another large one": (lambda store: store.set("key", LARGE[::-1]), LARGE[::-1], 4),
    "append": (lambda store: store.append("key", "more"), LARGE + b"more", 5),
    "append much": (lambda store: store.append("key", LARGE), LARGE + LARGE, 7),
    "compare_set": (lambda store: store.compare_set("key", LARGE, "small"), b"small", 0),
    "compare_set in vain": (lambda store: store.compare_set("key", LARGE[1:], LARGE[2:]), LARGE, 4),
    "delete": (delete_and_set, b"", 0),
    "append until large": (append_until_large, LARGE, 4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_value_is_changed_as_any_other_and_its_parts_go(
    store: EtcdV3Store, direct: EtcdClient, name: str, change: str
) -> None:
    do, there, parts = CHANGES[change]
    store.set("key", LARGE)
    assert parts_of(direct, name) == 4
    do(store)
    assert store.get("key") == there
    assert parts_of(direct, name) == parts
    assert store.list_keys() == ["key"]


def test_large_entries_pass_through_a_queue_and_leave_nothing(
    store: EtcdV3Store, direct: EtcdClient, name: str
) -> None:
    for entry in (LARGE, b"small", LARGE[::-1]):
        store.queue_push("q", entry)
    assert parts_of(direct, name) == 8
    assert [store.queue_pop("q") for _ in range(3)] == [LARGE, b"small", LARGE[::-1]]
    assert parts_of(direct, name) == 0
    with pytest.raises(QueueEmptyError):
        store.queue_pop("q", block=False)


def test_what_a_dead_writer_has_left_is_removed_by_the_next(store: EtcdV3Store, direct: EtcdClient, name: str) -> None:
    store._values.prepare(store._names.value(b"key"), LARGE)  # and dies
    assert parts_of(direct, name) == 4
    store.set("other", "x")
    assert parts_of(direct, name) == 4
    store.set("key", "x")
    assert parts_of(direct, name) == 0


def test_nobody_reads_a_half_of_each(
    store: EtcdV3Store, name: str, direct: EtcdClient, pool: ThreadPoolExecutor
) -> None:
    """Two write large values of their own at the same time, while two read and one compacts."""
    letters = [b"a", b"b"]
    store.set("key", b"a" * (2 * PART_BYTES))
    done = threading.Event()

    def write(letter: bytes) -> None:
        for extra in range(6):
            store.clone().set("key", letter * (2 * PART_BYTES + extra))

    def read() -> int:
        reads = 0
        while not done.is_set():
            value = store.clone().get("key")
            assert value[:1] in letters
            assert value.count(value[:1]) == len(value) >= 2 * PART_BYTES
            reads += 1
        return reads

    reading = [pool.submit(read) for _ in range(2)]
    writing = [pool.submit(write, letter) for letter in letters]
    try:
        for future in writing:
            while not future.done():
                compact(direct, direct.put(f"{name}-other", "x").revision)
            future.result(SOON_S)
    finally:
        done.set()
    assert all(future.result(SOON_S) > 0 for future in reading)
    assert parts_of(direct, name) == 3


# As one of torch's ----------------------------------------------------------------------------------------------------


def test_it_is_a_store_of_torch(store: EtcdV3Store) -> None:
    theirs = EtcdV3StoreForTorch(store)
    assert isinstance(theirs, dist.Store)
    prefixed = dist.PrefixStore("prefix", theirs)
    prefixed.set("key", "value")
    assert store.get("prefix/key") == prefixed.get("key") == b"value"
    assert prefixed.add("n", 5) == 5
    assert prefixed.compare_set("key", "value", "other") == b"other"
    assert not prefixed.check(["gone"])
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["b", "a"]) == [b"2", b"1"]
    prefixed.append("a", "x")
    assert prefixed.get("a") == b"1x"
    prefixed.wait(["a"], SOON)
    theirs.queue_push("q", "entry")
    assert theirs.queue_pop("q") == b"entry"
    assert prefixed.delete_key("a")
    assert prefixed.num_keys() == 3
    clone = theirs.clone()
    clone.set_timeout(BRIEFLY)
    assert (theirs.timeout, clone.timeout) == (SOON, BRIEFLY)


def test_its_errors_are_torchs_and_ours(store: EtcdV3Store) -> None:
    theirs = EtcdV3StoreForTorch(store)
    waits: list[Callable[[], object]] = [
        lambda: theirs.wait(["gone"], BRIEFLY),
        lambda: theirs.clone().wait(["gone"], BRIEFLY),
    ]
    for wait in waits:
        with pytest.raises(dist.DistStoreError, match="wait for 'gone': not within") as told:
            wait()
        assert isinstance(told.value, StoreTimeoutError)
    with pytest.raises(dist.DistStoreError, match="wait for 'prefix/gone'"):
        dist.PrefixStore("prefix", theirs).wait(["gone"], BRIEFLY)
    with pytest.raises(dist.QueueEmptyError) as empty:
        theirs.queue_pop("q", block=False)
    assert isinstance(empty.value, QueueEmptyError)
    theirs.set("text", "x")
    with pytest.raises(dist.DistStoreError, match="number") as refused:
        theirs.add("text", 1)
    assert isinstance(refused.value, StoreError)
    with pytest.raises(TypeError, match="bytes or text"):
        theirs.set("key", 5)


def rank_of_gloo(endpoints: str, prefix: str, rank: int, size: int, pipe: Connection) -> None:
    """One rank of a process group."""
    with EtcdClient(endpoints) as client:
        store = EtcdV3StoreForTorch(EtcdV3Store(client, prefix))
        pipe.send(sum_up(dist.PrefixStore("job", store), rank, size))


def test_a_gloo_process_group_runs_on_it(one_etcd: Cluster, name: str) -> None:
    pipes = []
    for rank in range(3):
        ours, theirs = multiprocessing.Pipe()
        start_process(rank_of_gloo, one_etcd.endpoints, name, rank, 3, theirs)
        theirs.close()
        pipes.append(ours)
    assert all(pipe.poll(SOON_S) for pipe in pipes)
    assert [pipe.recv() for pipe in pipes] == [6] * 3
