"""The older `etcd` handler by itself: what it does at each step, and where it goes on while PyTorch's stops."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rallypoint.elastic.api import RendezvousHandler, RendezvousInfo, RendezvousParameters
from rallypoint.elastic.etcd_rendezvous import (
    EtcdRendezvous,
    EtcdRendezvousHandler,
    create_rdzv_handler,
    parameters_from_url,
)
from rallypoint.elastic.legacy_etcd import protocol
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.stores import StoreError
from tests.etcd_v2.answer_losing_proxy import Proxy
from tests.support.etcd_servers import Cluster, shared, wait_until

SOON_S = 60.0


def params(endpoint: str, run_id: str, least: int, most: int, **config: Any) -> RendezvousParameters:
    given = {"timeout": 60, "last_call_timeout": 1, **config}
    return RendezvousParameters("etcd", endpoint, run_id, least, most, local_addr="127.0.0.1", **given)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


class LegacyRun:
    """Nodes of one run in threads of this process."""

    def __init__(self, endpoint: str, run_id: str, pool: ThreadPoolExecutor, client: Any) -> None:
        self.endpoint, self.run_id, self.pool, self.client = endpoint, run_id, pool, client
        self.root = f"/torchelastic/p2p/run_{run_id}"

    def node(self, least: int, most: int, **config: Any) -> RendezvousHandler:
        return create_rdzv_handler(params(self.endpoint, self.run_id, least, most, **config))

    def join(self, *nodes: RendezvousHandler) -> list[Future[RendezvousInfo]]:
        return [self.pool.submit(node.next_rendezvous) for node in nodes]

    def meet(self, *nodes: RendezvousHandler) -> list[RendezvousInfo]:
        return [joining.result(SOON_S) for joining in self.join(*nodes)]

    @property
    def active(self) -> Any:
        return self.client.read(f"{self.root}/rdzv/active_version")

    def state(self) -> dict[str, Any]:
        import etcd

        try:
            return protocol.read(self.active.value)
        except etcd.EtcdKeyNotFound:
            return {}


@pytest.fixture
def legacy_run(etcd: Cluster, name: str, pool: ThreadPoolExecutor) -> LegacyRun:
    return LegacyRun(etcd.endpoint, name, pool, etcd.client())


@pytest.fixture
def one(one_etcd: Cluster, name: str, pool: ThreadPoolExecutor) -> LegacyRun:
    return LegacyRun(one_etcd.endpoint, name, pool, one_etcd.client())


# The protocol ---------------------------------------------------------------------------------------------------------


def test_the_keys_of_a_world_are_those_of_the_protocol(legacy_run: LegacyRun) -> None:
    first, second = legacy_run.node(2, 2), legacy_run.node(2, 2)
    infos = legacy_run.meet(first, second)
    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    node = legacy_run.active
    rdzv = f"{legacy_run.root}/rdzv"
    state = json.loads(node.value)
    assert sorted(state.pop("keep_alives")) == [f"{rdzv}/v_1/rank_0", f"{rdzv}/v_1/rank_1"]
    assert state == {"status": "final", "version": "1", "participants": [0, 1], "num_workers_waiting": 0}
    assert node.ttl is None
    assert not protocol.is_mixed(node.value)
    assert legacy_run.client.read(f"{rdzv}/version_counter").value == "1"
    assert 0 < legacy_run.client.read(f"{rdzv}/v_1/rank_0").ttl <= 10
    assert 7100 < legacy_run.client.read(legacy_run.root).ttl <= 7200
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert legacy_run.client.read(f"{rdzv}/v_1/kv/a2V5").value == "dmFsdWU="
    stores = [info.bootstrap_store_info for info in infos]
    assert stores[0] == stores[1]
    assert (first.get_backend(), first.get_run_id(), first.num_nodes_waiting()) == ("etcd", legacy_run.run_id, 0)


def test_the_last_call_waits_for_more_and_ends(legacy_run: LegacyRun) -> None:
    nodes = [legacy_run.node(1, 3), legacy_run.node(1, 3)]
    began = time.monotonic()
    infos = legacy_run.meet(*nodes)
    assert {info.world_size for info in infos} == {2}
    assert time.monotonic() - began >= 1.0


def test_a_last_call_lasts_longer_where_a_node_of_pytorchs_was_seen_by_anybody(one: LegacyRun) -> None:
    """Theirs take a second to come back; the one who keeps the last call knows it from another of ours."""
    first, keeper, late = (one.node(2, 3, last_call_timeout=0) for _ in range(3))
    theirs = json.dumps({"status": "joinable", "version": "1", "participants": []})
    one.client.write(f"{one.root}/rdzv/active_version", theirs)
    joining = one.join(first)
    wait_until(lambda: one.state()["participants"] == [0])
    joining += one.join(keeper)
    wait_until(lambda: one.state()["participants"] == [0, 1])
    joining += one.join(late)
    assert [future.result(SOON_S).world_size for future in joining] == [3, 3, 3]
    assert one.state()["version"] == "1"
    assert protocol.is_mixed(one.active.value)


def test_the_one_who_completes_min_keeps_the_state_alive(one: LegacyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "JOINABLE_TTL_S", 2)
    joining = one.join(one.node(1, 2, last_call_timeout=5))
    wait_until(lambda: one.state().get("participants") == [0])
    assert one.active.ttl <= protocol.JOINABLE_TTL_S
    assert joining[0].result(SOON_S).world_size == 1
    assert one.state()["version"] == "1"


def test_below_min_the_state_has_no_end(one: LegacyRun) -> None:
    joining = one.join(one.node(2, 2))
    wait_until(lambda: one.state().get("participants") == [0])
    assert one.active.ttl is None
    one.meet(one.node(2, 2))
    assert joining[0].result(SOON_S).world_size == 2


def test_a_late_joiner_is_announced_and_let_in(legacy_run: LegacyRun) -> None:
    first, second, late = (legacy_run.node(2, 3) for _ in range(3))
    legacy_run.meet(first, second)
    joining = legacy_run.join(late)
    wait_until(lambda: first.num_nodes_waiting() == 1)
    assert second.num_nodes_waiting() == 1
    infos = [*legacy_run.meet(first, second), joining[0].result(SOON_S)]
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert legacy_run.state()["version"] == "2"


def test_who_was_left_behind_is_told(one: LegacyRun) -> None:
    """Others have gone on to another version before this node looked."""
    nodes = [one.node(1, 2, last_call_timeout=2) for _ in range(2)]
    one.meet(*nodes)
    again = one.join(nodes[0])
    wait_until(lambda: one.state().get("version") == "2")
    assert nodes[1].num_nodes_waiting() >= 1
    one.meet(nodes[1])
    assert again[0].result(SOON_S).world_size == 2


def test_closing_ends_every_entrance(legacy_run: LegacyRun) -> None:
    node, other = legacy_run.node(1, 1), legacy_run.node(2, 2)
    legacy_run.meet(node)
    assert not node.is_closed()
    node.set_closed()
    node.set_closed()
    assert node.is_closed()
    assert other.is_closed()
    assert node.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError, match="is closed"):
        other.next_rendezvous()
    state = legacy_run.state()
    assert (state["status"], state["version"], state["participants"]) == ("closed", "1", [0])


def test_closing_reaches_those_who_wait(one: LegacyRun) -> None:
    joining = one.join(one.node(2, 2))
    wait_until(lambda: one.state().get("participants") == [0])
    assert one.node(2, 2).shutdown()
    with pytest.raises(RendezvousClosedError):
        joining[0].result(SOON_S)


def test_a_time_out_has_a_sentence(one: LegacyRun) -> None:
    with pytest.raises(
        RendezvousTimeoutError, match=r"within 1 s: 1 of at least 2 nodes are here for version 1; 1 more must come"
    ):
        one.node(2, 3, timeout=1).next_rendezvous()


def test_a_state_that_makes_no_sense_is_a_state_error(one: LegacyRun) -> None:
    for text in ("no json", "[]", '{"status": "what"}', '{"status": "joinable", "version": "1"}'):
        one.client.write(f"{one.root}/rdzv/active_version", text)
        with pytest.raises(RendezvousStateError):
            one.node(1, 1).next_rendezvous()


def test_a_node_that_died_before_it_confirmed_is_left_out(one: LegacyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place in the frozen state expires, and the others begin anew."""
    monkeypatch.setattr(protocol, "FROZEN_TTL_S", 2)
    one.node(1, 1)
    ghost = {"status": "joinable", "version": "7", "participants": [0]}
    one.client.write(f"{one.root}/rdzv/active_version", json.dumps(ghost))
    assert [info.world_size for info in one.meet(one.node(1, 2))] == [1]
    assert one.state()["version"] == "1"


