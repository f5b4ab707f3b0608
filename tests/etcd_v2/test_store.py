"""EtcdStore beyond the contract of all stores: beside torch's, as one of torch's, and on an etcd that fails."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as TorchEtcdStore

from rallypoint.elastic.etcd_store import EtcdStore
from rallypoint.stores import StoreError
from rallypoint.stores.etcd_v2.encoding import LARGEST_VALUE
from rallypoint.stores.etcd_v2.keys import Keys
from rallypoint.stores.etcd_v2.store import EtcdV2Store
from rallypoint.stores.etcd_v2.watch import wait_for_event
from tests.etcd_v2.answer_losing_proxy import Proxy
from tests.support.etcd_leader_failures import count_while_leaders_fail
from tests.support.etcd_servers import Cluster
from tests.support.forked_processes import TORCH, ForkedProcess

SOON = timedelta(seconds=60)
SOON_S = 60.0
BRIEFLY = timedelta(milliseconds=20)


@pytest.fixture
def store(client: Any, name: str) -> EtcdStore:
    return EtcdStore(client, f"/stores/{name}", SOON)


# As PyTorch has it ----------------------------------------------------------------------------------------------------


def test_it_is_a_store_of_torch(store: EtcdStore) -> None:
    assert isinstance(store, dist.Store)
    assert store.timeout == SOON
    prefixed = dist.PrefixStore("prefix", store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert store.get("prefix/key") == b"value"
    assert prefixed.add("n", 5) == 5
    assert prefixed.compare_set("key", "value", "other") == b"other"
    assert prefixed.check(["key"])
    assert not prefixed.check(["gone"])
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["b", "a"]) == [b"2", b"1"]
    prefixed.append("a", "x")
    assert prefixed.get("a") == b"1x"
    prefixed.wait(["a"], SOON)
    store.queue_push("q", "entry")  # torch's PrefixStore does not pass it on to a store that is written in Python
    assert store.queue_pop("q") == b"entry"
    assert prefixed.delete_key("a")
    assert prefixed.num_keys() == store.num_keys() == 3
    clone = store.clone()
    clone.set_timeout(BRIEFLY)
    assert (store.timeout, clone.timeout) == (SOON, BRIEFLY)


def test_its_client_and_its_prefix_are_public(client: Any, name: str) -> None:
    for given in (f"/stores/{name}", f"/stores/{name}/"):
        store = EtcdStore(client, given)
        assert store.client is client
        assert store.prefix == f"/stores/{name}/"


def test_a_number_is_added_by_its_name_and_to_numbers_only(store: EtcdStore) -> None:
    assert store.add("n", num=2) == 2
    store.set("text", "hello")
    with pytest.raises(ValueError, match="holds b'hello', which is not a number"):
        store.add("text", num=1)


def test_its_default_timeout_is_five_minutes(client: Any, name: str) -> None:
    assert EtcdStore(client, name).timeout == timedelta(seconds=300)


def test_what_does_not_come_is_a_lookup_error(client: Any, name: str) -> None:
    store = EtcdStore(client, f"/stores/{name}", BRIEFLY)
    with pytest.raises(LookupError, match=r"get 'gone': not within 0\.02 s; still missing: 'gone'"):
        store.get("gone")
    store.set_timeout(SOON)
    with pytest.raises(LookupError):
        store.wait(["gone"], override_timeout=BRIEFLY)
    with pytest.raises(LookupError):
        store.wait(["gone"], BRIEFLY)


@pytest.mark.parametrize("kind", [TorchEtcdStore, EtcdStore])
def test_a_time_out_set_on_a_prefix_counts_and_can_be_given_back(client: Any, name: str, kind: Any) -> None:
    """torch's agent does so in its exit barrier."""
    store = kind(client, f"/stores/{name}", SOON)
    store.set("here", "")
    prefixed = dist.PrefixStore("prefix", store)
    prefixed.set_timeout(BRIEFLY)
    assert (prefixed.timeout, store.timeout) == (BRIEFLY, BRIEFLY)
    with pytest.raises(LookupError):
        prefixed.wait(["gone"])
    with pytest.raises(LookupError):
        store.get("gone")
    prefixed.set_timeout(SOON)
    assert store.timeout == SOON


def test_keys_and_values_are_text_or_bytes_and_nothing_else(store: EtcdStore) -> None:
    store.set(b"key", b"value")
    assert store.get("key") == b"value"
    assert store.check([b"key"])
    for key, value in ((5, "v"), ("k", 5), (None, "v"), ("k", None)):
        with pytest.raises(ValueError, match="text"):
            store.set(key, value)  # type: ignore[arg-type]


