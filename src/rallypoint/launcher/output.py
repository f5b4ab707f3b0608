"""What workers write: read from pipes line by line, kept as a tail, written to files, shown with a prefix.

One thread reads all pipes; another one shows lines on the terminal, so that a terminal that is slow, or stopped, never
stalls a worker.  Lines are never torn: a line is shown in one piece, also where a worker writes it in several.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["OutputRouter", "Stream"]

TAIL_LINES = 50
LONGEST_LINE = 64 * 1024
"""A longer line is shown in pieces of this size: a progress bar may never end its line."""
BACKLOG = 16 * 1024 * 1024
"""Bytes that wait for the terminal; when there are more, lines are left out, which is said.  Files have them all."""
_CHUNK = 64 * 1024
_COLOURS = (36, 33, 35, 32, 34, 31)


class Stream(msgspec.Struct, frozen=True):
    """One stream of one worker.  `shown`: on the terminal; `path`: in which file; `prefix`: before each line shown."""

    rank: int
    is_error: bool
    shown: bool = True
    path: Path | None = None
    prefix: str = ""


class OutputRouter:
    """Reads the output of workers, for as long as a launcher runs.

    Of stdout and stderr, in this order: which are `coloured`.  `is_live`: stderr is a terminal that can be written over.
    """

    def __init__(
        self,
        out: BinaryIO | None = None,
        err: BinaryIO | None = None,
        *,
        coloured: tuple[bool, bool] = (False, False),
        is_live: bool = False,
    ) -> None:
        self._screen = _Screen(out or sys.stdout.buffer, err or sys.stderr.buffer)
        self._coloured = coloured
        self.is_live = is_live
        self._selector = selectors.DefaultSelector()
        self._changes: deque[Callable[[], object]] = deque()
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._open = threading.Condition()
        self._pipes: set[_Pipe] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="rallypoint-output", daemon=True)
        self._thread.start()

    def open(self, stream: Stream) -> tuple[int, _Pipe]:
        """The descriptor that a worker is to write to, to be closed once it has it, and the pipe to ask for its tail."""
        read, write = os.pipe()
        prefix = stream.prefix
        if prefix and self._coloured[stream.is_error]:
            prefix = f"\033[{_COLOURS[stream.rank % len(_COLOURS)]}m{prefix}\033[0m"
        try:
            file = stream.path.open("ab", buffering=0) if stream.path is not None else None
        except BaseException:
            os.close(read)
            os.close(write)
            raise
        pipe = _Pipe(read, stream, prefix.encode(), file, self._screen)
        with self._open:
            self._pipes.add(pipe)
        self._order(lambda: self._selector.register(read, selectors.EVENT_READ, pipe))
        return write, pipe

    def drain(self, pipes: list[_Pipe], timeout_s: float) -> bool:
        """Wait until these pipes have ended; False where a process that was left behind keeps one open for longer."""
        with self._open:
            return self._open.wait_for(lambda: not self._pipes.intersection(pipes), timeout_s)

    def say(self, line: str) -> None:
        """Show a line of the launcher's own on stderr, between those of the workers."""
        self._screen.show(line.encode("utf-8", "replace") + b"\n", is_error=True)

    def status(self, text: str) -> None:
        """Show a text below everything else, in place of the last one; an empty one takes it away.  Only where it `is_live`."""
        if self.is_live:
            self._screen.status(text)

    def close(self, timeout_s: float = 5.0) -> None:
        """Show what is left, for so long at most."""
        self._is_closed = True
        self._order(lambda: None)
        self._thread.join(timeout_s)
        self._screen.close(timeout_s)

    def _order(self, change: Callable[[], object]) -> None:
        self._changes.append(change)
        os.write(self._wake, b"x")

    def _read(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._woken, 4096)
                elif not key.data.read():
                    self._end(key.data)
            while self._changes:
                self._changes.popleft()()
        for pipe in list(self._pipes):
            pipe.read_what_is_there()
            self._end(pipe)
        os.close(self._woken)
        os.close(self._wake)

    def _end(self, pipe: _Pipe) -> None:
        if pipe.descriptor in self._selector.get_map():
            self._selector.unregister(pipe.descriptor)
        pipe.end()
        with self._open:
            self._pipes.discard(pipe)
            self._open.notify_all()