def test_extra_data_is_kept_beside_a_version(one: LegacyRun, one_etcd: Cluster, pool: ThreadPoolExecutor) -> None:
    rendezvous = EtcdRendezvous(one_etcd.client(), "/torchelastic/p2p", one.run_id, 1, 1, 60, 1)
    assert rendezvous.rendezvous_barrier() == ("1", 0, 1)
    waiting = pool.submit(rendezvous.load_extra_data, "1", "key")
    rendezvous.store_extra_data("1", "other", "x")
    rendezvous.store_extra_data("1", "key", "value")
    assert waiting.result(SOON_S) == "value"
    assert json.loads(one.client.read(f"{one.root}/rdzv/v_1/extra_data").value) == {"other": "x", "key": "value"}
    with pytest.raises(RendezvousTimeoutError, match=r"nobody has stored 'none' for version 1 .* within 0\.1 s"):
        rendezvous.load_extra_data("1", "none", 0.1)


# Options --------------------------------------------------------------------------------------------------------------


def test_a_url_says_it_all(one_etcd: Cluster, name: str) -> None:
    read = parameters_from_url(
        f"etcd://{one_etcd.endpoint}/{name}?min_workers=1&max_workers=3&timeout=5&last_call_timeout=1&etcd_prefix=/mine"
    )
    assert (read.run_id, read.min_nodes, read.max_nodes, read.endpoint) == (name, 1, 3, one_etcd.endpoint)
    handler = create_rdzv_handler(read)
    assert handler.next_rendezvous().world_size == 1
    assert one_etcd.client().read(f"/mine/run_{name}").dir
    handler = create_rdzv_handler(params(f"etcd://{one_etcd.endpoint}", f"{name}-2", 1, 1))
    assert handler.next_rendezvous().world_size == 1


