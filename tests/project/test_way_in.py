"""What README.md, CONTRIBUTING.md and the workflow tell a newcomer to do can be done."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rallypoint
from simulation import scenario
from tests.project.tidiness import make_targets
from tests.support.cli_processes import Process, free_port

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def commands(page: str, program: str) -> list[list[str]]:
    """The lines of a page's plain code blocks that call a program, split as a shell does; comments are left out."""
    lines: list[str] = []
    language: str | None = None
    for line in page.splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language == "" and line.startswith(f"{program} "):
            lines.append(line)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_commands_of_the_readme_work_as_written(tmp_path: Path) -> None:
    port = str(free_port())
    launches = [words for words in commands(README, "rallypoint") if words[1] == "run"]
    done = subprocess.run([sys.executable, "-m", *launches[0]], capture_output=True, text=True, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] worker 0 of 2", "[1] worker 1 of 2"])
    dry = [*launches[1][:2], "--dry-run", *launches[1][2:]]
    assert subprocess.run([sys.executable, "-m", *dry], capture_output=True, check=False).returncode == 0
    serve, *others = [
        [word.replace("29400", port) for word in words]
        for words in commands(README, "rallypoint")
        if words != ["rallypoint", "--version"] and words not in launches
    ]
    assert serve[1] == "serve"
    assert [words[1] for words in others] == ["runs", "status"]
    server = Process("env", "--chdir", str(tmp_path), sys.executable, "-m", *serve)
    try:
        server.expect(f"127.0.0.1:{port}")
        with rallypoint.join(f"127.0.0.1:{port}", run="my-run", nodes=1, quiet=True):
            for words in others:
                done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
                assert (done.returncode, done.stderr) == (0, "")
                assert "my-run" in done.stdout
        assert list(tmp_path.iterdir()), "the state file is written where the command says"
    finally:
        server.end()


def test_what_the_documents_install_exists() -> None:
    extras = set(
        re.findall(r"^([\w-]+) = \[", SETTINGS.partition("[project.optional-dependencies]")[2], flags=re.MULTILINE)
    )
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    installs = [words for page in pages for words in commands(page.read_text(encoding="utf-8"), "pip")]
    assert len(installs) >= 4
    for words in installs:
        named = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", words[2])
        assert named, f"{shlex.join(words)}: there is no release, so it is installed from the clone"
        assert set((named[1] or "torch").split(",")) <= extras


def test_every_backend_that_the_readme_hands_to_torchrun_is_a_plug_in() -> None:
    plug_ins = SETTINGS.partition('entry-points."torchrun.handlers"]')[2].partition("\n\n")[0]
    backends = [words[words.index("--rdzv-backend") + 1] for words in commands(README, "torchrun")]
    assert len(backends) == 2
    assert [name for name in backends if f"\n{name} = " not in plug_ins] == []


def test_the_scenario_in_the_guide_can_be_played_and_shows_a_regrouping() -> None:
    (text,) = re.findall(r"```scenario\n(.*?)```", CONTRIBUTING, flags=re.DOTALL)
    played = str(scenario.play(scenario.parse(text)))
    assert "INVARIANT" not in played
    assert "round 1 is broken: c was lost" in played
    assert "round 2 is sealed with 2 nodes" in played


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_path_in_the_guides_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|simulation|docs)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"`\w+\.py`", text) == [], "a file is named with its folder, so that this test finds it"


def test_the_index_leads_to_every_document() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert [name for name in sorted(pages) if f"({name})" not in index] == []


def test_the_workflow_runs_on_every_python_and_etcd_that_is_promised() -> None:
    pythons, etcds = (
        re.findall(r"v?(\d+\.\d+)", row)
        for row in re.findall(r"^ +(?:python|etcd): \[(.*)\]", WORKFLOW, flags=re.MULTILINE)
    )
    promised = re.findall(r"Python :: (3\.\d+)", SETTINGS)
    assert set(promised) <= set(pythons)
    assert pythons == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert etcds == ["3.4", "3.5", "3.6"]
    assert set(re.findall(r"\bmake ([a-z-]+)", WORKFLOW)) <= set(make_targets(ROOT))
