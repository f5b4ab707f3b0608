"""Every public name of torch's modules is one of ours, with the same signature; the page shows what is not so.

The steps of the older etcd protocol are taken one by one in both libraries, for their names are public as well.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import etcd
import pytest

from tests.interop.libraries import Library
from tests.interop.names import END, MODULES, REASONS, START, found, table
from tests.support.etcd_servers import shared
from tests.support.waiting import PATIENCE_S, until

# torch's thread that keeps a run's directory alive ends with an error: it prolongs it as if it were a key.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception in thread .*lease_worker:pytest.PytestUnhandledThreadExceptionWarning"
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def test_every_public_module_of_torchs_is_compared() -> None:
    modules = {module.name for module in pkgutil.iter_modules(Library("torch").root.__path__)}
    assert set(MODULES) == {name for name in modules if not name.startswith("_")}


def test_each_difference_has_its_reason() -> None:
    assert set(found()) == set(REASONS)


def test_the_page_shows_them_all(rewrite: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    shown, end, after = rest.partition(END)
    assert start, "the page has a place for the table"
    assert end, "and the place has an end"
    if rewrite:
        PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")
        return
    assert table() == f"{START}{shown}{END}", "run this test with --rewrite"


# Names of other packages ----------------------------------------------------------------------------------------------

BARE = f"""
import importlib
import sys

for name in ("torch", "etcd", "urllib3", "grpc"):
    sys.modules[name] = None  # not installed
for name in {MODULES!r}:
    importlib.import_module(f"rallypoint.elastic.{{name}}")
"""


def bare(program: str) -> str:
    """What a program says where no optional package is installed."""
    ran = subprocess.run([sys.executable, "-c", BARE + program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_all_modules_can_be_imported_without_any_optional_package() -> None:
    assert bare("print('imported')") == "imported"


def test_without_torch_the_names_of_stores_are_ours() -> None:
    program = """
from rallypoint import stores
from rallypoint.elastic.c10d_rendezvous_backend import FileStore, Store, TCPStore
from rallypoint.elastic.static_tcp_rendezvous import PrefixStore

print([FileStore, Store, TCPStore, PrefixStore] == [stores.FileStore, stores.Store, stores.TcpStore, stores.PrefixStore])
"""
    assert bare(program) == "True"


def test_a_name_of_a_package_that_is_not_installed_cannot_be_imported() -> None:
    program = """
try:
    from rallypoint.elastic.etcd_store import etcd
except ImportError:
    from rallypoint.elastic import etcd_store
    print(hasattr(etcd_store, "etcd"), hasattr(etcd_store, "nonsense"))
"""
    assert bare(program) == "False False"


def test_importing_a_module_imports_no_optional_package() -> None:
    program = f"""
import importlib
import sys

for name in {MODULES!r}:
    importlib.import_module(f"rallypoint.elastic.{{name}}")
