"""What a rendezvous is asked with, what it answers, and what every handler has."""

from __future__ import annotations

import inspect
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from threading import Condition
from typing import Any

import pytest

import rallypoint.elastic
from rallypoint import errors
from rallypoint.elastic import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
)

# Parameters -----------------------------------------------------------------------------------------------------------


def parameters(min_nodes: int = 2, max_nodes: int = 4, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("mine", "node1:29400", "run", min_nodes, max_nodes, **config)


def test_parameters_keep_what_they_are_given_and_the_rest_is_configuration() -> None:
    params = RendezvousParameters("mine", "node1:29400", "run", 2, 4, "10.0.0.1", join_timeout="5", is_host=True)
    assert (params.backend, params.endpoint, params.run_id) == ("mine", "node1:29400", "run")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (2, 4, "10.0.0.1")
    assert params.config == {"join_timeout": "5", "is_host": True}


def test_the_local_address_may_be_left_out() -> None:
    assert parameters().local_addr is None


def test_parameters_may_be_changed_afterwards() -> None:
    params = parameters()
    params.backend = "other"
    assert params.backend == "other"


@pytest.mark.parametrize("backend", ["", None])
def test_a_backend_needs_a_name(backend: Any) -> None:
    with pytest.raises(ValueError, match=f"The backend is {backend!r}, but should be a name"):
        RendezvousParameters(backend, "", "run", 1, 1)


@pytest.mark.parametrize("min_nodes", [0, -1])
def test_a_run_has_at_least_one_node(min_nodes: int) -> None:
    with pytest.raises(ValueError, match=f"min_nodes is {min_nodes}, but"):
        parameters(min_nodes, 4)


def test_max_is_not_below_min_and_both_are_shown() -> None:
    with pytest.raises(ValueError, match="max_nodes is 2, less than min_nodes, which is 3"):
        parameters(3, 2)


@pytest.mark.parametrize("nodes", [1, 5])
def test_min_and_max_may_be_equal(nodes: int) -> None:
    params = parameters(nodes, nodes)
    assert (params.min_nodes, params.max_nodes) == (nodes, nodes)


def test_an_option_is_read_as_it_was_given() -> None:
    params = parameters(topology="rack1/node2", rank=3)
    assert params.get("topology") == "rack1/node2"
    assert params.get("rank", 7) == 3


def test_an_option_that_was_not_given_is_its_default() -> None:
    params = parameters()
    assert params.get("rank") is None
    assert params.get("rank", 7) == 7
    assert params.get_as_int("rank") is None
    assert params.get_as_int("rank", 7) == 7
    assert params.get_as_bool("is_host") is None
    assert params.get_as_bool("is_host", True) is True
    assert params.get_as_bool("is_host", default=False) is False


@pytest.mark.parametrize("value", [True, 1, "1", "true", "TRUE", "tRuE", "t", "T", "yes", "Yes", "y", "Y"])
def test_what_means_true_is_true(value: object) -> None:
    assert parameters(is_host=value).get_as_bool("is_host") is True


@pytest.mark.parametrize("value", [False, 0, "0", "false", "FALSE", "fAlSe", "f", "F", "no", "No", "n", "N"])
def test_what_means_false_is_false(value: object) -> None:
    assert parameters(is_host=value).get_as_bool("is_host", True) is False


@pytest.mark.parametrize("value", [2, -1, 1.0, "2", "01", "", "ture", "yesno", "on", b"1", []])
def test_what_is_no_truth_is_refused_with_the_option_and_the_value(value: object) -> None:
    with pytest.raises(ValueError, match=r"'is_host' is .*, but should be true or false") as refusal:
        parameters(is_host=value).get_as_bool("is_host")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "number"), [(0, 0), (-4, -4), ("12", 12), ("-12", -12), (" 3 ", 3), (4.0, 4), (1.5, 1), (b"1", 1)]
)
def test_what_is_a_whole_number_is_read_as_one(value: object, number: int) -> None:
    read = parameters(rank=value).get_as_int("rank")
    assert read == number
    assert type(read) is int


@pytest.mark.parametrize("value", ["", "a", "3b", "1.5", float("nan"), float("inf"), []])
def test_what_is_no_whole_number_is_refused_with_the_option_and_the_value(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"'rank' is .*, but should be a whole number") as refusal:
        parameters(rank=value).get_as_int("rank")
    assert repr(value) in str(refusal.value)


# The answer -----------------------------------------------------------------------------------------------------------


def test_a_place_in_the_world_can_be_read_but_not_changed() -> None:
    store, bootstrap = object(), RendezvousStoreInfo("node1", 29500)
    info = RendezvousInfo(store, 1, 3, bootstrap)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == (store, 1, 3, bootstrap)
    for name in ("store", "rank", "world_size", "bootstrap_store_info"):
        with pytest.raises(AttributeError):
            setattr(info, name, None)


def test_a_place_takes_its_parts_by_name() -> None:
    info = RendezvousInfo(store=None, rank=0, world_size=1, bootstrap_store_info=None)
    assert info.bootstrap_store_info is None


def test_a_place_can_be_subclassed_and_given_more_attributes() -> None:
    class Labelled(RendezvousInfo):
        def __init__(self, label: str, *place: Any) -> None:
            super().__init__(*place)
            self.label = label

        @property
        def rank(self) -> int:
            return super().rank + 100

    info = Labelled("first", None, 1, 3, None)
    assert (info.label, info.rank, info.world_size) == ("first", 101, 3)
    assert vars(info)["label"] == "first"


