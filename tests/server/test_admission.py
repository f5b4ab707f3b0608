"""Which callers a server welcomes: how many runs it takes, and which callers may administer them."""

from __future__ import annotations

import pytest

from rallypoint import protocol
from rallypoint.core.model import Closing, Phase, Run
from rallypoint.messages.types import Ending
from rallypoint.server.admission import Admission, ServerLimits
from rallypoint.server.run_state import RunState
from rallypoint.server.runs import HostedRun
from rallypoint.server.sockets import is_from_this_machine

HELLO = protocol.Hello(protocol.VERSION, "new", "node", 1)
ADMISSION = Admission(ServerLimits(runs=2))


def hosted(name: str, *, ended: bool) -> HostedRun:
    """A run that gathers, or one that has ended and is kept so that its members are told."""
    closing = Closing(Ending.SUCCEEDED, "all members have finished", 0.0)
    run = Run(run_id=name, phase=Phase.CLOSED, closing=closing) if ended else Run(run_id=name)
    return HostedRun(RunState(run), 7.0)


def refusal(open_runs: int, ended_runs: int) -> str:
    """What a new run is told where there are so many others."""
    known = {f"open{i}": hosted(f"open{i}", ended=False) for i in range(open_runs)}
    known |= {f"ended{i}": hosted(f"ended{i}", ended=True) for i in range(ended_runs)}
    return ADMISSION.refusal(HELLO, known)


def test_runs_that_have_ended_do_not_count_against_the_limit() -> None:
    assert refusal(1, 0) == ""
    assert refusal(1, 2) == ""
    assert "as many as it takes" in refusal(2, 0)


def test_runs_that_have_ended_are_not_kept_without_end() -> None:
    assert refusal(0, 3) == ""
    assert "as many as it takes" in refusal(0, 4)


def test_a_server_inside_a_node_is_administered_from_its_own_machine_only() -> None:
    admission, admin = Admission(ServerLimits(), "job", remote_admins=False), protocol.Hello(protocol.VERSION)
    assert admission.refusal(admin, {}, is_local=True) == ""
    assert admission.refusal(admin, {}, is_local=False) == (
        "this server is part of a job and is administered from its own machine only: run the command there"
    )
    assert admission.refusal(protocol.Hello(protocol.VERSION, "job", "node", 1), {}, is_local=False) == ""


@pytest.mark.parametrize(
    ("peer", "own", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.9", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("::ffff:10.0.0.6", "::ffff:10.0.0.5", False),
        ("fe80::2%eth0", "fe80::1%eth0", False),
    ],
)
def test_a_connection_from_loopback_or_from_the_servers_own_address_is_local(
    peer: str, own: str, is_local: bool
) -> None:
    assert is_from_this_machine((peer, 40000), (own, 29400)) is is_local


def test_a_connection_that_ended_before_it_was_looked_at_is_not_local() -> None:
    assert not is_from_this_machine(None, ("127.0.0.1", 29400))
