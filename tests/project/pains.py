"""Reads docs/pains.md: the table that maps each pain of users to the tests that show it gone."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAINS_PAGE = ROOT / "docs" / "pains.md"
PAIN_NUMBERS = range(1, 47)
NONE_YET = "—"

_ROW = re.compile(r"^\|\s*(\d+)\s*\|(.*)\|\s*$")
_TEST_ID = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Pain:
    """One row of the table."""

    number: int
    pain: str
    answer: str
    tests: tuple[str, ...]


def read_pains(page: str) -> list[Pain]:
    """The rows of the table, in the page's order."""
    pains = []
    for line in page.splitlines():
        if row := _ROW.match(line):
            cells = [cell.strip() for cell in row[2].split("|")]
            if len(cells) != 3:
                raise ValueError(f"pain {row[1]} has {len(cells) + 1} cells, not 4: {line}")
            if _TEST_ID.sub("", cells[2]).strip(" ,") not in ("", NONE_YET):
                raise ValueError(f"pain {row[1]} cites tests without backticks: {cells[2]}")
            pains.append(Pain(int(row[1]), cells[0], cells[1], tuple(_TEST_ID.findall(cells[2]))))
    return pains


def misnumbered(pains: Sequence[Pain]) -> list[str]:
    """A sentence for each number that is missing, doubled, or none of ours."""
    times = Counter(pain.number for pain in pains)
    return (
        [f"pain {number} is missing" for number in PAIN_NUMBERS if number not in times]
        + [f"pain {number} is listed {count} times" for number, count in times.items() if count > 1]
        + [f"pain {number} is not among the {len(PAIN_NUMBERS)}" for number in times if number not in PAIN_NUMBERS]
    )


def wordless(pains: Sequence[Pain]) -> list[str]:
    """A sentence for each row that lacks the pain's words or the answer's."""
    return [f"pain {pain.number} lacks its words" for pain in pains if not (pain.pain and pain.answer)]


def without_tests(pains: Sequence[Pain]) -> list[int]:
    """The numbers of the pains that no test shows gone yet."""
    return [pain.number for pain in pains if not pain.tests]


def unknown_tests(pains: Sequence[Pain], collected: Collection[str]) -> list[str]:
    """A sentence for each cited id that pytest does not collect; a parametrised test may be cited without brackets."""
    known = {*collected, *(test.partition("[")[0] for test in collected)}
    return [
        f"pain {pain.number} cites {test}, which does not exist"
        for pain in pains
        for test in pain.tests
        if test not in known
    ]


def collect(pains: Sequence[Pain], root: Path = ROOT) -> set[str]:
    """The ids of all tests in the files that the pains cite, as pytest collects them."""
    cited = {test.partition("::")[0] for pain in pains for test in pain.tests}
    files = sorted(file for file in cited if (root / file).is_file())
    if not files:
        return set()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *files,
    ]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"pytest cannot collect the cited tests:\n{run.stdout}{run.stderr}")
    return {line for line in run.stdout.splitlines() if "::" in line}
