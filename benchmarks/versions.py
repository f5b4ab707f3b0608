"""A version of Rallypoint to measure: the folder of its source, and how a commit gets one of its own for a while."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import environment

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
COMMAND_S = 120.0


class Version(NamedTuple):
    """One version: its commit, with `-dirty` where the folder differs from it, and the folder that it is imported from."""

    commit: str
    source: Path


def in_folder(folder: Path) -> Version:
    """The version that lies in a working tree; SystemExit where there is none."""
    folder = folder.resolve()
    try:
        described = _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty", folder=folder)
    except subprocess.CalledProcessError:
        raise SystemExit(f"{folder} is not a working tree of git: name the root of one that has Rallypoint.") from None
    return Version(described, folder / "src")


@contextmanager
def checked_out(revision: str) -> Iterator[Version]:
    """Check a commit out into a folder under `build/`, which does not outlive the block."""
    commit = resolve(revision)
    folder = BUILD / "before"
    with _alone():
        shutil.rmtree(folder, ignore_errors=True)  # an interrupted run may have left it
        try:
            # Forced, because git still knows the folder of an interrupted run.
            _git("worktree", "add", "--force", "--detach", str(folder), commit)
            yield Version(commit, folder / "src")
        finally:
            with suppress(subprocess.SubprocessError):
                _git("worktree", "remove", "--force", str(folder))
            shutil.rmtree(folder, ignore_errors=True)


def resolve(revision: str) -> str:
    """The commit that a revision names; SystemExit where it names none."""
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(
            f"There is no commit {revision!r} in this repository: name a commit, a branch or a tag that it has, "
            f"for example HEAD or one that `git log` shows."
        ) from None


def prepare(version: Version) -> None:
    """Compile a version and check that processes import this one; SystemExit where they do not."""
    # A module that is compiled when it is first imported would cost one version the time of it.
    compiler = [sys.executable, "-m", "compileall", "-q", str(version.source)]
    subprocess.run(compiler, timeout=COMMAND_S, capture_output=True, check=False)
    told = subprocess.run(
        [sys.executable, "-c", "import rallypoint; print(rallypoint.__file__); rallypoint.join"],
        env=environment(version.source),
        cwd=ROOT,
        timeout=COMMAND_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise SystemExit(f"Rallypoint in {version.source} cannot be imported: {told.stderr.strip().splitlines()[-1]}")
    imported = Path(told.stdout.strip())
    if not imported.is_relative_to(version.source):
        raise SystemExit(f"Rallypoint was to be imported from {version.source}, but is imported from {imported}.")


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time use the folder; the lock ends with the process."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "before.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("Another comparison runs in this working tree: wait until it has ended.") from None
        yield


def _git(*arguments: str, folder: Path = ROOT) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, timeout=COMMAND_S, check=True, capture_output=True, text=True).stdout.strip()