print(sorted({{"torch", "etcd", "urllib3", "grpc"}} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_package_has_the_modules_that_torchs_has_at_once() -> None:
    program = "import rallypoint.elastic as e; print(e.dynamic_rendezvous.RendezvousTimeout().join, e.utils.__name__)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "0:10:00 rallypoint.elastic.utils\n"


# Small functions ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["torch", "rallypoint"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


def test_a_function_learns_who_called_it(library: Library) -> None:
    def asked(*depth: int) -> Any:
        return library.dynamic_rendezvous.get_method_name(*depth)

    assert asked() == "test_a_function_learns_who_called_it"
    assert asked(1) == "asked"
    assert asked(10_000) == "no_method_name"


def test_a_free_port_is_held_until_it_is_used(library: Library) -> None:
    with library.etcd_server.find_free_port() as first, library.etcd_server.find_free_port() as second:
        assert 0 < first.getsockname()[1] != second.getsockname()[1] > 0
    assert library.api.get_free_port() > 0


def test_a_process_is_ended_and_its_folder_removed(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    library.etcd_server.stop_etcd(process, str(folder))
    assert process.returncode is not None
    assert not folder.exists()
    library.etcd_server.stop_etcd(process)
    library.etcd_server.stop_etcd(None)


def test_a_delay_is_short(library: Library) -> None:
    began = time.monotonic()
    library.etcd_store.cas_delay()
    assert time.monotonic() - began < 5


def test_creating_a_handler_is_a_name_of_the_registry(library: Library) -> None:
    assert library.registry.create_handler is library.dynamic_rendezvous.create_handler
    assert library.registry.handler_registry is library.api.rendezvous_handler_registry


# The steps of the older etcd protocol ---------------------------------------------------------------------------------


class Steps:
    """Nodes of one run on a real etcd, each to be led step by step."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.client = shared("3.5").client()
        self.run_id = f"steps-{uuid.uuid4().hex}"
        self.module = library.etcd_rendezvous

    def node(self, least: int = 1, most: int = 1, library: Library | None = None, **given: Any) -> Any:
        timeouts = {"timeout": 60, "last_call_timeout": 0, **given}
        made = (library or self.library).etcd_rendezvous.EtcdRendezvous(
            shared("3.5").client(), "/torchelastic/p2p", self.run_id, least, most, **timeouts
        )
        made._rendezvous_deadline = _in(timeouts["timeout"])  # without it torch's steps fail outside its barrier
        return made

    def final(self, least: int = 1, most: int = 1) -> Any:
        """A node that is alone in a final world."""
        made = self.node(least, most)
        assert made.init_phase() == ("1", 0, 1)
        return made


def _in(seconds: float) -> float:
    return time.time() + seconds  # noqa: TID251  # torch's deadlines are such


@pytest.fixture
def steps(library: Library) -> Iterator[Steps]:
    made = Steps(library)
    yield made
    made.client.delete(f"/torchelastic/p2p/run_{made.run_id}", recursive=True)


def test_a_node_goes_through_the_steps_by_hand(steps: Steps) -> None:
    node = steps.node()
    assert steps.module.json.loads(node.try_create_rendezvous().value)["status"] == "joinable"
    with pytest.raises(etcd.EtcdAlreadyExist):
        node.try_create_rendezvous()
    active, state = node.get_rdzv_state()
    assert (active.key, state["status"], state["version"]) == (node.get_path("/rdzv/active_version"), "joinable", "1")
    _, rank = node.join_rendezvous("1")
    assert rank == 0
    frozen = node.wait_for_peers("1")
    assert steps.module.json.loads(frozen.value)["keep_alives"] == []
    node.confirm_membership("1", 0)
    assert isinstance(node.wait_for_final("1"), etcd.EtcdResult)
    assert node.get_rdzv_state()[1] == {
        "status": "final",
        "version": "1",
        "participants": [0],
        "keep_alives": [node.get_path("/rdzv/v_1/rank_0")],
        "num_workers_waiting": 0,
    }
    assert node.client.get(node.get_path("/rdzv/v_1/rank_0")).ttl <= steps.module.CONST_WORKER_KEEPALIVE_TTL


def test_phases_lead_to_a_world(steps: Steps) -> None:
    node = steps.node(1, 2)
    version = steps.module.json.loads(node.try_create_rendezvous().value)["version"]
    assert node.join_phase(version) == ("1", 0, 1)


def test_confirming_is_a_phase_of_its_own(steps: Steps) -> None:
    node = steps.node()
    node.try_create_rendezvous()
    node.join_rendezvous("1")
    assert node.confirm_phase("1", 0) == ("1", 0, 1)


def test_without_a_state_there_is_nothing_to_get(steps: Steps) -> None:
    with pytest.raises(etcd.EtcdKeyNotFound):
        steps.node().get_rdzv_state()


def test_a_version_that_is_not_there_is_a_failure_to_try_again_after(steps: Steps) -> None:
    node = steps.node(2, 2)
    node.try_create_rendezvous()
    later, at_once = steps.module.EtcdRendezvousRetryableFailure, steps.module.EtcdRendezvousRetryImmediately
    for failure, step in (
        (at_once, partial(node.join_rendezvous, "7")),
        (at_once, partial(node.confirm_membership, "1", 0)),
        (at_once, partial(node.announce_self_waiting, "1")),
        (later, partial(node.wait_for_peers, "7")),
        (later, partial(node.wait_for_final, "1")),
        (later, partial(node.handle_join_last_call, "7", _in(0))),
    ):
        with pytest.raises(failure):
            step()
    node.wait_for_rendezvous_to_free("1")


def test_a_version_that_is_settled_cannot_be_joined(steps: Steps) -> None:
    steps.final()
    with pytest.raises(steps.module.EtcdRendezvousRetryableFailure):
        steps.node().join_rendezvous("1")


def test_a_last_call_ends_at_its_deadline(steps: Steps) -> None:
    node = steps.node(1, 2)
    node.try_create_rendezvous()
    node.join_rendezvous("1")
    began = time.monotonic()
    node.handle_join_last_call("1", _in(1))
    assert time.monotonic() - began > 0.9
    assert node.get_rdzv_state()[1]["status"] == "frozen"
    node.handle_join_last_call("1", _in(1))


def test_a_late_node_is_counted_and_clears_a_broken_world_away(steps: Steps) -> None:
    first, late = steps.final(), steps.node()
    late.announce_self_waiting("1")
    assert first.get_rdzv_state()[1]["num_workers_waiting"] == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late.handle_existing_rendezvous, "1")
        until(lambda: first.get_rdzv_state()[1]["num_workers_waiting"] == 2)
        assert not waiting.done()
        first.client.delete(first.get_path("/rdzv/v_1/rank_0"))
        waiting.result(PATIENCE_S)
    with pytest.raises(etcd.EtcdKeyNotFound):
        late.get_rdzv_state()
    assert late.init_phase() == ("2", 0, 1)


def test_a_world_in_the_way_is_waited_for_and_then_tried_again(steps: Steps) -> None:
    first, late = steps.final(), steps.node()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(late.init_phase)
        until(lambda: first.get_rdzv_state()[1]["num_workers_waiting"] == 1)
        first.client.delete(first.get_path("/rdzv/v_1/rank_0"))
        with pytest.raises(steps.module.EtcdRendezvousRetryImmediately):
            joining.result(PATIENCE_S)


def test_a_closed_run_is_no_place_to_begin(steps: Steps) -> None:
    steps.final().set_closed()
    with pytest.raises(steps.module.RendezvousClosedError):
        steps.node().init_phase()


def test_a_change_is_waited_for_and_ends_the_wait(steps: Steps) -> None:
    first = steps.final()
    active, state = first.get_rdzv_state()
    assert first.try_wait_for_state_change(active.etcd_index + 1, timeout=0.2)[1] == state
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.try_wait_for_state_change, active.etcd_index + 1)
        steps.node().announce_self_waiting("1")
        assert waiting.result(PATIENCE_S)[1]["num_workers_waiting"] == 1


def test_who_waits_in_vain_runs_out_of_time(steps: Steps) -> None:
    node = steps.node(2, 2, timeout=1)
    node.try_create_rendezvous()
    node.join_rendezvous("1")
    with pytest.raises(steps.module.RendezvousTimeoutError):
        node.wait_for_peers("1")


def test_a_path_is_made_once(steps: Steps) -> None:
    node = steps.node()
    path = node.get_path("mine")
    node.create_path_if_not_exists(path, ttl=60)
    node.client.write(f"{path}/key", "value")
    node.create_path_if_not_exists(path)
    assert node.client.get(f"{path}/key").value == "value"
    assert node.client.get(path).dir
    assert node.client.get(path).ttl <= 60


def test_a_key_is_kept_alive_until_the_event_is_set(steps: Steps) -> None:
    node = steps.node()
    path = node.get_path("mine")
    node.client.write(path, "value", ttl=2)
    stop = node.setup_lease_renewal(path, ttl=2)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 4)
    assert node.client.get(path).value == "value"
    stop.set()
    until(lambda: _is_gone(node.client, path))


def _is_gone(client: Any, path: str) -> bool:
    try:
        client.get(path)
    except etcd.EtcdKeyNotFound:
        return True
    return False


def test_a_node_of_each_library_meets_the_other_by_phases() -> None:
    libraries = [Library("torch"), Library("rallypoint")]
    steps = Steps(libraries[1])
    nodes = [steps.node(2, 2, library) for library in libraries]
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(_walk, library, node) for library, node in zip(libraries, nodes, strict=True)]
        worlds = [future.result(PATIENCE_S) for future in joining]
    assert sorted(rank for _, rank, _ in worlds) == [0, 1]
    assert {(version, size) for version, _, size in worlds} == {(worlds[0][0], 2)}


def _walk(library: Library, node: Any) -> tuple[str, int, int]:
    """Enter the first phase until it leads somewhere, as a barrier does."""
    failures = library.etcd_rendezvous
    while True:
        try:
            world: tuple[str, int, int] = node.init_phase()
        except (failures.EtcdRendezvousRetryableFailure, failures.EtcdRendezvousRetryImmediately):
            continue
        return world