def test_a_place_shows_what_it_is_and_can_be_sent_to_another_process() -> None:
    info = RendezvousInfo(None, 1, 3, RendezvousStoreInfo("node0", 1))
    assert "rank=1, world_size=3" in repr(info)
    copy = pickle.loads(pickle.dumps(info))  # noqa: S301  # written here
    assert vars(copy) == vars(info)
    assert copy != info


# The bootstrap address ------------------------------------------------------------------------------------------------


class SharedStore:
    """A store whose `get` waits for the key, as c10d's do."""

    def __init__(self, **values: bytes) -> None:
        self._values = dict(values)
        self._changed = Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout=30):
                raise LookupError(key)
            return self._values[key]


def test_all_ranks_get_the_address_and_port_that_rank_0_was_given() -> None:
    store = SharedStore()
    with ThreadPoolExecutor(3) as nodes:
        others = [nodes.submit(RendezvousStoreInfo.build, rank, store, f"node{rank}") for rank in (1, 2)]
        first = nodes.submit(RendezvousStoreInfo.build, 0, store, "node0", server_port=29500)
        expected = RendezvousStoreInfo("node0", 29500)
        assert [answer.result() for answer in (first, *others)] == [expected] * 3


def test_rank_0_publishes_under_the_names_that_workers_know() -> None:
    store = SharedStore()
    RendezvousStoreInfo.build(0, store, "node0", 29500)
    assert store.get("MASTER_ADDR") == b"node0"
    assert store.get("MASTER_PORT") == b"29500"


@pytest.mark.parametrize("unset", [None, ""])
def test_without_an_address_rank_0_publishes_the_name_of_its_host(unset: str | None) -> None:
    assert RendezvousStoreInfo.build(0, SharedStore(), unset, 29500).master_addr == socket.gethostname()


@pytest.mark.parametrize("unset", [None, 0])
def test_without_a_port_rank_0_publishes_one_that_can_be_bound(unset: int | None) -> None:
    port = RendezvousStoreInfo.build(0, SharedStore(), "node0", unset).master_port
    with socket.create_server(("", port)) as server:
        assert server.getsockname()[1] == port


@pytest.mark.parametrize(("address", "port"), [(b"node0", b"soon"), (b"\xff\xfe", b"29500"), (b"node0", b"")])
def test_what_no_rank_0_wrote_is_refused_in_words(address: bytes, port: bytes) -> None:
    store = SharedStore(MASTER_ADDR=address, MASTER_PORT=port)
    with pytest.raises(RendezvousStateError) as refusal:
        RendezvousStoreInfo.build(1, store, None)
    assert repr(address) in str(refusal.value)
    assert repr(port) in str(refusal.value)


def test_addresses_are_equal_by_value() -> None:
    assert RendezvousStoreInfo(master_addr="node0", master_port=1) == RendezvousStoreInfo("node0", 1)
    assert RendezvousStoreInfo("node0", 1) != RendezvousStoreInfo("node0", 2)


def test_an_address_is_a_dataclass() -> None:
    info = RendezvousStoreInfo("node0", 1)
    assert asdict(info) == vars(info) == {"master_addr": "node0", "master_port": 1}
    assert [field.name for field in fields(info)] == ["master_addr", "master_port"]
    assert replace(info, master_port=2) == RendezvousStoreInfo("node0", 2)
    info.master_addr = "node1"
    assert info == RendezvousStoreInfo("node1", 1)


def test_an_address_can_be_subclassed() -> None:
    @dataclass
    class Labelled(RendezvousStoreInfo):
        label: str = "none"

    info = Labelled("node0", 1, label="first")
    assert asdict(info) == {"master_addr": "node0", "master_port": 1, "label": "first"}
    assert isinstance(info, RendezvousStoreInfo)


# Handlers and errors --------------------------------------------------------------------------------------------------


def test_a_handler_must_have_every_method_of_the_contract() -> None:
    assert inspect.isabstract(RendezvousHandler)
    assert RendezvousHandler.__abstractmethods__ == {
        "get_backend",
        "get_run_id",
        "is_closed",
        "next_rendezvous",
        "num_nodes_waiting",
        "set_closed",
        "shutdown",
    }


def test_workers_start_a_store_of_their_own_unless_a_handler_says_otherwise() -> None:
    class Handler(RendezvousHandler):
        def get_backend(self) -> str:
            return "mine"

        def next_rendezvous(self) -> RendezvousInfo:
            return RendezvousInfo(None, 0, 1, None)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return "run"

        def shutdown(self) -> bool:
            return True

    assert Handler().use_agent_store is False


@pytest.mark.parametrize("name", errors.__all__)
def test_each_error_is_the_one_of_the_package_and_a_rendezvous_error(name: str) -> None:
    error = getattr(rallypoint.elastic, name)
    assert error is getattr(errors, name)
    assert error is getattr(rallypoint.elastic.api, name)
    assert issubclass(error, errors.RendezvousError)


@pytest.mark.parametrize("module", [rallypoint.elastic, rallypoint.elastic.api, rallypoint.elastic.registry])
def test_every_name_that_is_promised_is_there(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        assert hasattr(module, name)
