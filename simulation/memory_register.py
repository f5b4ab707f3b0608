"""A register in the memory of this process: the smallest one, for simulations and tests."""

from __future__ import annotations

import threading

from rallypoint.location.register import Entry


class MemoryRegister:
    """Holds one record; any thread may use it."""

    is_hosted_here = None

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._value: bytes | None = None
        self._version = 0
        self._listens = 0

    def read(self) -> Entry | None:
        """What is there, or None."""
        with self._changed:
            return None if self._value is None else Entry(self._value, self._version)

    def write(self, value: bytes, token: int | None) -> Entry | None:
        """Write if nothing was written since the token, or nothing is there and none is given."""
        with self._changed:
            if token != self._token:
                return None
            self._put(value)
            return Entry(value, self._version)

    def wait(self, token: int | None, timeout_s: float) -> int | None:
        """Wait until something was written since the token, for so long at the most."""
        with self._changed:
            listens = self._listens
            self._changed.wait_for(lambda: token != self._token or listens != self._listens, timeout_s)
            return self._version if token != self._token else None

    def stop_waiting(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._listens += 1
            self._changed.notify_all()

    def resign(self) -> None:
        """A claim leaves nothing here but the record."""

    def close(self) -> None:
        """What is here stays."""

    def empty(self) -> None:
        """Forget everything, as a medium that lost its memory."""
        with self._changed:
            self._put(None)

    def touch(self) -> None:
        """Write the same value anew: tokens from before do not fit any more."""
        with self._changed:
            self._put(self._value)

    @property
    def _token(self) -> int | None:
        return None if self._value is None else self._version

    def _put(self, value: bytes | None) -> None:
        # Versions never restart, so that a token from before the register was emptied fits nothing.
        self._value, self._version = value, self._version + 1
        self._changed.notify_all()