class _Pipe:
    """The reading end of one stream."""

    def __init__(self, descriptor: int, stream: Stream, prefix: bytes, file: BinaryIO | None, screen: _Screen) -> None:
        self.descriptor = descriptor
        self._stream, self._prefix, self._file, self._screen = stream, prefix, file, screen
        self._rest = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)

    def tail(self) -> list[str]:
        """The last lines."""
        lines = [*self._tail, *([self._rest] if self._rest else [])]
        return [line.decode("utf-8", "replace").rstrip("\r\n") for line in lines[-TAIL_LINES:]]

    def read(self) -> bool:
        """Take what has come; False at its end."""
        data = os.read(self.descriptor, _CHUNK)
        if data:
            self._take(data)
        return bool(data)

    def read_what_is_there(self) -> None:
        """Take what a worker wrote before its end, although another process still keeps the pipe open."""
        os.set_blocking(self.descriptor, False)
        try:
            while self.read():
                pass
        except BlockingIOError:
            return

    def end(self) -> None:
        """The stream has ended; its last line may lack the end."""
        if self._rest:
            self._emit([self._rest + b"\n"])
            self._rest = b""
        os.close(self.descriptor)
        if self._file is not None:
            self._file.close()

    def _take(self, data: bytes) -> None:
        if self._file is not None:
            self._write(data)
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest + b"\n")
            self._rest = b""
        self._emit(lines)

    def _emit(self, lines: list[bytes]) -> None:
        self._tail.extend(lines)
        if self._stream.shown and lines:
            self._screen.show(b"".join(self._prefix + line for line in lines), is_error=self._stream.is_error)

    def _write(self, data: bytes) -> None:
        assert self._file is not None, "checked by the caller"
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as exc:
            # A full disk costs the log, not the training.
            self._screen.show(f"{self._stream.path} is not written any more: {exc.strerror}\n".encode(), is_error=True)
            self._file.close()
            self._file = None


class _Screen:
    """The terminal, behind a thread of its own."""

    def __init__(self, out: BinaryIO, err: BinaryIO) -> None:
        self._streams = (out, err)
        self._waiting: deque[tuple[bool, bytes]] = deque()
        self._size = self._left_out = 0
        self._change = threading.Condition()
        self._is_closed = False
        self._status: str | None = None
        """What is to be shown below everything else from now on; None where that has not changed."""
        self._shown = ""
        self._thread = threading.Thread(target=self._write, name="rallypoint-screen", daemon=True)
        self._thread.start()

    def show(self, data: bytes, *, is_error: bool) -> None:
        """Show whole lines as soon as the terminal takes them."""
        with self._change:
            if self._size > BACKLOG:
                self._left_out += data.count(b"\n")
                return
            self._waiting.append((is_error, data))
            self._size += len(data)
            self._change.notify()

    def status(self, text: str) -> None:
        """Show this below everything else."""
        with self._change:
            self._status = text
            self._change.notify()

    def close(self, timeout_s: float) -> None:
        """Show what waits, for so long at most."""
        with self._change:
            self._is_closed = True
            self._change.notify()
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(self._has_something_to_do)
                status, self._status = self._status, None
                if not self._waiting and not self._left_out and status is None:
                    return
                is_error, data = self._waiting.popleft() if self._waiting else (True, b"")
                self._size -= len(data)
                if not self._waiting and self._left_out:
                    data += f"rallypoint: {self._left_out} lines were not shown: the terminal was too slow\n".encode()
                    self._left_out = 0
            try:
                self._put(is_error, data, self._shown if status is None else status)
            except (OSError, ValueError):
                continue  # nobody looks any more; the workers go on

    def _has_something_to_do(self) -> bool:
        return bool(self._waiting) or self._left_out > 0 or self._status is not None or self._is_closed

    def _put(self, is_error: bool, data: bytes, status: str) -> None:
        """Write lines, and the status below them in one piece with what takes the last one away, so that nothing flickers."""
        err = self._streams[True]
        gone = _taken_away(self._shown)
        if data and not is_error:
            err.write(gone)
            err.flush()
            self._streams[False].write(data)
            self._streams[False].flush()
            gone = data = b""
        err.write(gone + data + status.encode("utf-8", "replace"))
        err.flush()
        self._shown = status


def _taken_away(status: str) -> bytes:
    """What a terminal does to erase a text of some lines, of which the last has no end."""
    if not status:
        return b""
    up = f"\033[{status.count(chr(10))}A" if "\n" in status else ""
    return f"\r{up}\033[J".encode()
