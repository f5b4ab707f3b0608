"""Processes that use a store file, on orders that they read line by line; run as a program it is one of them.

An order is a JSON list: what to do, and with what.  A name of the `Orders` below is done by them, any other by the store.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from types import TracebackType
from typing import Any

from rallypoint.stores import FileStore, StoreError
from rallypoint.stores.file import locked_file, record_format
from tests.support.forked_processes import ForkedProcess
from tests.support.store_kinds import SOON


class Worker:
    """A process, as a test sees it."""

    def __init__(self, path: object = None, world_size: int = -1) -> None:
        self.popen = ForkedProcess("tests.stores.file_processes")
        if path is not None:
            self.do("open", str(path), world_size)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def do(self, *order: Any) -> Any:
        self.order(*order)
        return self.answer()

    def order(self, *order: Any) -> None:
        print(json.dumps(order), file=self.popen.stdin, flush=True)

    def answer(self) -> Any:
        line = self.popen.stdout.readline()
        assert line, "the process has ended"
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise StoreError(answer["error"])
        return answer

    def kill(self) -> None:
        """At once, and without a word."""
        self.popen.kill()
        self.end()

    def end(self) -> int:
        """When it has done what it was told: it is told nothing more."""
        self.popen.stdin.close()
        code = self.popen.wait(SOON.total_seconds())
        self.popen.stdout.close()
        self.popen.stderr.close()
        return code


class Orders:
    """What a process can be told beside what its store can do."""

    store: FileStore

    def open(self, path: str, world_size: int = -1) -> None:
        self.store = FileStore(path, world_size, timeout=SOON)

    def forget(self) -> None:
        del self.store
        gc.collect()

    def add_often(self, key: str, times: int) -> list[int]:
        return [self.store.add(key, 1) for _ in range(times)]

    def push_often(self, key: str, name: str, times: int) -> None:
        for number in range(times):
            self.store.queue_push(key, f"{name} {number}")

    def pop_often(self, key: str, times: int) -> list[str]:
        return [self.store.queue_pop(key).decode() for _ in range(times)]

    def stop_in_the_middle(self) -> None:
        with self.store._shared.opened(1.0, write=True):
            print("null", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    def may_not_grow_beyond(self, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    def run_as(self, user: int) -> None:
        os.seteuid(user)

    def in_a_child(self, *order: Any) -> Any:
        """By fork; the child ends in the ordinary way, as one does that knows nothing of stores."""
        ours, theirs = os.pipe()
        if not os.fork():
            os.write(theirs, json.dumps(self.obey(*order)).encode())
            sys.exit()
        os.close(theirs)
        with os.fdopen(ours) as answers:
            answer = answers.read()
        os.wait()
        return json.loads(answer)

    def perish(self, path: str, written: int, compact_from: int, *order: Any) -> bool:
        """A child opens the store, begins with the order, and is killed when it has written so many bytes.

        An order to open counts from the opening on.  Returns whether it got to the end unharmed.
        """
        if not (child := os.fork()):
            record_format.COMPACT_FROM = compact_from
            if order[0] != "open":
                self.open(path)
            _perish_after(written)
            self.obey(*order)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), status
        return status == 0

    def obey(self, *order: Any) -> Any:
        name, *arguments = order
        try:
            answer = getattr(self if hasattr(self, name) else self.store, name)(*arguments)
        except (StoreError, TimeoutError) as exc:
            return {"error": str(exc)}
        return answer.decode() if isinstance(answer, bytes) else answer


def _perish_after(written: int) -> None:
    """Writes go byte by byte; a change of the length counts as one."""
    left, truncate = written, os.ftruncate

    def count() -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def write_at(file: int, content: bytes, place: int) -> None:
        for offset in range(len(content)):
            count()
            os.pwrite(file, content[offset : offset + 1], place + offset)

    def ftruncate(file: int, length: int) -> None:
        count()
        truncate(file, length)

    locked_file.write_at = write_at
    os.ftruncate = ftruncate


def main() -> None:
    """Does what it is told until there is nothing more."""
    orders = Orders()
    for line in sys.stdin:
        print(json.dumps(orders.obey(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
