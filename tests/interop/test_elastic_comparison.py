"""The same code on torch's rendezvous and on ours, with only the import path changed: public names behave alike.

Where they do not, the difference stands in `differences.py`, with its reason, and is shown there to be so.
"""

from __future__ import annotations

import inspect
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, make_dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.interop.libraries import STALLS, Library, Meeting
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(params=["torch", "rallypoint"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture
def meeting(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    # torch's server of the shared store asks the name service for every client's name; see docs/compatibility.md.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    made = Meeting(library, dist.HashStore())
    try:
        yield made
    finally:
        made.end()


# api ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"backend": ""}, {"backend": None}, {"min_nodes": 0}, {"min_nodes": -1}, {"min_nodes": 3, "max_nodes": 2}]
)
def test_parameters_that_make_no_sense_are_value_errors(library: Library, wrong: dict[str, Any]) -> None:
    given = {"backend": "b", "endpoint": "e", "run_id": "r", "min_nodes": 1, "max_nodes": 2, **wrong}
    with pytest.raises(ValueError, match=r".+"):
        library.api.RendezvousParameters(**given)


def test_parameters_keep_what_they_were_given(library: Library) -> None:
    params = library.params(colour="blue", empty=None)
    assert (params.backend, params.endpoint, params.run_id) == ("memory", "", "run")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (1, 2, None)
    assert (params.get("colour"), params.get("empty"), params.get("none"), params.get("none", 5)) == (
        "blue",
        None,
        None,
        5,
    )
    assert params.config == {"colour": "blue", "empty": None}


@pytest.mark.parametrize("value", [True, "True", "1", "t", "Yes", "y", 1])
def test_words_for_true(library: Library, value: object) -> None:
    assert library.params(option=value).get_as_bool("option") is True


@pytest.mark.parametrize("value", [False, "False", "0", "F", "no", "N", 0])
def test_words_for_false(library: Library, value: object) -> None:
    assert library.params(option=value).get_as_bool("option") is False


@pytest.mark.parametrize("value", ["2", 2, "maybe", "truest", ""])
def test_no_words_for_either(library: Library, value: object) -> None:
    with pytest.raises(ValueError, match=r"option"):
        library.params(option=value).get_as_bool("option")


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("-12", -12), (7, 7), (" 8 ", 8)])
def test_whole_numbers(library: Library, value: object, number: int) -> None:
    assert library.params(option=value).get_as_int("option") == number


@pytest.mark.parametrize("value", ["a", "", "1.5", "0x1"])
def test_no_whole_numbers(library: Library, value: object) -> None:
    with pytest.raises(ValueError, match=r"option"):
        library.params(option=value).get_as_int("option")


@pytest.mark.parametrize("name", ["get_as_bool", "get_as_int"])
def test_an_option_that_is_missing_has_its_default(library: Library, name: str) -> None:
    read = getattr(library.params(), name)
    assert (read("none"), read("none", 1)) == (None, True)


def test_an_info_is_read_only(library: Library) -> None:
    info = library.api.RendezvousInfo("store", 1, 3, None)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == ("store", 1, 3, None)
    with pytest.raises(AttributeError):
        info.rank = 2


def test_an_info_is_no_dataclass_but_may_be_part_of_one(library: Library) -> None:
    info = library.api.RendezvousInfo(None, 1, 3, library.api.RendezvousStoreInfo("node0", 1))
    assert not is_dataclass(info)
    with pytest.raises(TypeError):
        asdict(info)
    assert vars(info) == {
        "_store": None,
        "_rank": 1,
        "_world_size": 3,
        "_bootstrap_store_info": library.api.RendezvousStoreInfo("node0", 1),
    }
    place = asdict(make_dataclass("Job", ["place"])(info))["place"]
    assert type(place) is library.api.RendezvousInfo
    assert vars(place) == vars(info)


def test_an_info_can_be_subclassed(library: Library) -> None:
    @dataclass
    class Labelled(library.api.RendezvousInfo):  # type: ignore[misc,name-defined]
        label: str

        def __post_init__(self) -> None:
            super().__init__(None, 1, 3, None)

    info = Labelled("first")
    assert (info.rank, info.world_size, asdict(info)) == (1, 3, {"label": "first"})
    assert vars(info).keys() == {"label", "_store", "_rank", "_world_size", "_bootstrap_store_info"}


