"""The plug-in as torch finds it, and what crosses into torch: its own types, its own errors, its own parameters."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from torch.distributed.elastic import rendezvous as torch_api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

import rallypoint
from rallypoint import errors
from rallypoint.elastic import registry
from rallypoint.messages.types import Reason
from rallypoint.torch_bridge.errors import in_torch_words
from rallypoint.torchrun.backend import options_of
from rallypoint.torchrun.handler import TorchHandler

KINDS = [kind for name, kind in vars(errors).items() if name.startswith("Rendezvous")]


def torch_parameters(**config: object) -> torch_api.RendezvousParameters:
    """As torchrun makes them: it adds a time-out of its own to whatever the user gave."""
    return torch_api.RendezvousParameters(
        "rallypoint", "127.0.0.1:1", "run", 1, 2, is_host="false", timeout=900, **config
    )


def test_torch_finds_the_backend_by_its_name() -> None:
    handler = get_rendezvous_handler(torch_parameters())
    try:
        assert isinstance(handler, torch_api.RendezvousHandler)
        assert (handler.get_backend(), handler.get_run_id()) == ("rallypoint", "run")
        assert handler.use_agent_store
        assert handler.num_nodes_waiting() == 0
        assert not handler.is_closed()
    finally:
        assert handler.shutdown()


def test_torch_finds_the_one_on_etcd_too() -> None:
    params = torch_api.RendezvousParameters("etcd-v3", "127.0.0.1:1,127.0.0.1:2", "run", 1, 2, timeout=900)
    handler = get_rendezvous_handler(params)
    assert isinstance(handler, TorchHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("etcd-v3", "run")
    handler.shutdown()


@pytest.mark.parametrize("backend", ["rallypoint", "etcd-v3"])
def test_loading_the_plug_in_imports_next_to_nothing(backend: str) -> None:
    (entry,) = metadata.entry_points(group="torchrun.handlers", name=backend)
    program = f"""
import sys
from {entry.module} import {entry.attr}
assert callable({entry.attr}())
print(*sorted({{"torch", "asyncio", "grpc", "msgspec", "rallypoint.elastic"}} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_our_own_registry_is_not_confused_by_it() -> None:
    assert not {"rallypoint", "etcd-v3"} & set(registry.installed_handlers())
    params = rallypoint.RendezvousParameters("rallypoint", "127.0.0.1:1", "run", 1, 2, is_host="false")
    handler = rallypoint.get_rendezvous_handler(params)
    assert not isinstance(handler, TorchHandler)
    handler.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_of_torchs_class_and_of_ours(kind: type[errors.RendezvousError]) -> None:
    error = in_torch_words(kind("a sentence"))
    assert isinstance(error, getattr(torch_api, kind.__name__))
    assert isinstance(error, kind)
    assert str(error) == "a sentence"
    assert type(error) is type(in_torch_words(kind("another")))


def test_an_error_of_a_join_is_torchs() -> None:
    handler = get_rendezvous_handler(torch_parameters(join_timeout=0.3))
    with pytest.raises(torch_api.RendezvousTimeoutError, match=r"the server at 127\.0\.0\.1:1 cannot be reached"):
        handler.next_rendezvous()
    handler.shutdown()


def test_an_option_that_does_not_exist_is_refused_with_the_list_of_those_that_do() -> None:
    with pytest.raises(ValueError, match="Did you mean 'join_timeout'"):
        get_rendezvous_handler(torch_parameters(join_timout=3))


@pytest.mark.parametrize(
    ("environment", "config", "wanted"),
    [("3", {}, "3"), ("3", {"rank": "1"}, "1"), ("", {}, None), (" ", {"rank": 2}, 2)],
)
def test_the_wanted_rank_is_an_option_or_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: str, config: dict[str, object], wanted: object
) -> None:
    monkeypatch.setenv("PET_NODE_RANK", environment)
    assert options_of(torch_parameters(**config)).get("rank") == wanted


class Recorded:
    """A membership that only notes how it is left."""

    def __init__(self) -> None:
        self.left: list[tuple[Reason, str]] = []

    def leave(self, reason: Reason, why: str, *, timeout_s: float | None) -> bool:
        assert timeout_s is None
        self.left.append((reason, why))
        return True


def failed() -> ChildFailedError:
    return ChildFailedError("train.py", {4: ProcessFailure(1, 123, 3, "<N/A>")})


@pytest.mark.parametrize(
    ("error", "reason", "why"),
    [
        (None, Reason.FINISHED, ""),
        (failed(), Reason.GAVE_UP, "exit code 3 of local rank 1, global rank 4"),
        (KeyboardInterrupt(), Reason.WITHDREW, "KeyboardInterrupt"),
        (SystemExit(0), Reason.WITHDREW, "SystemExit"),
        (RuntimeError("no disk"), Reason.WITHDREW, "RuntimeError: no disk"),
    ],
)
def test_the_exception_under_way_tells_why_an_agent_goes(error: BaseException | None, reason: Reason, why: str) -> None:
    recorded = Recorded()
    handler = TorchHandler("recorded", recorded, 1.0)  # type: ignore[arg-type]  # all that is asked of it is there
    try:
        if error is not None:
            raise error
    except BaseException:  # noqa: BLE001
        handler.shutdown()
    else:
        handler.shutdown()
    (left,) = recorded.left
    assert left[0] is reason
    assert why in left[1]


def test_an_exception_that_was_about_before_the_launch_means_nothing() -> None:
    recorded = Recorded()
    try:
        raise RuntimeError("the first attempt failed")
    except RuntimeError:
        TorchHandler("recorded", recorded, 1.0).shutdown()  # type: ignore[arg-type]
    assert recorded.left == [(Reason.FINISHED, "")]
