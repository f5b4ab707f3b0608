"""The command line as such: quick to start, and clear about what it does not understand."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rallypoint.cli import COMMANDS
from rallypoint.cli.exit_codes import ExitCode
from tests.support.cli_processes import answer, cli


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from rallypoint.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(*sorted({'asyncio', 'rich', 'torch'} & set(sys.modules)), file=sys.stderr, end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "", "these take long to import, and help needs none of them"
    for command in ("serve", "status", "runs", "close", "evict", "demo", "completion"):
        assert re.search(rf"\n    {command}\s+[a-z]", done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert answer(command, "--help").startswith(f"usage: rallypoint {command} ")


def test_the_version_is_that_of_the_package() -> None:
    assert answer("--version") == f"rallypoint {version('rallypoint')}\n"


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "rallypoint", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("rallypoint ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["serve", "--bind", "127.0.0.1:many"], "the port 'many' is no number from 0 to 65535"),
        (["serve", "--bind", ""], "argument --bind: it is empty: write HOST:PORT"),
        (["runs", "--endpoint", "http://127.0.0.1:29400"], "begins with http://, which is unknown here"),
        (["runs", "--endpoint", ""], "The endpoint '' is empty: write HOST:PORT, or a URL such as etcd://HOST:PORT."),
        (["runs", "--endpoint", "c10d://"], "The endpoint 'c10d://' is empty"),
        (["runs", "--endpoint", "127.0.0.1:0"], "has port 0, on which nothing can be reached: write the real port."),
        (["runs", "--endpoint", "[::1]:0"], "has port 0, on which nothing can be reached"),
        (["runs", "--endpoint", "etcd://a:2379,b:0"], "has port 0, on which nothing can be reached"),
        (["close"], "the following arguments are required: RUN"),
        (["close", ""], "argument RUN: it is empty, and a run's name is not"),
        (["status", "x" * 129], "argument RUN: it has 129 characters, and a run's name has at most 128"),
        (["status", "caf\udce9"], r"argument RUN: 'caf\udce9' is not valid UTF-8, and a run's name is"),
        (["evict", "llama"], "the following arguments are required: NODE"),
        (["evict", "llama", "\udcff"], r"argument NODE: '\udcff' is not valid UTF-8, and a node's name is"),
        (["evict", "llama", "x" * 257], "argument NODE: it has 257 characters, and a node's name has at most 256"),
        (["close", "llama", "--why", "x" * 1025], "argument --why: it has 1025 characters, and a reason has at most"),
    ],
    ids=lambda value: " ".join(value)[:30].encode("ascii", "replace").decode() if isinstance(value, list) else "",
)
def test_bad_arguments_are_refused_in_words(arguments: list[str], sentence: str) -> None:
    done = cli(*arguments)
    assert done.returncode == ExitCode.USAGE
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistyped_command_gets_a_suggestion() -> None:
    done = cli("sttaus", "llama")
    assert done.returncode == ExitCode.USAGE
    assert "there is no command 'sttaus'. Did you mean 'status'? The commands are: run, serve, status, " in done.stderr
    assert "Did you mean" not in cli("sing").stderr


def test_a_mistyped_option_gets_a_suggestion_and_the_usage_of_its_command() -> None:
    done = cli("evict", "llama", "node1", "--fro=10m")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("usage: rallypoint evict ")
    assert "rallypoint evict: error: there is no option '--fro'. Did you mean '--for'?" in done.stderr
    for before in ([], ["runs"]):
        done = cli("--verison", *before)
        assert "rallypoint: error: there is no option '--verison'. Did you mean '--version'?" in done.stderr
    done = cli("runs", "llama")
    assert done.stderr.startswith("usage: rallypoint runs ")
    assert "'llama' is one argument too many" in done.stderr


def test_every_exit_code_is_in_the_document() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [code for code in ExitCode if f"| {code.value} | " not in page] == []
