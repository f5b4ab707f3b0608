"""What the tests of the state file share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rallypoint.errors import RendezvousStateError
from rallypoint.server.state_file import StateFile
from tests.support.waiting import PATIENCE_S

HEADER = b"rallypoint state file, format 2\n"
LONG = b'"%b"' % (b"x" * 700)

Changes = dict[str, bytes | None]


@contextmanager
def opened(path: Path) -> Iterator[StateFile]:
    with closing(StateFile(path)) as state:
        state.read()
        yield state


def read(path: Path) -> dict[str, bytes]:
    with closing(StateFile(path)) as state:
        return state.read()


def written(path: Path, *writes: Changes) -> bytes:
    """The bytes of a file after these writes."""
    with opened(path) as state:
        for changes in writes:
            state.write(changes)
    return path.read_bytes()


def compact(state: StateFile) -> None:
    """Write until the file is compacted, which happens soon if no bytes are to spare; one record is left."""
    for number in range(9):
        state.write({"one": b"%d" % number})
    assert len(state.path.read_bytes().splitlines()) < 9


def refusal(path: Path) -> str:
    """What a server is told that cannot use this path."""
    with pytest.raises(RendezvousStateError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def refusal_of(path: Path, content: bytes) -> str:
    """What a server is told that cannot use a file with this content, which stays as it is."""
    path.write_bytes(content)
    said = refusal(path)
    assert path.read_bytes() == content
    return said


def recorded_calls(patch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, object]]:
    calls: list[tuple[str, object]] = []

    def record(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            calls.append((name, args[0]))
            return real(*args, **keywords)

        return call

    for name in names:
        patch.setattr(os, name, record(name, getattr(os, name)))
    return calls


def failing_with(code: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def output_of(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def on_a_disk_of_its_own(folder: Path, options: str, code: str) -> list[str]:
    mounted = f'mount -t tmpfs -o {options} none "$1" && exec {sys.executable} -c "$2" "$1"'
    return output_of(["unshare", "--mount", "sh", "-c", mounted, "sh", str(folder), code])
