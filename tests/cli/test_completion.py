"""`rallypoint completion`: a real bash completes with the script that is printed."""

import subprocess
from pathlib import Path

import pytest

from tests.support.cli_processes import answer


def _complete(line: str, folder: Path) -> set[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    program = (
        f"{answer('completion', 'bash')}\n"
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        '_rallypoint; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    command = ["bash", "--norc", "-u", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rallypoint st", {"status"}),
        ("rallypoint --v", {"--version"}),
        ("rallypoint completion z", {"zsh"}),
        ("rallypoint status --js", {"--json"}),
        ("rallypoint evict llama node1 --l", {"--lift"}),
        ("rallypoint evict llama --why --l", set()),
        ("rallypoint runs --endpoint ", set()),
        ("rallypoint serve --state sta", {"state-file"}),
    ],
)
def test_bash_completes(line: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "state-file").touch()
    assert _complete(line, tmp_path) == offered


def test_bash_offers_every_command(tmp_path: Path) -> None:
    assert {"serve", "status", "runs", "close", "evict", "demo", "completion"} <= _complete("rallypoint ", tmp_path)


def test_zsh_gets_the_same_script_after_its_own_preparation() -> None:
    assert answer("completion", "zsh").endswith(answer("completion", "bash"))
    assert "bashcompinit" in answer("completion", "zsh")