def test_a_store_info_is_a_dataclass_and_can_be_subclassed(library: Library) -> None:
    @dataclass
    class Labelled(library.api.RendezvousStoreInfo):  # type: ignore[misc,name-defined]
        label: str = "none"

    address = {"master_addr": "node0", "master_port": 1}
    info = library.api.RendezvousStoreInfo("node0", 1)
    assert asdict(info) == vars(info) == address
    labelled = Labelled("node0", 1, label="first")
    assert asdict(labelled) == vars(labelled) == {**address, "label": "first"}
    assert (labelled.MASTER_ADDR_KEY, labelled.MASTER_PORT_KEY) == ("MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize("address", ["10.0.0.1", None])
def test_rank_0_publishes_where_the_workers_meet(library: Library, address: str | None) -> None:
    store = dist.HashStore()
    first = library.api.RendezvousStoreInfo.build(0, store, address, server_port=29501)
    second = library.api.RendezvousStoreInfo.build(1, store, "10.0.0.2")
    assert first == second
    assert first.master_port == 29501
    assert address in (None, first.master_addr)


def test_the_errors_are_one_family(library: Library) -> None:
    api = library.api
    for name in ("Closed", "Timeout", "Connection", "State", "GracefulExit"):
        assert issubclass(getattr(api, f"Rendezvous{name}Error"), api.RendezvousError)
        assert getattr(library.root, f"Rendezvous{name}Error") is getattr(api, f"Rendezvous{name}Error")


def test_a_handler_must_have_every_method(library: Library) -> None:
    handler = library.api.RendezvousHandler
    assert set(handler.__abstractmethods__) == {
        "get_backend",
        "next_rendezvous",
        "is_closed",
        "set_closed",
        "num_nodes_waiting",
        "get_run_id",
        "shutdown",
    }
    assert inspect.isabstract(handler)


class _Handler:
    """A handler that calls itself `mine`."""

    def __init__(self, params: Any) -> None:
        self.params = params

    def get_backend(self) -> str:
        return "mine"


def test_a_registry_finds_what_was_registered(library: Library) -> None:
    registry = library.api.RendezvousHandlerRegistry()
    registry.register("mine", _Handler)
    registry.register("mine", _Handler)
    params = library.params("mine")
    assert registry.create_handler(params).params is params


@pytest.mark.parametrize("name", ["", None])
def test_a_backend_without_a_name_is_refused(library: Library, name: str | None) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.api.RendezvousHandlerRegistry().register(name, _Handler)


def test_a_second_creator_of_one_name_is_refused(library: Library) -> None:
    registry = library.api.RendezvousHandlerRegistry()
    registry.register("mine", _Handler)
    with pytest.raises(ValueError, match="mine"):
        registry.register("mine", partial(_Handler))


def test_a_backend_that_nobody_registered_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="unheard-of"):
        library.api.RendezvousHandlerRegistry().create_handler(library.params("unheard-of"))


def test_a_handler_that_calls_itself_otherwise_is_refused(library: Library) -> None:
    registry = library.api.RendezvousHandlerRegistry()
    registry.register("other", _Handler)
    with pytest.raises(RuntimeError, match="mine"):
        registry.create_handler(library.params("other"))


# utils ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, ("localhost", 7)),
        ("", ("localhost", 7)),
        ("  \t ", ("localhost", 7)),
        ("host", ("host", 7)),
        ("sub.host.org:3", ("sub.host.org", 3)),
        ("1.2.3.4:0", ("1.2.3.4", 0)),
        ("[::1]", ("::1", 7)),
        ("[2001:db8::1]:99", ("2001:db8::1", 99)),
        (" host:5 ", ("host", 5)),
    ],
)
def test_endpoints_that_can_be_read(library: Library, endpoint: str | None, expected: tuple[str, int]) -> None:
    assert library.utils.parse_rendezvous_endpoint(endpoint, 7) == expected


@pytest.mark.parametrize("endpoint", ["~", "[]", "host:", "host:port", "host:99999", "host:-1", "~:3", "[::1:5"])
def test_endpoints_that_cannot_be_read(library: Library, endpoint: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        library.utils.parse_rendezvous_endpoint(endpoint, 7)
    assert endpoint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "config"),
    [("", {}), ("a=1", {"a": "1"}), ("a = 1 , b=2", {"a": "1", "b": "2"}), ("a=b=c", {"a": "b=c"})],
)
def test_configurations_that_can_be_read(library: Library, text: str, config: dict[str, str]) -> None:
    assert library.utils._parse_rendezvous_config(text) == config