def test_its_errors_are_torchs_and_ours(one_etcd: Cluster, name: str) -> None:
    """A process group that starts waits for ten seconds at a time, and goes on after an error of torch's."""
    store = dist.PrefixStore("prefix", kept := EtcdStore(one_etcd.client(), f"/stores/{name}"))
    with pytest.raises(dist.DistStoreError, match="wait for 'prefix/gone': not within") as told:
        store.wait(["gone"], timedelta(seconds=0.02))
    assert isinstance(told.value, LookupError)
    kept.set("text", "x")
    with pytest.raises(ValueError, match="number"):
        kept.add("text", 1)
    with pytest.raises(dist.QueueEmptyError):
        kept.clone().queue_pop("q", block=False)


def test_without_torch_it_is_ours(one_etcd: Cluster, name: str) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from rallypoint.elastic.etcd_store import EtcdStore
from rallypoint.backends.etcd_v2_client import make_client
from rallypoint.net import parse_endpoints
from rallypoint.stores import Store
store = EtcdStore(make_client(parse_endpoints({one_etcd.endpoint!r}, 2379)), {name!r})
assert isinstance(store, Store)
print(store.add("n", 5), EtcdStore.__module__)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "5 rallypoint.elastic.etcd_store\n"


def test_importing_the_module_imports_neither_torch_nor_python_etcd() -> None:
    program = """
import sys
import rallypoint.elastic.etcd_store, rallypoint.elastic.etcd_rendezvous_backend, rallypoint.elastic.etcd_server
import rallypoint.elastic.etcd_rendezvous
assert not {"torch", "etcd", "urllib3"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_gloo_process_group_runs_on_it(etcd: Cluster, name: str) -> None:
    ranks = [
        ForkedProcess("tests.support.gloo_rank", etcd.endpoint, f"/gloo/{name}", str(rank), "3", imported=TORCH)
        for rank in range(3)
    ]
    assert [process.communicate(timeout=SOON_S)[0] for process in ranks] == ["6\n"] * 3


# Beside torch's own ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["key", "torchelastic/role_info/0", "ü", "with space", "a+b"])
def test_torch_reads_what_ours_wrote_and_the_other_way(client: Any, name: str, key: str) -> None:
    ours, theirs = EtcdStore(client, f"/both/{name}", SOON), TorchEtcdStore(client, f"/both/{name}", SOON)
    ours.set(key, "ours")
    assert theirs.get(key) == b"ours"
    theirs.set(key, "theirs")
    assert ours.get(key) == b"theirs"
    assert ours.compare_set(key, "theirs", "again") == b"again"
    assert theirs.get(key) == b"again"
    assert ours.list_keys() == [key]


def test_torch_and_ours_count_together(client: Any, name: str) -> None:
    ours, theirs = EtcdStore(client, f"/both/{name}", SOON), TorchEtcdStore(client, f"/both/{name}", SOON)
    with ThreadPoolExecutor(4) as pool:
        sums = pool.map(lambda store: [store.add("n", 1) for _ in range(10)], [ours, theirs, ours, theirs])
        assert sorted(total for part in sums for total in part) == list(range(1, 41))


def test_ours_wakes_torch_and_torch_wakes_ours(client: Any, name: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        ours, theirs = EtcdStore(client, f"/both/{name}", SOON), TorchEtcdStore(client, f"/both/{name}", SOON)
        ours.set("here", "")
        waiting = pool.submit(theirs.get, "one")
        ours.set("one", "1")
        assert waiting.result(SOON_S) == b"1"
        waiting = pool.submit(ours.get, "two")
        theirs.set("two", "2")
        assert waiting.result(SOON_S) == b"2"


def test_keys_that_torch_loses_are_kept(store: EtcdStore) -> None:
    """Their base64 has a slash in it, which etcd takes for a directory."""
    keys = ["AB?", "AB?DEF", "?", "", "ab?ab?ab?"]
    for key in keys:
        assert "/" in b64encode(key.encode()).decode() or not key or key == "?"
        store.set(key, key)
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]
    assert sorted(store.list_keys()) == sorted(keys)


# One key at a time ----------------------------------------------------------------------------------------------------


def test_a_get_reads_its_key_and_nothing_else(proxy: Proxy, proxied: Any, name: str) -> None:
    store = EtcdV2Store(proxied, f"/stores/{name}", SOON)
    store.set("key", "value")
    assert not store.check(["other"])
    before = proxy.count("GET ")
    assert store.get("key") == b"value"
    assert proxy.count("GET ") == before + 1
    assert proxy.count(f"GET /v2/keys/stores/{name}/a2V5") == 1


def test_a_wait_watches_and_does_not_ask_again(proxy: Proxy, proxied: Any, name: str) -> None:
    waiting_store = EtcdV2Store(proxied, f"/stores/{name}", SOON)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiting_store.wait, ["key"])
        proxy.wait_for("wait=true", 2)  # as a value, and as a queue
        asked = proxy.count("GET ")
        other = EtcdV2Store(proxied, f"/stores/{name}", SOON)
        for number in range(20):
            other.set(f"other{number}", "x")
        assert not waiting.done()
        assert proxy.count("GET ") == asked
        other.set("key", "value")
        waiting.result(SOON_S)


def test_compare_set_goes_by_what_another_store_wrote_meanwhile(one_etcd: Cluster, name: str) -> None:
    store, other = (EtcdV2Store(one_etcd.client(), f"/stores/{name}", SOON) for _ in range(2))
    for before, sign in (("", "1"), ("1", "2"), ("2", "3")):
        assert store.compare_set("key", before, sign) == sign.encode()
    # Another one has written, the same or something else, or has deleted it: what is there counts.
    assert other.compare_set("key", "3", "4") == b"4"
    assert store.compare_set("key", "3", "5") == b"4"
    assert other.compare_set("key", "4", "3") == b"3"
    assert store.compare_set("key", "3", "5") == b"5"
    assert other.delete_key("key")
    assert store.compare_set("key", "5", "6") == b"5"
    assert store.compare_set("key", "", "6") == b"6"
    assert store.compare_set("key", "", "7") == b"6"


def test_what_etcd_does_not_take_is_refused_in_words(store: EtcdStore) -> None:
    with pytest.raises(StoreError, match=r"the value has 4,194,305 bytes, but etcd takes 4,194,304 at most"):
        store.set("key", b"x" * (LARGEST_VALUE + 1))
    store.set("key", b"x" * LARGEST_VALUE)
    assert len(store.get("key")) == LARGEST_VALUE
    with pytest.raises(StoreError):
        store.append("key", "y")
    with pytest.raises(StoreError, match=r"too long for etcd: .* 3,500 are the most"):
        store.set("k" * 4000, "v")


def test_what_is_no_base64_is_told(store: EtcdStore, client: Any, name: str) -> None:
    client.write(f"/stores/{name}/a2V5", "not base64")
    with pytest.raises(StoreError, match=r"holds 'not base64', but should be base64"):
        store.get("key")


def test_keys_with_a_time_to_live_live_as_long_as_a_process_uses_them(client: Any, name: str) -> None:
    store = EtcdV2Store(client, f"/stores/{name}", SOON, ttl_s=2)
    store.set("key", "value")
    passing = EtcdV2Store(client, f"/stores/{name}", SOON)
    passing._keys.write(f"/stores/{name}/b3RoZXI=", "", passing._request_deadline(), ttl_s=4)
    # The other one is nobody's, and its end is the sign that enough time has passed.
    wait_until_gone(client, f"/stores/{name}/b3RoZXI=")
    assert store.check(["key"])
    assert not store.check(["other"])
    store._used = None
    wait_until_gone(client, f"/stores/{name}/a2V5")


def wait_until_gone(client: Any, key: str) -> None:
    index = client.read(key).modifiedIndex
    while client.watch(key, index=index + 1, timeout=30).action != "expire":
        index += 1


# Answers that get lost ------------------------------------------------------------------------------------------------

EXACTLY_ONCE: dict[str, tuple[Callable[[EtcdV2Store], object], Callable[[EtcdV2Store], object], object]] = {
    "set": (lambda store: store.set("key", "new"), lambda store: store.get("key"), b"new"),
    "add": (lambda store: store.add("n", 1), lambda store: store.get("n"), b"6"),
    "append": (lambda store: store.append("log", "b"), lambda store: store.get("log"), b"ab"),
    "compare_set": (lambda store: store.compare_set("key", "old", "new"), lambda store: store.get("key"), b"new"),
    "queue_push": (lambda store: store.queue_push("q", "3"), lambda store: store.queue_len("q"), 3),
    "queue_pop": (lambda store: store.queue_pop("q"), lambda store: store.queue_len("q"), 1),
    "barrier": (lambda store: store.barrier("b", 1), lambda store: store.get("b"), b"1"),
}


@pytest.mark.parametrize("change", EXACTLY_ONCE)
def test_a_change_whose_answer_is_lost_happens_once(proxy: Proxy, proxied: Any, name: str, change: str) -> None:
    store = EtcdV2Store(proxied, f"/stores/{name}", SOON)
    store.multi_set(["key", "n", "log"], ["old", "5", "a"])
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    do, look, expected = EXACTLY_ONCE[change]
    proxy.lose_answer_to("PUT")
    do(store)
    assert look(store) == expected
    assert proxy.lost == 1


def test_a_refusal_whose_answer_is_lost_is_not_taken_for_success_because_another_wrote_the_same(
    proxy: Proxy, proxied: Any, one_etcd: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = (EtcdV2Store(client, f"/stores/{name}", SOON) for client in (proxied, one_etcd.client()))
    store.set("n", "5")
    swap = Keys.swap

    def swap_too_late(self: Keys, *args: Any, **options: Any) -> Any:
        # Between the reading and the writing of ours.
        monkeypatch.setattr(Keys, "swap", swap)
        assert other.add("n", 1) == 6
        proxy.lose_answer_to("PUT")
        return swap(self, *args, **options)

    monkeypatch.setattr(Keys, "swap", swap_too_late)
    assert store.add("n", 1) == 7
    assert proxy.lost == 1


def test_a_delete_whose_answer_is_lost_has_deleted(proxy: Proxy, proxied: Any, name: str) -> None:
    store = EtcdV2Store(proxied, f"/stores/{name}", SOON)
    store.set("key", "value")
    proxy.lose_answer_to("DELETE")
    assert store.delete_key("key")
    assert not store.check(["key"])


# An etcd that fails ---------------------------------------------------------------------------------------------------


def test_a_watch_that_cannot_connect_turns_away_that_member_alone(one_etcd: Cluster) -> None:
    import etcd

    keys, here = Keys(etcd.Client(host="127.0.0.1", port=1)), one_etcd.client().base_uri
    keys.also([here])
    assert wait_for_event(keys, [("/key", False)], 0, SOON_S) is None
    assert keys.member == here


def test_a_wait_outlives_a_history_that_was_cleared(proxied: Any, proxy: Proxy, one_etcd: Cluster, name: str) -> None:
    store, other = EtcdV2Store(proxied, f"/stores/{name}", SOON), EtcdV2Store(one_etcd.client(), f"/other/{name}", SOON)
    index = store._keys.read("/", store._request_deadline()).at
    for number in range(1100):
        other.set("key", str(number))
    with ThreadPoolExecutor(1) as pool:
        # As if these events had happened between the look and the watch.
        values = store._values
        store._values = lambda names, deadline: (values(names, deadline)[0], index)  # type: ignore[method-assign]
        waiting = pool.submit(store.wait, ["key"])
        proxy.wait_for("wait=true", 2)
        store._values = values  # type: ignore[method-assign]
        EtcdV2Store(one_etcd.client(), f"/stores/{name}", SOON).set("key", "value")
        waiting.result(SOON_S)


def test_waits_and_writes_outlive_a_restart(own_etcd: Cluster) -> None:
    store = EtcdV2Store(own_etcd.client(), "/stores", SOON)
    store.set("before", "kept")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(store.get, "key")
        own_etcd.members[0].kill()
        writing = pool.submit(store.add, "n", 5)
        own_etcd.members[0].start()
        assert writing.result(SOON_S) == 5
        store.set("key", "value")
        assert waiting.result(SOON_S) == b"value"
    assert store.get("before") == b"kept"


def test_etcd_that_does_not_come_back_is_told(own_etcd: Cluster) -> None:
    store = EtcdV2Store(own_etcd.client(read_timeout_s=1), "/stores", timedelta(seconds=1))
    own_etcd.members[0].kill()
    with pytest.raises(StoreError, match=rf"etcd did not answer within 1 s .*{own_etcd.members[0].port}"):
        store.set("key", "value")


def test_no_count_is_lost_or_doubled_while_leaders_die_and_pause(own_cluster: Cluster) -> None:
    count_while_leaders_fail(own_cluster, [EtcdV2Store(own_cluster.client(), "/stores", SOON) for _ in range(4)])
