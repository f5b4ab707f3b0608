"""A virtual medium for documents: a backend with two methods, and a store beside it; away, slow or silent as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rallypoint.simulation.clockwork import Action

Commit = Callable[[bytes], None]


class Medium:
    """Holds one document, written by compare-and-set.  `committed` hears of every write that stands."""

    def __init__(self, committed: Commit) -> None:
        self.data: bytes | None = None
        self.token = 0
        self.store = Shelf()
        self.is_away = False
        self.hangs = False
        self.loss = 0.0
        self.delay_s = (0.001, 0.002)
        self._committed = committed
        self._held: list[Action] = []

    def get_state(self) -> tuple[bytes, int] | None:
        """What is there, and its token."""
        return None if self.data is None else (self.data, self.token)

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool]:
        """Write if the token is still right, or nothing is there and none was given."""
        if (0 if token is None else token) != self.token:
            assert self.data is not None, "there is a token, so there is a document"
            return self.data, self.token, False
        self.data, self.token = state, self.token + 1
        self._committed(state)
        return self.data, self.token, True

    def hold(self, action: Action) -> None:
        """It is stopped, not gone: what is asked of it is done when it goes on."""
        self._held.append(action)

    def go(self, *, hangs: bool) -> None:
        """It goes away: who asks is refused, or is kept waiting."""
        self.is_away, self.hangs = True, hangs

    def come_back(self) -> None:
        """It is back, and does what it was asked meanwhile."""
        self.is_away = False
        held, self._held = self._held, []
        for action in held:
            action()


class Shelf:
    """A c10d store in virtual time.  `fuse` lets it fail after so many operations; `bells` ring when a key is set."""

    def __init__(self) -> None:
        self.fuse: int | None = None
        self.bells: dict[str, list[Action]] = {}
        self.beats: Callable[[str, str], None] = lambda key, sign: None
        self._keys: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key."""
        self._burn()
        self._put(key, _data(value))

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        self._burn()
        number = int(self._keys.get(key, b"0")) + amount
        self._put(key, str(number).encode())
        return number

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        self._burn()
        return all(key in self._keys for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read keys that are there."""
        self._burn()
        return [self._keys[key] for key in keys]

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set a key if it is as expected; what is there afterwards."""
        self._burn()
        there, wanted = self._keys.get(key), _data(expected)
        if there is None and wanted:
            return wanted
        if there is None or there == wanted:
            self._put(key, _data(desired))
        return self._keys[key]

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        self._burn()
        return self._keys.pop(key, None) is not None

    def has(self, key: str) -> bool:
        """Whether a key is there, as one sees who waits for it."""
        return key in self._keys

    def _put(self, key: str, value: bytes) -> None:
        self._keys[key] = value
        if "/beat/" in key:
            self.beats(key.rpartition("/")[2], value.decode())
        for ring in self.bells.pop(key, ()):
            ring()

    def _burn(self) -> None:
        if self.fuse is None:
            return
        if self.fuse == 0:
            raise RuntimeError("the connection broke")
        self.fuse -= 1


def _data(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