@pytest.mark.parametrize("text", ["=1", "a", "a=", "a=1,,b=2", "a=1,b"])
def test_configurations_that_cannot_be_read(library: Library, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.utils._parse_rendezvous_config(text)


@pytest.mark.parametrize(
    ("host", "ours"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("192.0.2.77", False)]
)
def test_whether_a_host_is_this_machine(
    library: Library, host: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")  # torch's fails where that name cannot be looked up
    assert library.utils._matches_machine_hostname(host) is ours


# dynamic_rendezvous ---------------------------------------------------------------------------------------------------


def test_time_outs_and_their_defaults(library: Library) -> None:
    timeout = library.dynamic_rendezvous.RendezvousTimeout(join=timedelta(seconds=7))
    assert [t.total_seconds() for t in (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat)] == [
        7,
        30,
        30,
        5,
    ]


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
@pytest.mark.parametrize("seconds", [0, -3])
def test_a_time_out_that_is_not_positive_is_a_value_error(library: Library, name: str, seconds: int) -> None:
    with pytest.raises(ValueError, match=name.replace("_", ".")):
        library.dynamic_rendezvous.RendezvousTimeout(**{name: timedelta(seconds=seconds)})


def test_signatures_are_the_same() -> None:
    ours, theirs = Library("rallypoint"), Library("torch")
    for path in (
        "dynamic_rendezvous.RendezvousTimeout.__init__",
        "dynamic_rendezvous.RendezvousSettings.__init__",
        "dynamic_rendezvous.RendezvousBackend.get_state",
        "dynamic_rendezvous.RendezvousBackend.set_state",
        "dynamic_rendezvous.DynamicRendezvousHandler.from_backend",
        "dynamic_rendezvous.create_handler",
        "c10d_rendezvous_backend.C10dRendezvousBackend.__init__",
        "c10d_rendezvous_backend.create_backend",
        "static_tcp_rendezvous.StaticTCPRendezvous.__init__",
        "static_tcp_rendezvous.create_rdzv_handler",
        "api.RendezvousParameters.__init__",
        "api.RendezvousHandlerRegistry.register",
        "utils.parse_rendezvous_endpoint",
    ):
        assert _shape(ours, path) == _shape(theirs, path), path


def _shape(library: Library, path: str) -> list[tuple[str, object]]:
    module, *names = path.split(".")
    found: Any = getattr(library, module)
    for name in names:
        found = getattr(found, name)
    # What collects the rest is called by nobody.
    shown = inspect.signature(found).parameters.values()
    return [(p.name if p.kind is not p.VAR_KEYWORD else "**", p.default) for p in shown]


@pytest.mark.parametrize(
    "wrong", [{"run_id": ""}, {"min_nodes": 0}, {"min_nodes": 3}, {"min_nodes": -1, "max_nodes": -1}]
)
def test_settings_that_make_no_sense_are_value_errors(library: Library, wrong: dict[str, Any]) -> None:
    given = {"run_id": "r", "store": dist.HashStore(), "backend": library.backend(), "min_nodes": 1, "max_nodes": 2}
    with pytest.raises(ValueError, match=r".+"):
        library.dynamic_rendezvous.DynamicRendezvousHandler.from_backend(**{**given, **wrong})


def test_a_handler_says_what_it_was_made_with(library: Library) -> None:
    timeout = library.dynamic_rendezvous.RendezvousTimeout()
    handler = library.dynamic_rendezvous.DynamicRendezvousHandler.from_backend(
        run_id="r", store=dist.HashStore(), backend=library.backend(), min_nodes=1, max_nodes=3, timeout=timeout
    )
    settings = handler.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes, settings.timeout) == ("r", 1, 3, timeout)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=5), 3)
    assert (handler.get_backend(), handler.get_run_id()) == ("memory", "r")
    with pytest.raises(AttributeError):
        settings.run_id = "another"


def test_options_become_settings(library: Library) -> None:
    options: dict[str, Any] = {
        "join_timeout": "50",
        "last_call_timeout": "60",
        "close_timeout": "70",
        "heartbeat_timeout": 3,
    }
    params = library.params(keep_alive_interval="9", keep_alive_max_attempt=4, something_else=1, **options)
    settings = library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), params).settings
    timeout = settings.timeout
    assert [t.total_seconds() for t in (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat)] == [
        50,
        60,
        70,
        3,
    ]
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=9), 4)


@pytest.mark.parametrize("option", ["join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval"])
def test_an_option_that_is_no_number_is_a_value_error(library: Library, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), library.params(**{option: "x"}))


