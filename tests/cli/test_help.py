"""The command line as such: quick to start, and clear about what it does not understand."""

import subprocess
import sys

import pytest

from tests.cli.processes import answer, cli


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from rallypoint.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(*sorted({'asyncio', 'rich', 'torch'} & set(sys.modules)), file=sys.stderr, end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "", "these take long to import, and help needs none of them"
    for command in ("serve", "status", "runs", "close", "evict", "demo"):
        assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize("command", ["serve", "status", "runs", "close", "evict", "demo"])
def test_every_command_has_help(command: str) -> None:
    assert answer(command, "--help").startswith(f"usage: rallypoint {command} ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["serve"], "the following arguments are required: --bind"),
        (["serve", "--bind", "127.0.0.1:many"], "the port 'many' is no number from 0 to 65535"),
        (["runs", "--endpoint", "http://127.0.0.1:29400"], "begins with http://, which is unknown here"),
        (["close"], "the following arguments are required: RUN"),
        (["evict", "llama"], "the following arguments are required: NODE"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments: list[str], sentence: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
