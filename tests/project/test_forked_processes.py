"""What tests fork instead of starting it anew is told and ends like any other process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_processes import ForkedProcess, has_stopped
from tests.support.waiting import until

TESTS = Path(__file__).parents[1]
ENDS: dict[str, tuple[str, int]] = {
    "well": ("pass", 0),
    "with a code": ("import sys; sys.exit(7)", 7),
    "by an error": ("raise ValueError('no')", 1),
    "interrupted": ("raise KeyboardInterrupt", -signal.SIGINT),
    "by a signal": ("import os; os.abort()", -signal.SIGABRT),
}
LISTENING = "import sys\nprint('ready', flush=True)\nsys.stdin.read()"


def test_every_program_of_the_tests_can_be_forked() -> None:
    """A fork calls `main`, and nothing else of what `python -m` runs at the end of the file."""
    files = {file.name: file.read_text(encoding="utf-8") for file in TESTS.rglob("*.py")}
    ends = {name: text.partition('\nif __name__ == "__main__":\n')[2] for name, text in files.items()}
    programs = {name: end for name, end in ends.items() if end}
    assert "node_program.py" in programs
    assert not {name: end for name, end in programs.items() if "main(" not in end or end.count("\n") != 1}


def forked(code: str, *arguments: str, **environment: str) -> ForkedProcess:
    return ForkedProcess("-c", code, *arguments, environment={**os.environ, **environment}, imported=())


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_an_interpreter_does(how: str) -> None:
    code, expected = ENDS[how]
    process = forked(f"import atexit\natexit.register(print, 'the end')\n{code}")
    output, errors = process.communicate(20.0)
    assert process.wait() == expected
    assert (output == "the end\n") == (how != "by a signal")
    assert ("ValueError: no" in errors) == (how == "by an error")


def test_it_has_its_own_arguments_and_environment() -> None:
    code = "import os, sys\nprint(sys.argv, os.environ['OF_ITS_OWN'], 'PARENTS' in os.environ)"
    output, _ = forked(code, "a", "b", OF_ITS_OWN="x").communicate(20.0)
    assert output == "['-c', 'a', 'b'] x False\n"


def test_it_can_be_stopped_continued_and_killed() -> None:
    process = forked(LISTENING)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: has_stopped(process.pid))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.communicate(20.0) == ("", "")
    assert process.wait() == process.poll() == -signal.SIGKILL
