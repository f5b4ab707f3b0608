"""The tree keeps its rules of tidiness, and each rule catches an offence that is planted for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import tidiness
from tests.project.tidiness import RULES, Page, Rule, offences

ROOT = Path(__file__).resolve().parents[2]

LATER = "TO" + "DO"
DOC = '"""A rule."""\n'

# For each rule: the file, its text, the offence; and a text in the same file that is fine.
PLANTED: list[tuple[Rule, str, str, str, str]] = [
    (
        tidiness.module_opens_with_docstring,
        "src/rallypoint/a.py",
        "import ast\n",
        "1: the module does not open with a docstring that states its rule",
        DOC,
    ),
    (
        tidiness.public_names_have_docstrings,
        "src/rallypoint/a.py",
        "def _private(): ...\n\n\ndef public(): ...\n",
        "4: `public` is public and has no docstring",
        f"def public():\n    {DOC}\n\n@overload\ndef many(): ...\n\n\nclass Noun:\n    {DOC}\n    def verb(self): ...\n",
    ),
    (
        tidiness.public_names_have_docstrings,
        "src/rallypoint/a.py",
        "class Noun: ...\n",
        "1: `Noun` is public and has no docstring",
        "class _Noun: ...\n",
    ),
    (
        tidiness.class_names_say_something,
        "tests/core/a.py",
        "class RunManager: ...\n",
        "1: `RunManager`: Manager says nothing; use a noun of the domain",
        "class Run: ...\n",
    ),
    (
        tidiness.class_names_say_something,
        "src/rallypoint/a.py",
        "class StoreImpl: ...\n",
        "1: `StoreImpl`: Impl says nothing; use a noun of the domain",
        "class Implicit: ...\n",
    ),
    (
        tidiness.module_is_short,
        "src/rallypoint/a.py",
        "pass\n" * 451,
        "451: the module has more than 450 lines; it is two modules",
        "pass\n" * 450,
    ),
    (
        tidiness.nobody_reads_the_wall_clock,
        "src/rallypoint/a.py",
        "import time\n\nnow = time.time()\n",
        "3: `time.time()` reads the wall clock",
        "import time\n\nnow = time.monotonic()\n",
    ),
    (
        tidiness.nobody_reads_the_wall_clock,
        "src/rallypoint/a.py",
        "from time import time\n",
        "1: `time.time` is the wall clock",
        "from time import monotonic\n",
    ),
    (
        tidiness.nobody_reads_the_wall_clock,
        "src/rallypoint/a.py",
        "now = datetime.datetime.now(datetime.timezone.utc)\n",
        "1: `datetime.datetime.now()` reads the wall clock",
        "now = clock.now()\n",
    ),
    (
        tidiness.nothing_is_unpickled,
        "src/rallypoint/a.py",
        "def late():\n    import pickle\n",
        "2: `pickle` is imported; nothing is unpickled, ever",
        "# pickle is not imported\nimport json\n",
    ),
    (
        tidiness.nothing_is_unpickled,
        "src/rallypoint/a.py",
        "from shelve import open\n",
        "1: `shelve` is imported; nothing is unpickled, ever",
        "from json import loads\n",
    ),
    (
        tidiness.tests_do_not_sleep,
        "tests/core/a.py",
        "import time\n\ntime.sleep(1)\n",
        "3: the test sleeps; let it wait for what it expects",
        "# it would be wrong to sleep(1) here\n",
    ),
    (
        tidiness.tests_do_not_shirk,
        "tests/core/a.py",
        "import pytest\n\n\n@pytest.mark.skipif(True, reason='')\ndef test_nothing(): ...\n",
        "4: `pytest.mark.skipif`: a test passes or fails, it is not set aside",
        "import pytest\n\n\n@pytest.mark.soak\ndef test_something(): ...\n",
    ),
    (
        tidiness.tests_do_not_shirk,
        "tests/core/a.py",
        "from pytest import importorskip\n",
        "1: `importorskip`: a test passes or fails, it is not set aside",
        "from pytest import raises\n",
    ),
    (
        tidiness.nothing_is_left_for_later,
        "docs/a.md",
        f"One\n\n{LATER}: two\n",
        f"3: {LATER}: do it now, or open an issue",
        "One, two\n",
    ),
    (
        tidiness.lines_end_cleanly,
        "docs/a.md",
        "One \nTwo\n",
        "1: white space at the end of the line",
        "One\nTwo\n",
    ),
    (
        tidiness.file_ends_with_one_newline,
        "docs/a.md",
        "One\nTwo",
        "2: the file does not end with a newline",
        "",
    ),
    (
        tidiness.file_ends_with_one_newline,
        "docs/a.md",
        "One\n\n",
        "2: the file ends with empty lines",
        "One\n",
    ),
    (
        tidiness.relative_links_lead_somewhere,
        "docs/a.md",
        "See [there](there.md#part).\n",
        "1: the link to there.md#part leads nowhere",
        "See [here](a.md#part), [above](#part), [away](https://example.org/x) and `[code](x)`.\n",
    ),
    (
        tidiness.make_targets_in_documents_exist,
        "docs/a.md",
        "Run `make haste`.\n",
        "1: `make haste` is no target of the Makefile",
        "Run `make check`, and make sure:\n\n```\nmake check  # make haste\n```\n",
    ),
    (
        tidiness.make_targets_in_documents_exist,
        "docs/a.md",
        "```\nmake haste\n```\n",
        "2: `make haste` is no target of the Makefile",
        "We make haste.\n",
    ),
    (
        tidiness.make_targets_explain_themselves,
        "Makefile",
        "bare: thing\n\ttouch $@\n",
        "1: the target bare has no line in `make help`",
        "bare: thing ## say what it does\n\ttouch $@\n",
    ),
]


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[str, str], Page]:
    def write(path: str, text: str) -> Page:
        (tmp_path / "Makefile").write_text("check: ## look\n", encoding="utf-8")
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return Page(tmp_path, Path(path))

    return write


@pytest.mark.parametrize("rule", RULES, ids=[rule.__name__ for rule in RULES])
def test_the_tree_is_tidy(rule: Rule) -> None:
    found = offences(rule, ROOT)
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("rule", "path", "text", "offence", "fine"), PLANTED, ids=[rule.__name__ for rule, *_ in PLANTED]
)
def test_a_planted_offence_is_caught(
    rule: Rule, path: str, text: str, offence: str, fine: str, page_of: Callable[[str, str], Page]
) -> None:
    assert list(rule(page_of(path, text))) == [f"{path}:{offence}"]
    assert list(rule(page_of(path, fine))) == []


def test_no_class_name_of_the_package_means_two_things() -> None:
    assert not list(tidiness.class_names_used_twice(ROOT))


def test_a_class_name_that_is_used_twice_is_caught(tmp_path: Path) -> None:
    for path, name in (("a.py", "Noun"), ("b/c.py", "Noun"), ("b/d.py", "Verb")):
        file = tmp_path / "src" / "rallypoint" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class {name}: ...\n", encoding="utf-8")
    found = {"Noun": ["src/rallypoint/a.py", "src/rallypoint/b/c.py"]}
    assert tidiness.class_names_used_twice(tmp_path) == found


def test_a_folder_that_is_no_package_is_caught(tmp_path: Path) -> None:
    module = tmp_path / "src" / "rallypoint" / "extras" / "a.py"
    module.parent.mkdir(parents=True)
    module.write_text(DOC, encoding="utf-8")
    found = ["src/rallypoint/extras/a.py:1: the module's folder has no __init__.py"]
    assert offences(tidiness.folder_is_a_package, tmp_path) == found
    (module.parent / "__init__.py").touch()
    assert offences(tidiness.folder_is_a_package, tmp_path) == []


def test_each_rule_has_a_planted_offence() -> None:
    assert {rule for rule, *_ in PLANTED} | {tidiness.folder_is_a_package} == set(RULES)


def test_rules_see_the_project_and_not_what_tools_leave_behind(tmp_path: Path) -> None:
    files = ["src/a.py", ".ci/run", "README.md", ".venv/lib/b.py", "src/__pycache__/c.py", "picture.png", ".gitignore"]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    seen = [page.path.as_posix() for page in tidiness.pages(tmp_path)]
    assert sorted(seen) == [".ci/run", ".gitignore", "README.md", "src/a.py"]


def test_the_readme_exists_and_names_make_targets() -> None:
    readme = ROOT / "README.md"
    assert readme.exists(), "README.md is missing"
    assert "make demo" in readme.read_text(encoding="utf-8"), "README.md does not say how to see the demonstration"
