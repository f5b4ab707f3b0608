"""Who is welcome at a server: how many runs it takes."""

from __future__ import annotations

from rallypoint import protocol
from rallypoint.core.authority import Authority
from rallypoint.core.model import Closing, Ending, Phase, Run
from rallypoint.server.admission import Admission
from rallypoint.server.limits import Limits
from rallypoint.server.runs import Hosted

HELLO = protocol.Hello(protocol.VERSION, "new", "node", 1)
ADMISSION = Admission(Limits(runs=2))


def hosted(name: str, *, ended: bool) -> Hosted:
    """A run that gathers, or one that has ended and is kept so that its members are told."""
    closing = Closing(Ending.SUCCEEDED, "all members have finished", 0.0)
    run = Run(run_id=name, phase=Phase.CLOSED, closing=closing) if ended else Run(run_id=name)
    return Hosted(Authority(run), 7.0)


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
