"""Every rule that the project cites is in docs/rules.md, and every part of its last rule is cited by a test."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES_PAGE = "docs/rules.md"
CITING = ("src/**/*.py", "simulation/*.py", "tests/**/*.py", "tests/**/scenarios/*.txt", "docs/*.md", "README.md")
TESTS = ("tests/**/test_*.py", "tests/**/scenarios/*.txt")
NOT_BUILT = "(not built yet)"

_HEADING = re.compile(r"^#{2,3} Rule (\d+[a-z]?): (.+)$")
_ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$')
_NAME = r"\d+[a-z]?\b"
# A citation may go on in the next line, behind the sign of a comment.
_GAP = r"[\s#]+"
_ONE = re.compile(rf"\brule(?:{_GAP}|-)0*({_NAME})", re.IGNORECASE)
_SEVERAL = re.compile(rf"\brules{_GAP}{_NAME}(?:(?:,|,?{_GAP}(?:and|or|to)\b){_GAP}{_NAME})*", re.IGNORECASE)


@dataclass(frozen=True)
class Heading:
    """A rule or a part of one, as its heading names it."""

    line: int
    name: str
    title: str
    anchor: str

    @property
    def is_built(self) -> bool:
        return NOT_BUILT not in self.title


def read_headings(page: str) -> list[Heading]:
    """The rules and parts of the page, each with the anchor in the line above it."""
    lines = page.splitlines()
    headings = []
    for index, line in enumerate(lines):
        if heading := _HEADING.match(line):
            anchor = _ANCHOR.match(lines[index - 1]) if index else None
            headings.append(Heading(index + 1, heading[1], heading[2], anchor[1] if anchor else ""))
    return headings


def citations(text: str) -> Iterator[tuple[int, str]]:
    """The rules that a text cites, with their lines; of a range only its two ends."""
    for cited in _ONE.finditer(text):
        yield _line_at(text, cited.start()), cited[1]
    for cited in _SEVERAL.finditer(text):
        for name in re.finditer(_NAME, cited[0]):
            yield _line_at(text, cited.start() + name.start()), name[0]


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def unknown_rules(path: str, text: str, known: Collection[str]) -> list[str]:
    """A sentence for each rule that a file cites, in its name or its text, and that does not exist."""
    cited = [(1, name) for _, name in citations(Path(path).name)] + list(citations(text))
    return [f"{path}:{line}: there is no rule {name}" for line, name in cited if name not in known]


def misnamed_anchors(page: str) -> list[str]:
    """A sentence for each heading that cannot be linked to by its number, or shares it with another."""
    headings = read_headings(page)
    names = [heading.name for heading in headings]
    return [
        f"{RULES_PAGE}:{heading.line}: the line above rule {heading.name} must be the anchor rule-{heading.name}"
        for heading in headings
        if heading.anchor != f"rule-{heading.name}"
    ] + [f"{RULES_PAGE}: rule {name} stands there twice" for name in sorted(set(names)) if names.count(name) > 1]


def untested_parts(page: str, tests: Iterable[str]) -> list[str]:
    """A sentence for each part of the last rule that is built and that no test names; a range does not name what is inside."""
    cited = {name for text in tests for _, name in citations(text)}
    return [
        f"no test cites rule {heading.name} ({heading.title}): cite it in the test that needs it, or drop it"
        for heading in read_headings(page)
        if re.fullmatch("17[a-z]", heading.name) and heading.is_built and heading.name not in cited
    ]


def _files(patterns: Iterable[str]) -> list[Path]:
    """All files of these patterns but this one, whose planted offences are not meant."""
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern)} - {Path(__file__).resolve()})


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rules_page() -> str:
    return _read(ROOT / RULES_PAGE)


def test_every_rule_that_is_cited_exists(rules_page: str) -> None:
    known = {heading.name for heading in read_headings(rules_page)}
    found = [
        offence
        for file in _files(CITING)
        for offence in unknown_rules(file.relative_to(ROOT).as_posix(), _read(file), known)
    ]
    assert not found, "\n".join(["", *found])


def test_every_rule_can_be_linked_to(rules_page: str) -> None:
    found = misnamed_anchors(rules_page)
    assert not found, "\n".join(["", *found])


def test_every_part_of_the_last_rule_is_cited_by_a_test(rules_page: str) -> None:
    found = untested_parts(rules_page, (f"{file.name}\n{_read(file)}" for file in _files(TESTS)))
    assert not found, "\n".join(["", *found])


def test_the_page_has_all_rules_and_their_parts(rules_page: str) -> None:
    parts = {6: "abc", 9: "a", 17: "abcdefghij"}
    expected = [f"{number}{part}" for number in range(1, 18) for part in ("", *parts.get(number, ""))]
    assert [heading.name for heading in read_headings(rules_page)] == expected


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("src/a.py", '"""A seal (rule 18)."""\n', ["1: there is no rule 18"]),
        ("src/a.py", "\n# So says Rule 4z: wait.\n", ["2: there is no rule 4z"]),
        ("src/a.py", "# one (rules 4, 18,\n    # 4a and 4z)\n", ["1: there is no rule 18", "2: there is no rule 4z"]),
        ("docs/a.md", "From rules 4 to 18.\n", ["1: there is no rule 18"]),
        ("docs/a.md", "As in rule\n4z's sentence.\n", ["1: there is no rule 4z"]),
        ("tests/core/scenarios/rule-18-late.txt", "start a\n", ["1: there is no rule 18"]),
        ("tests/core/scenarios/rule-04a-early.txt", "# Rule 4a: after rule 4, 18 s later.\n", []),
        ("docs/a.md", "The rules of 18 nodes, 18 rules, overrule 18.\n", []),
    ],
)
def test_a_planted_citation_of_no_rule_is_caught(path: str, text: str, found: list[str]) -> None:
    assert unknown_rules(path, text, {"4", "4a"}) == [f"{path}:{offence}" for offence in found]


PLANTED_PAGE = f"""\
<a id="rule-17"></a>
## Rule 17: Found

<a id="rule-17a"></a>
### Rule 17a: First

<a id="rule-17b"></a>
### Rule 17b: Second {NOT_BUILT}

<a id="rule-17c"></a>
### Rule 17c: Third
"""


@pytest.mark.parametrize(
    ("tests", "untested"),
    [
        (["(rule 17a)", "(rules 4 and 17c)"], []),
        (["(rule 17a)"], ["17c (Third)"]),
        (["rule 17", "17a, 17c"], ["17a (First)", "17c (Third)"]),
        (["rule-17c-late.txt\n"], ["17a (First)"]),
    ],
)
def test_a_planted_part_without_a_test_is_caught(tests: list[str], untested: list[str]) -> None:
    advice = "cite it in the test that needs it, or drop it"
    assert untested_parts(PLANTED_PAGE, tests) == [f"no test cites rule {part}: {advice}" for part in untested]


def test_a_planted_heading_without_its_anchor_is_caught() -> None:
    assert misnamed_anchors(PLANTED_PAGE) == []
    doubled = PLANTED_PAGE + "### Rule 17a: Again\n"
    assert misnamed_anchors(doubled) == [
        "docs/rules.md:12: the line above rule 17a must be the anchor rule-17a",
        "docs/rules.md: rule 17a stands there twice",
    ]
