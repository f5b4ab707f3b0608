"""docs/pains.md keeps its word: all 46 pains are there, and every test it cites exists."""

from pathlib import Path

import pytest

from tests.project.pains import (
    PAIN_NUMBERS,
    PAINS_PAGE,
    Pain,
    collect,
    misnumbered,
    read_pains,
    unknown_tests,
    without_tests,
    wordless,
)


@pytest.fixture
def pains() -> list[Pain]:
    return read_pains(PAINS_PAGE.read_text(encoding="utf-8"))


def cite(*tests: str, number: int = 1) -> Pain:
    return Pain(number, "a pain", "an answer", tests)


def test_each_pain_is_listed_once(pains: list[Pain]) -> None:
    assert misnumbered(pains) == []


def test_each_pain_has_its_words(pains: list[Pain]) -> None:
    assert wordless(pains) == []


def test_each_cited_test_exists(pains: list[Pain]) -> None:
    assert unknown_tests(pains, collect(pains)) == []


def test_a_missing_and_a_doubled_and_a_strange_number_are_found() -> None:
    numbers = [2, 2, *range(4, 47), 47]
    assert misnumbered([cite(number=number) for number in numbers]) == [
        "pain 1 is missing",
        "pain 3 is missing",
        "pain 2 is listed 2 times",
        "pain 47 is not among the 46",
    ]
    assert misnumbered([cite(number=number) for number in PAIN_NUMBERS]) == []


def test_a_row_is_read_into_its_four_cells() -> None:
    page = "| # | pain | answer | tests |\n|--:|---|---|---|\n| 7 | It hurts | It heals | `tests/a.py::x` `tests/b.py::y` |\n"
    assert read_pains(page) == [Pain(7, "It hurts", "It heals", ("tests/a.py::x", "tests/b.py::y"))]
    assert without_tests(read_pains("| 8 | It hurts | It heals | — |\n")) == [8]


def test_a_row_of_other_than_four_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="pain 7 has 3 cells, not 4"):
        read_pains("| 7 | It hurts | It heals |\n")


def test_a_test_id_outside_backticks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pain 7 cites tests without backticks: tests/a\.py::x"):
        read_pains("| 7 | It hurts | It heals | tests/a.py::x |\n")


def test_a_row_without_words_is_found() -> None:
    assert wordless([Pain(3, "", "an answer", ())]) == ["pain 3 lacks its words"]


def test_a_wrong_test_id_is_found_and_a_right_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_real.py").write_text(
        "import pytest\n"
        "def test_plain(): ...\n"
        "@pytest.mark.parametrize('size', [1, 2])\n"
        "def test_sized(size): ...\n"
        "class TestGroup:\n"
        "    def test_inside(self): ...\n"
    )
    right = cite(
        "test_real.py::test_plain",
        "test_real.py::test_sized",
        "test_real.py::test_sized[2]",
        "test_real.py::TestGroup::test_inside",
    )
    wrong = cite("test_real.py::test_sized[3]", "test_real.py::test_gone", "test_gone.py::test_plain", number=2)
    assert unknown_tests([right, wrong], collect([right, wrong], tmp_path)) == [
        "pain 2 cites test_real.py::test_sized[3], which does not exist",
        "pain 2 cites test_real.py::test_gone, which does not exist",
        "pain 2 cites test_gone.py::test_plain, which does not exist",
    ]