@pytest.mark.parametrize("option", ["join_timeout", "last_call_timeout", "close_timeout"])
def test_a_time_out_of_zero_is_a_value_error(library: Library, option: str) -> None:
    given: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=r".+"):
        library.dynamic_rendezvous.create_handler(dist.HashStore(), library.backend(), library.params(**given))


def test_all_nodes_meet(meeting: Meeting) -> None:
    infos = meeting.meet(*[meeting.handler(3, 3) for _ in range(3)])
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}
    assert {type(info.store) for info in infos} == {dist.PrefixStore}
    for info in infos:
        # The same object, not just an equal one.
        assert info.store.underlying_store == meeting.store
    infos[0].store.set("key", "value")
    assert infos[2].store.get("key") == b"value"
    assert len({(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}) == 1


def test_a_last_call_ends_with_fewer_than_max(meeting: Meeting) -> None:
    infos = meeting.meet(*[meeting.handler(2, 5) for _ in range(2)])
    assert {info.world_size for info in infos} == {2}


def test_a_late_node_is_counted_and_let_in(meeting: Meeting) -> None:
    first, second, late = (meeting.handler(2, 3) for _ in range(3))
    meeting.meet(first, second)
    assert (first.num_nodes_waiting(), second.num_nodes_waiting()) == (0, 0)
    (joining,) = meeting.join(late)
    until(lambda: first.num_nodes_waiting() == 1)
    infos = meeting.meet(first, second)
    assert {info.world_size for info in infos} == {3}
    assert joining.result(PATIENCE_S).world_size == 3


def test_each_round_has_keys_of_its_own(meeting: Meeting) -> None:
    handlers = [meeting.handler(), meeting.handler()]
    first = meeting.meet(*handlers)
    first[0].store.set("seen", "in the first round")
    second = meeting.meet(*handlers)
    assert not second[0].store.check(["seen"])


def test_too_few_nodes_are_a_time_out(meeting: Meeting) -> None:
    with pytest.raises(meeting.library.api.RendezvousTimeoutError):
        meeting.handler(2, 2, join_s=0.5).next_rendezvous()


def test_closing_is_seen_by_all(meeting: Meeting) -> None:
    first, second = meeting.handler(), meeting.handler()
    meeting.meet(first, second)
    assert not second.is_closed()
    first.set_closed()
    assert first.is_closed()
    until(second.is_closed)
    for handler in (first, second):
        until(lambda handler=handler: _refuses(handler, meeting.library))  # type: ignore[misc]


def _refuses(handler: Any, library: Library) -> bool:
    with pytest.raises(library.api.RendezvousClosedError):
        handler.next_rendezvous()
    return True


def test_a_run_that_nobody_joined_can_be_closed(meeting: Meeting) -> None:
    handler = meeting.handler()
    assert not handler.is_closed()
    handler.set_closed()
    assert handler.is_closed()
    handler.set_closed()


def test_shutting_down_twice_is_fine(meeting: Meeting) -> None:
    handler = meeting.handler(1, 1)
    meeting.meet(handler)
    assert handler.shutdown()
    assert handler.shutdown()
    assert handler.is_closed()


def test_who_waits_hears_of_the_closing(meeting: Meeting) -> None:
    waiting, other = meeting.handler(), meeting.handler()
    (joining,) = meeting.join(waiting)
    until(lambda: meeting.backend.get_state() is not None)
    other.set_closed()
    with pytest.raises(meeting.library.api.RendezvousClosedError):
        joining.result(PATIENCE_S)


def test_a_surplus_node_stands_by_without_a_deadline_and_ends_well_with_the_run(meeting: Meeting) -> None:
    first, second = (meeting.handler(keep_alive_max_attempt=STALLS) for _ in range(2))
    surplus = meeting.handler(join_s=1, keep_alive_max_attempt=STALLS)
    meeting.meet(first, second)
    (standing_by,) = meeting.join(surplus)
    until(lambda: meeting.nodes() == 3)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2)
    assert (first.num_nodes_waiting(), standing_by.done()) == (0, False)
    leaving = [threading.Thread(target=handler.shutdown) for handler in (first, second)]
    for thread in leaving:
        thread.start()
    with pytest.raises(meeting.library.api.RendezvousGracefulExitError):
        standing_by.result(PATIENCE_S)
    for thread in leaving:
        thread.join()


