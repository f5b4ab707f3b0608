"""Backends are found by name: those registered, ours when first used, other packages' when a name is new."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rallypoint.elastic
from rallypoint.elastic import (
    RendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    api,
    get_rendezvous_handler,
    registry,
    rendezvous_handler_registry,
)
from rallypoint.elastic.registry import _LateCreator, installed_handlers


class Handler(RendezvousHandler):
    def __init__(self, params: RendezvousParameters, name: str = "mine") -> None:
        self.params = params
        self.name = name

    def get_backend(self) -> str:
        return self.name

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(None, 0, 1, None)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.params.run_id

    def shutdown(self) -> bool:
        return True


def create(params: RendezvousParameters) -> Handler:
    return Handler(params)


def create_another(params: RendezvousParameters) -> Handler:
    return Handler(params, "another")


def create_as_asked(params: RendezvousParameters) -> Handler:
    return Handler(params, params.backend)


def run_on(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend, "node1", "run", 1, 1)


# Registering ----------------------------------------------------------------------------------------------------------


def test_a_registered_backend_makes_the_handler_from_the_same_parameters() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", create)
    params = run_on("mine")
    handler = registry.create_handler(params)
    assert isinstance(handler, Handler)
    assert handler.params is params


def test_the_same_creator_may_be_registered_again() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", create)
    registry.register("mine", create)


def test_a_method_may_be_registered_again_although_each_look_makes_it_anew() -> None:
    class Maker:
        def create(self, params: RendezvousParameters) -> Handler:
            return Handler(params)

    maker = Maker()
    registry = RendezvousHandlerRegistry()
    registry.register("mine", maker.create)
    registry.register("mine", maker.create)


def test_another_creator_under_the_same_name_is_refused_and_both_are_shown() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", create)
    with pytest.raises(ValueError, match="'mine' is already registered") as refusal:
        registry.register("mine", create_another)
    assert repr(create) in str(refusal.value)
    assert repr(create_another) in str(refusal.value)
    assert isinstance(registry.create_handler(run_on("mine")), Handler)


@pytest.mark.parametrize("backend", ["", None])
def test_a_backend_is_registered_under_a_name(backend: str) -> None:
    with pytest.raises(ValueError, match=f"The backend to register is {backend!r}"):
        RendezvousHandlerRegistry().register(backend, create)


def test_a_handler_that_goes_by_another_name_is_refused_with_both_names() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", create_another)
    with pytest.raises(RuntimeError, match="registered as backend 'mine' made a handler that calls itself 'another'"):
        registry.create_handler(run_on("mine"))


def test_an_error_of_the_creator_reaches_the_caller() -> None:
    def refuse(params: RendezvousParameters) -> RendezvousHandler:
        raise KeyError(params.run_id)

    registry = RendezvousHandlerRegistry()
    registry.register("mine", refuse)
    with pytest.raises(KeyError, match="run"):
        registry.create_handler(run_on("mine"))


# Names that are not known ---------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_refused_with_what_there_is_and_the_nearest_name() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("etcd-v3", create)
    registry.register("static", create_another)
    with pytest.raises(ValueError, match="'etcd_v3' is not registered") as refusal:
        registry.create_handler(run_on("etcd_v3"))
    assert "Did you mean 'etcd-v3'?" in str(refusal.value)
    assert "There are: etcd-v3, static." in str(refusal.value)
    assert "rendezvous_handler_registry.register" in str(refusal.value)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("static", create)
    with pytest.raises(ValueError, match="There are: static") as refusal:
        registry.create_handler(run_on("zookeeper"))
    assert "Did you mean" not in str(refusal.value)


def test_an_empty_registry_says_that_it_is_empty() -> None:
    with pytest.raises(ValueError, match=r"'mine' is not registered\. None is\."):
        RendezvousHandlerRegistry().create_handler(run_on("mine"))


# Ours -----------------------------------------------------------------------------------------------------------------


def test_one_registry_is_shared_by_all_modules() -> None:
    assert api.rendezvous_handler_registry is rendezvous_handler_registry
    assert registry.handler_registry is rendezvous_handler_registry
    assert rallypoint.elastic.get_rendezvous_handler is registry.get_rendezvous_handler


def test_our_backend_is_there_and_near_to_what_was_mistyped() -> None:
    with pytest.raises(ValueError, match=r"'ralypoint' is not registered. Did you mean 'rallypoint'\?"):
        get_rendezvous_handler(run_on("ralypoint"))


def test_a_backend_of_ours_is_imported_when_its_first_handler_is_made() -> None:
    own = RendezvousHandlerRegistry()
    own.register("mine", _LateCreator(f"{__name__}:create"))
    own.register("missing", _LateCreator("no.such.module:create"))
    assert isinstance(own.create_handler(run_on("mine")), Handler)
    with pytest.raises(ModuleNotFoundError):
        own.create_handler(run_on("missing"))


def test_a_backend_of_ours_may_be_registered_again_and_not_replaced() -> None:
    own = RendezvousHandlerRegistry()
    own.register("mine", _LateCreator("a:b"))
    own.register("mine", _LateCreator("a:b"))
    with pytest.raises(ValueError, match="already registered"):
        own.register("mine", _LateCreator("a:c"))


def test_importing_the_surface_loads_no_backend_and_nothing_heavy() -> None:
    program = "import sys; before = set(sys.modules); import rallypoint.elastic; print(*set(sys.modules) - before)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert "rallypoint.elastic.api" in loaded
    heavy = {"asyncio", "difflib", "grpc", "importlib.metadata", "rich", "torch"}
    assert loaded & heavy == set()
    assert {name for name in loaded if name.startswith("rallypoint.elastic.")} <= {
        f"rallypoint.elastic.{name}" for name in ("api", "lazy_names", "options", "registry", "utils")
    }


# Those of other packages ----------------------------------------------------------------------------------------------


class Packages:
    """Packages that are installed for the time of a test, each with one backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str, backend: str, source: str, target: str = "offer") -> None:
        module = f"rallypoint_test_{package}"
        about = self.folder / f"{package}-1.0.dist-info"
        about.mkdir()
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(
            f"[torchrun.handlers]\n{backend} = {module}:{target}\n", encoding="utf-8"
        )

    def imported(self, package: str) -> bool:
        return f"rallypoint_test_{package}" in sys.modules


