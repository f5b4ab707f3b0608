"""Every scenario file still tells the same story; `--rewrite` writes what is told now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rallypoint.core import changes
from rallypoint.core.model import PHASE_CHANGES, Phase, Run
from simulation import scenario

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_ends_as_it_is_written(file: Path, rewrite: bool) -> None:
    expected = file.read_text(encoding="utf-8")
    played = str(scenario.play(scenario.parse(expected)))
    assert "INVARIANT" not in played
    if rewrite:
        file.write_text(played, encoding="utf-8")
    else:
        assert played == expected, f"{file.name} tells another story; if it is the right one, run pytest --rewrite"


def test_every_rule_that_is_a_decision_has_a_scenario() -> None:
    told = {int(number) for file in FILES for number in re.findall(r"^rule-(\d\d)", file.stem)}
    # Rule 16 says whom a server lets in: there is nothing in it for the core to decide.
    assert told == {*range(1, 16), 17}


def test_a_title_opens_every_scenario() -> None:
    assert [file.name for file in FILES if not scenario.parse(file.read_text(encoding="utf-8")).title] == []


def test_the_scenarios_take_every_way_between_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[Phase, Phase]] = set()
    enter, found = changes.enter, changes.found

    def seen_enter(run: Run, phase: Phase, **fields: object) -> Run:
        taken.add((run.phase, phase))
        return enter(run, phase, **fields)

    def seen_found(run: Run, *given: object) -> Run:
        taken.add((run.phase, Phase.GATHERING))
        return found(run, *given)  # type: ignore[arg-type]

    for name in ("changes", "recovery", "sealing"):
        monkeypatch.setattr(f"rallypoint.core.{name}.enter", seen_enter)
    for name in ("joining", "recovery"):
        monkeypatch.setattr(f"rallypoint.core.{name}.found", seen_found)
    for file in FILES:
        scenario.play(scenario.parse(file.read_text(encoding="utf-8")))
    assert set(PHASE_CHANGES) - taken == set()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the first command"),
        ("start a\n----\n", "the first command"),
        ("cluster bounds=2\n", "is followed by"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        scenario.parse(text)


@pytest.mark.parametrize("command", ["dance", "kill nobody"])
def test_a_command_that_nobody_knows_is_refused(command: str) -> None:
    text = f"cluster bounds=2\n----\n\n{command}\n----\n"
    with pytest.raises(ValueError, match="there is no"):
        scenario.play(scenario.parse(text))