def test_a_silent_node_is_given_up(meeting: Meeting) -> None:
    first, second, silent = (meeting.handler(2, 3, keep_alive_max_attempt=2) for _ in range(3))
    meeting.meet(first, second, silent)
    silent._stop_heartbeats()
    infos: list[Any] = []

    def regrouped() -> bool:
        infos[:] = meeting.meet(first, second)
        return {info.world_size for info in infos} == {2}

    until(regrouped)


@pytest.mark.parametrize(("value", "shared"), [(None, True), ("0", True), ("1", False)])
def test_the_workers_store_is_shared_unless_that_is_switched_off(
    library: Library, monkeypatch: pytest.MonkeyPatch, value: str | None, shared: bool
) -> None:
    if value is None:
        monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)
    else:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)
    made = Meeting(library, dist.HashStore())
    assert made.handler(1, 1).use_agent_store is shared
    made.end()


# c10d -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["tcp", "file", "hash"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "tcp":
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.FileStore(str(tmp_path / "store")) if request.param == "file" else dist.HashStore()


def test_the_c10d_backend_writes_by_token(library: Library, store: Any) -> None:
    backend = library.c10d_rendezvous_backend.C10dRendezvousBackend(store, "run")
    assert backend.name == "c10d"
    assert backend.get_state() is None
    state, token, was_set = backend.set_state(b"one")
    assert (state, was_set) == (b"one", True)
    assert backend.get_state() == (b"one", token)
    assert backend.set_state(b"two")[2] is False
    for wrong in (("dummy",), b"invalid", 7, "text"):
        assert backend.set_state(b"two", wrong) == (b"one", token, False)
    state, second, was_set = backend.set_state(b"two", token)
    assert (state, was_set) == (b"two", True)
    assert backend.set_state(b"three", token) == (b"two", second, False)


@pytest.mark.parametrize("token", [None, 0, "", b"", False, ()])
def test_a_falsy_token_is_none(library: Library, store: Any, token: object) -> None:
    backend = library.c10d_rendezvous_backend.C10dRendezvousBackend(store, "run")
    _, first, was_set = backend.set_state(b"one", token)
    assert was_set
    assert backend.set_state(b"two", token) == (b"one", first, False)


def test_an_empty_document_is_a_document(library: Library, store: Any) -> None:
    backend = library.c10d_rendezvous_backend.C10dRendezvousBackend(store, "run")
    assert backend.set_state(b"") == (b"", b"", True)
    assert backend.get_state() == (b"", b"")
    assert backend.set_state(b"one") == (b"", b"", False)
    assert backend.get_state() == (b"", b"")


class BrokenStore:
    """A store whose calls fail, once it is broken."""

    def __init__(self, problem: Exception | None) -> None:
        self.problem = problem

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.problem is not None:
            raise self.problem
        return desired.encode()

    def get(self, key: str) -> bytes:
        return self.compare_set(key, "", "")


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, TimeoutError])
def test_what_a_store_raises_is_an_error_of_the_connection(library: Library, kind: type[Exception]) -> None:
    backend_of = library.c10d_rendezvous_backend.C10dRendezvousBackend
    with pytest.raises(library.api.RendezvousConnectionError) as refusal:
        backend_of(BrokenStore(kind("it broke")), "run")  # the constructor tries the store
    assert isinstance(refusal.value.__cause__, kind)
    store = BrokenStore(None)
    backend = backend_of(store, "run")
    store.problem = kind("it broke")
    for call in (backend.get_state, lambda: backend.set_state(b"one")):
        with pytest.raises(library.api.RendezvousConnectionError):
            call()


def test_both_know_an_empty_place_of_the_other(store: Any) -> None:
    torch_backend, ours = (
        Library(name).c10d_rendezvous_backend.C10dRendezvousBackend(store, "run") for name in ("torch", "rallypoint")
    )
    assert torch_backend.get_state() is None
    assert ours.get_state() is None
    torch_backend.set_state(b"one")
    assert ours.get_state() == torch_backend.get_state()


def test_damaged_state_is_a_state_error(library: Library, store: Any) -> None:
    store.set("torch.rendezvous.run", "###notb64")
    backend = library.c10d_rendezvous_backend.C10dRendezvousBackend(store, "run")
    with pytest.raises(library.api.RendezvousStateError):
        backend.get_state()


def test_a_store_that_is_gone_is_a_connection_error(library: Library) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
    backend = library.c10d_rendezvous_backend.C10dRendezvousBackend(client, "run")
    client.set_timeout(timedelta(seconds=2))  # not before: a busy machine may need longer to connect
    del server
    with pytest.raises(library.api.RendezvousConnectionError):
        backend.get_state()
    with pytest.raises(library.api.RendezvousConnectionError):
        backend.set_state(b"one")