@pytest.mark.parametrize("url", ["http://localhost/run", "etcd://localhost", "etcd://localhost/run?min_workers=x"])
def test_a_url_that_cannot_be_read_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        parameters_from_url(url)


@pytest.mark.parametrize(
    ("option", "value"), [("timeout", "-1"), ("protocol", "ftp"), ("protocol", "HTTP"), ("last_call_timeout", "-1")]
)
def test_a_bad_option_is_a_value_error(one_etcd: Cluster, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        create_rdzv_handler(params(one_etcd.endpoint, "run", 1, 1, **{option: value}))


def test_no_time_is_a_time_out_and_an_unknown_option_is_ignored(
    one: LegacyRun, caplog: pytest.LogCaptureFixture
) -> None:
    node = one.node(2, 2, timeout=0, is_host=True, tiemout=5, cert="", key="", cacert="", etcd_prefix="")
    with pytest.raises(RendezvousTimeoutError):
        node.next_rendezvous()
    assert one.client.read(one.root).dir
    assert "has no option 'tiemout', and ignores it. Did you mean 'timeout'?" in caplog.text


def test_runs_may_lie_in_the_root_directory(one: LegacyRun) -> None:
    """A node that waits there does not take a healthy world for one that has lost somebody."""
    first, second, late = (one.node(2, 3, etcd_prefix="/") for _ in range(3))
    before = one.meet(first, second)
    joining = one.join(late)
    wait_until(lambda: first.num_nodes_waiting() == 1)
    one.root = f"/run_{one.run_id}"
    assert (one.state()["version"], {info.world_size for info in before}) == ("1", {2})
    infos = [*one.meet(first, second), joining[0].result(SOON_S)]
    assert (one.state()["version"], {info.world_size for info in infos}) == ("2", {3})


def test_etcd_that_is_not_there_or_has_no_api_v2_is_a_connection_error() -> None:
    with pytest.raises(RendezvousConnectionError, match=r"is not reached"):
        create_rdzv_handler(params("127.0.0.1:1", "run", 1, 1, timeout=1))
    with pytest.raises(RendezvousConnectionError, match=r"does not speak the API v2.*'etcd-v3'"):
        create_rdzv_handler(params(shared("3.5", v2=False).endpoint, "run", 1, 1))


def test_https_with_client_certificates(name: str) -> None:
    cluster = shared("3.5", tls=True)
    assert cluster.tls is not None
    files: dict[str, Any] = {"cert": cluster.tls.cert, "key": cluster.tls.key, "cacert": cluster.tls.ca}
    handler = create_rdzv_handler(params(cluster.endpoint, name, 1, 2, protocol="https", **files))
    assert handler.next_rendezvous().world_size == 1


# Where PyTorch's stops ------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_began_can_be_closed(legacy_run: LegacyRun) -> None:
    legacy_run.node(1, 1).set_closed()
    assert legacy_run.state() == {"status": "closed"}
    with pytest.raises(RendezvousClosedError):
        legacy_run.node(1, 1).next_rendezvous()


def test_answers_that_get_lost_cost_nobody_a_place(one: LegacyRun, proxy: Proxy) -> None:
    """Each write of one node is carried out and not answered, once."""
    behind = create_rdzv_handler(params(f"127.0.0.1:{proxy.port}", one.run_id, 2, 2))
    proxy.lose_answer_to(*["PUT"] * 8)
    infos = one.meet(behind, one.node(2, 2))
    assert sorted(info.rank for info in infos) == [0, 1]
    assert one.state()["participants"] == [0, 1]
    assert proxy.lost == 8


def test_a_wait_outlives_a_history_that_was_cleared(one: LegacyRun, proxy: Proxy) -> None:
    joining = one.join(create_rdzv_handler(params(f"127.0.0.1:{proxy.port}", one.run_id, 2, 2)))
    proxy.wait_for("wait=true")
    for number in range(1100):
        one.client.write("/elsewhere", str(number))
    one.meet(one.node(2, 2))
    assert joining[0].result(SOON_S).world_size == 2


def test_a_keep_alive_key_that_was_lost_comes_back(one: LegacyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "KEEP_ALIVE_TTL_S", 2)
    handler = one.node(1, 1)
    one.meet(handler)
    key = f"{one.root}/rdzv/v_1/rank_0"
    index = one.client.delete(key).modifiedIndex
    event = one.client.watch(key, index=index + 1, timeout=30)
    assert (event.action, event.value) == ("set", "rallypoint")
    assert one.meet(handler)[0].world_size == 1


def test_keeping_alive_outlives_every_error(one: LegacyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from rallypoint.stores.etcd_v2.keys import Keys

    monkeypatch.setattr(protocol, "KEEP_ALIVE_TTL_S", 2)
    prolong, failures = Keys.prolong, [StoreError("away"), RuntimeError("a bug")]
    recovered = threading.Event()

    def failing(self: Keys, path: str, *args: Any, **options: Any) -> bool:
        if "rank_0" in path and one.run_id in path:
            if failures:
                raise failures.pop()
            recovered.set()
        return prolong(self, path, *args, **options)

    monkeypatch.setattr(Keys, "prolong", failing)
    handler = one.node(1, 1)
    one.meet(handler)
    assert recovered.wait(SOON_S)
    assert handler.num_nodes_waiting() == 0


def test_a_handler_that_is_dropped_lets_its_key_expire(one: LegacyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "KEEP_ALIVE_TTL_S", 2)
    handler = one.node(1, 1)
    one.meet(handler)
    key = f"{one.root}/rdzv/v_1/rank_0"
    index = one.client.read(key).modifiedIndex
    del handler
    gc.collect()
    assert one.client.watch(key, index=index + 1, timeout=30).action == "expire"


def test_joining_outlives_a_restart_of_etcd(own_etcd: Cluster, pool: ThreadPoolExecutor) -> None:
    legacy_run = LegacyRun(own_etcd.endpoint, "run", pool, own_etcd.client())
    nodes = [legacy_run.node(2, 2) for _ in range(2)]
    joining = legacy_run.join(nodes[0])
    wait_until(lambda: legacy_run.state().get("participants") == [0])
    own_etcd.members[0].kill()
    joining += legacy_run.join(nodes[1])
    own_etcd.members[0].start()
    assert {future.result(SOON_S).world_size for future in joining} == {2}
    own_etcd.members[0].kill()
    # An agent asks all the time, and must not be held up, nor told to stop its workers.
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    own_etcd.members[0].start()
    own_etcd.members[0].wait()
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    assert nodes[0].shutdown()
    assert nodes[1].is_closed()


def test_joining_outlives_elections(own_cluster: Cluster, pool: ThreadPoolExecutor) -> None:
    legacy_run = LegacyRun(own_cluster.endpoints, "run", pool, own_cluster.client())
    nodes = [legacy_run.node(2, 2) for _ in range(2)]
    joining = legacy_run.join(nodes[0])
    wait_until(lambda: legacy_run.state().get("participants") == [0])
    leader = own_cluster.leader()
    leader.kill()
    joining += legacy_run.join(nodes[1])
    assert {future.result(SOON_S).world_size for future in joining} == {2}
    assert isinstance(nodes[0], EtcdRendezvousHandler)
    assert nodes[0].shutdown()


def test_a_rank_0_that_dies_before_it_says_where_to_meet_holds_nobody_up(one: LegacyRun, one_etcd: Cluster) -> None:
    silent = EtcdRendezvous(one_etcd.client(), "/torchelastic/p2p", one.run_id, 2, 2, 60, 1)
    barrier = one.pool.submit(silent.rendezvous_barrier)
    wait_until(lambda: one.state().get("participants") == [0])
    joining = one.join(one.node(2, 2))
    assert barrier.result(SOON_S)[1] == 0
    silent.leave()
    one.meet(one.node(2, 2))
    assert joining[0].result(SOON_S).world_size == 2