GOOD = f"""
from {__name__} import create_as_asked

calls = []

def offer():
    calls.append("offer")
    return create_as_asked
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Packages(tmp_path)
    for name in [name for name in sys.modules if name.startswith("rallypoint_test_")]:
        del sys.modules[name]


@pytest.fixture
def backends() -> RendezvousHandlerRegistry:
    return RendezvousHandlerRegistry(installed_handlers)


def test_the_backend_of_another_package_is_found_by_its_name(
    packages: Packages, backends: RendezvousHandlerRegistry
) -> None:
    packages.install("good", "theirs", GOOD)
    assert backends.create_handler(run_on("theirs")).get_backend() == "theirs"


def test_the_shared_registry_finds_it_too(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_handler_registry, "_registry", dict(rendezvous_handler_registry._registry))
    packages.install("good", "theirs", GOOD)
    assert get_rendezvous_handler(run_on("theirs")).get_backend() == "theirs"


def test_another_package_is_asked_for_its_creator_once(packages: Packages, backends: RendezvousHandlerRegistry) -> None:
    packages.install("good", "theirs", GOOD)
    backends.create_handler(run_on("theirs"))
    backends.create_handler(run_on("theirs"))
    assert sys.modules["rallypoint_test_good"].calls == ["offer"]


def test_nobody_looks_at_other_packages_while_the_name_is_known() -> None:
    def look() -> api.Offers:
        raise AssertionError("looked")

    backends = RendezvousHandlerRegistry(look)
    backends.register("mine", create)
    backends.create_handler(run_on("mine"))


def test_a_registered_backend_wins_over_another_package(
    packages: Packages, backends: RendezvousHandlerRegistry
) -> None:
    packages.install("good", "mine", GOOD)
    backends.register("mine", create)
    backends.create_handler(run_on("mine"))
    assert not packages.imported("good")


def test_of_two_packages_only_the_one_asked_for_is_imported(
    packages: Packages, backends: RendezvousHandlerRegistry
) -> None:
    packages.install("good", "theirs", GOOD)
    packages.install("broken", "broken", "raise OSError('no licence')")
    backends.create_handler(run_on("theirs"))
    assert packages.imported("good")
    assert not packages.imported("broken")


def test_a_mistyped_name_imports_nothing_and_the_refusal_lists_what_is_installed(
    packages: Packages, backends: RendezvousHandlerRegistry
) -> None:
    packages.install("good", "theirs", GOOD)
    backends.register("mine", create)
    with pytest.raises(ValueError, match=r"Did you mean 'theirs'\? There are: mine, theirs\."):
        backends.create_handler(run_on("thiers"))
    assert not packages.imported("good")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise OSError('no licence')", "OSError: no licence"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit('unsupported')", "SystemExit: unsupported"),
        ("def offer(): raise RuntimeError('too old')", "RuntimeError: too old"),
        ("def offer(): return None", "returned None, which cannot be called"),
        ("other = 1", "has no attribute 'offer'"),
    ],
)
def test_a_package_that_fails_to_load_is_reported_in_words_and_harms_nobody(
    packages: Packages, backends: RendezvousHandlerRegistry, source: str, cause: str
) -> None:
    packages.install("good", "theirs", GOOD)
    packages.install("broken", "wrecked", source)
    with pytest.raises(ValueError, match="package broken") as refusal:
        backends.create_handler(run_on("wrecked"))
    assert cause in str(refusal.value)
    assert "'wrecked' is not registered" in str(refusal.value)
    assert refusal.value.__cause__ is not None
    assert backends.create_handler(run_on("theirs")).get_backend() == "theirs"


def test_the_name_of_a_package_that_failed_may_be_registered(
    packages: Packages, backends: RendezvousHandlerRegistry
) -> None:
    packages.install("broken", "mine", "raise OSError('no licence')")
    with pytest.raises(ValueError, match="no licence"):
        backends.create_handler(run_on("mine"))
    backends.register("mine", create)
    assert isinstance(backends.create_handler(run_on("mine")), Handler)


def test_of_two_packages_with_one_name_the_first_on_the_path_counts(
    packages: Packages, backends: RendezvousHandlerRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.install("late", "theirs", "raise OSError('not me')")
    front = tmp_path / "front"
    front.mkdir()
    monkeypatch.syspath_prepend(front)
    Packages(front).install("good", "theirs", GOOD)
    assert backends.create_handler(run_on("theirs")).get_backend() == "theirs"


def test_a_damaged_list_of_packages_is_reported_and_counts_as_empty(
    packages: Packages, backends: RendezvousHandlerRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    packages.install("damaged", "theirs", GOOD)
    (packages.folder / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[torchrun.handlers]")
    backends.register("mine", create)
    with caplog.at_level(logging.WARNING, "rallypoint"), pytest.raises(ValueError, match=r"There are: mine\."):
        backends.create_handler(run_on("other"))
    assert "cannot be read" in caplog.text