def test_an_empty_run_id_is_a_value_error(library: Library) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.c10d_rendezvous_backend.C10dRendezvousBackend(dist.HashStore(), "")


@pytest.mark.parametrize(("given", "hosts"), [({}, True), ({"is_host": "true"}, True), ({"store_type": " Tcp "}, True)])
def test_a_tcp_backend_has_torchs_store(library: Library, given: dict[str, Any], hosts: bool) -> None:
    port = free_port()
    backend, store = library.c10d_rendezvous_backend.create_backend(
        library.params("c10d", f"localhost:{port}", read_timeout="10", **given)
    )
    assert (backend.name, type(store), store.host, store.port) == ("c10d", dist.TCPStore, "localhost", port)
    assert store.timeout == timedelta(seconds=10)
    other, _ = library.c10d_rendezvous_backend.create_backend(library.params("c10d", f"localhost:{port}"))
    backend.set_state(b"one")
    assert other.get_state()[0] == b"one"


@pytest.mark.parametrize("store_type", ["file", " FILE "])
def test_a_file_backend_has_torchs_store(library: Library, store_type: str, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    backend, store = library.c10d_rendezvous_backend.create_backend(library.params("c10d", path, store_type=store_type))
    assert (type(store), store.path) == (dist.FileStore, path)
    backend.set_state(b"one")
    assert backend.get_state()[0] == b"one"


def test_without_a_path_the_file_is_a_private_one(library: Library) -> None:
    _, store = library.c10d_rendezvous_backend.create_backend(library.params("c10d", "", store_type="file"))
    assert Path(store.path).exists()
    with suppress(OSError):
        Path(store.path).unlink()


def test_a_file_that_cannot_be_made_is_a_rendezvous_error(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(library.c10d_rendezvous_backend.tempfile, "mkstemp", fail)
    with pytest.raises(library.api.RendezvousError) as caught:
        library.c10d_rendezvous_backend.create_backend(library.params("c10d", "", store_type="file"))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "given",
    [
        {"store_type": "pigeon"},
        {"read_timeout": 0},
        {"read_timeout": -10},
        {"read_timeout": "x"},
        {"is_host": "perhaps"},
    ],
)
def test_options_of_c10d_that_make_no_sense_are_value_errors(library: Library, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        library.c10d_rendezvous_backend.create_backend(library.params("c10d", f"localhost:{free_port()}", **given))


def test_a_store_that_is_not_there_is_a_connection_error(library: Library) -> None:
    params = library.params("c10d", f"127.0.0.1:{free_port()}", is_host="false", read_timeout=1)
    with pytest.raises(library.api.RendezvousConnectionError) as caught:
        library.c10d_rendezvous_backend.create_backend(params)
    assert caught.value.__cause__ is not None


def test_the_registry_has_c10d(library: Library, tmp_path: Path) -> None:
    params = library.params("c10d", str(tmp_path / "store"), store_type="file", min_nodes=1, max_nodes=1)
    handler = library.registry.get_rendezvous_handler(params)
    assert (handler.get_backend(), handler.get_run_id()) == ("c10d", "run")
    assert type(handler).__name__ == "DynamicRendezvousHandler"


# static ---------------------------------------------------------------------------------------------------------------


def test_a_static_run_has_the_ranks_that_were_given(library: Library) -> None:
    port = free_port()
    handler = library.registry.get_rendezvous_handler(
        library.params("static", f"localhost:{port}", rank=0, timeout=10, max_nodes=1)
    )
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) == ("localhost", port)
    info.store.set("key", "value")
    assert info.store.underlying_store.get("run/key") == b"value"
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("static", "run", True)
    handler.set_closed()
    assert (handler.is_closed(), handler.num_nodes_waiting(), handler.shutdown()) == (False, 0, True)


@pytest.mark.parametrize(
    "given",
    [{}, {"rank": 0, "endpoint": ""}, {"rank": 0, "endpoint": "localhost"}, {"rank": 0, "endpoint": "localhost:-1"}],
)
def test_what_a_static_run_lacks_is_a_value_error(library: Library, given: dict[str, Any]) -> None:
    params = library.params("static", **{"endpoint": "localhost:29599", **given})
    with pytest.raises(ValueError, match=r".+"):
        library.static_tcp_rendezvous.create_rdzv_handler(params)
