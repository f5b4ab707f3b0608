"""An immutable sorted table: changing it costs O(log n) and leaves the old one as it was.

It is what lets a transition be pure and cheap at once: the new run shares all but a few small tuples with the old one.
A B-tree by path copying; tuples of up to ``WIDTH`` items are copied by the interpreter in well under a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

WIDTH = 32
SPARSE = WIDTH // 4


class _TreeNode(msgspec.Struct):
    """A leaf (keys and their values) or a branch (the lowest key of each child, and the children)."""

    leaf: bool
    keys: tuple[Any, ...]
    items: tuple[Any, ...]

    def split(self) -> list[_TreeNode]:
        if len(self.keys) <= WIDTH:
            return [self]
        half = len(self.keys) // 2
        return [_TreeNode(self.leaf, self.keys[part], self.items[part]) for part in (slice(half), slice(half, None))]

    def splice(self, start: int, stop: int, parts: list[_TreeNode]) -> _TreeNode:
        """This branch with the children from start to stop replaced by others."""
        keys = self.keys[:start] + tuple(part.keys[0] for part in parts) + self.keys[stop:]
        return _TreeNode(False, keys, self.items[:start] + tuple(parts) + self.items[stop:])


def _branch(children: list[_TreeNode]) -> _TreeNode:
    return _TreeNode(False, tuple(child.keys[0] for child in children), tuple(children))


_EMPTY = _TreeNode(True, (), ())


class SortedMap(Generic[K, V]):
    """A sorted mapping that never changes; `set`, `without` and `build` make new ones."""

    __slots__ = ("_root", "_size")

    def __init__(self, _root: _TreeNode = _EMPTY, _size: int = 0) -> None:
        self._root = _root
        self._size = _size

    @staticmethod
    def build(pairs: Iterable[tuple[K, V]]) -> SortedMap[K, V]:
        """Make a table of many pairs at once; of two with one key, the later one stands."""
        rows = sorted(dict(pairs).items())
        size = len(rows)
        nodes = [
            _TreeNode(True, tuple(k for k, _ in rows[i : i + WIDTH]), tuple(v for _, v in rows[i : i + WIDTH]))
            for i in range(0, size, WIDTH)
        ]
        while len(nodes) > 1:
            nodes = [_branch(nodes[i : i + WIDTH]) for i in range(0, len(nodes), WIDTH)]
        return SortedMap(nodes[0] if nodes else _EMPTY, size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def __contains__(self, key: K) -> bool:
        return self._find(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedMap) and len(self) == len(other) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Table({dict(self.items())!r})"

    def items(self) -> Iterator[tuple[K, V]]:
        """The pairs, by rising key."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.leaf:
                yield from zip(node.keys, node.items, strict=True)
            else:
                stack.extend(reversed(node.items))

    def values(self) -> Iterator[V]:
        """The values, by rising key."""
        return (value for _, value in self.items())

    def first(self) -> K | None:
        """The lowest key, or None in an empty table."""
        return self._root.keys[0] if self._size else None

    def get(self, key: K, default: D | None = None) -> V | D | None:
        """The value of a key, or the default where there is none."""
        found = self._find(key)
        return found[0] if found is not None else default

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found[0]

    def set(self, key: K, value: V) -> SortedMap[K, V]:
        """This table with the key set to the value."""
        parts, grew = _put(self._root, key, value)
        return SortedMap(parts[0] if len(parts) == 1 else _branch(parts), self._size + grew)

    def without(self, key: K) -> SortedMap[K, V]:
        """This table without the key; itself where the key is not there."""
        if self._find(key) is None:
            return self
        root = _remove(self._root, key)
        while not root.leaf and len(root.items) == 1:
            root = root.items[0]
        return SortedMap(root, self._size - 1)

    def _find(self, key: K) -> tuple[V] | None:
        node = self._root
        while not node.leaf:
            node = node.items[max(bisect_right(node.keys, key) - 1, 0)]
        i = bisect_left(node.keys, key)
        return (node.items[i],) if i < len(node.keys) and node.keys[i] == key else None


def _put(node: _TreeNode, key: Any, value: Any) -> tuple[list[_TreeNode], bool]:
    if node.leaf:
        i = bisect_left(node.keys, key)
        known = i < len(node.keys) and node.keys[i] == key
        keys = node.keys if known else (*node.keys[:i], key, *node.keys[i:])
        return _TreeNode(True, keys, (*node.items[:i], value, *node.items[i + known :])).split(), not known
    i = max(bisect_right(node.keys, key) - 1, 0)
    parts, grew = _put(node.items[i], key, value)
    if len(parts) == 1 and parts[0].keys[0] == node.keys[i]:
        return [_TreeNode(False, node.keys, (*node.items[:i], parts[0], *node.items[i + 1 :]))], grew
    return node.splice(i, i + 1, parts).split(), grew


def _remove(node: _TreeNode, key: Any) -> _TreeNode:
    if node.leaf:
        i = bisect_left(node.keys, key)
        return _TreeNode(True, node.keys[:i] + node.keys[i + 1 :], node.items[:i] + node.items[i + 1 :])
    i = max(bisect_right(node.keys, key) - 1, 0)
    child = _remove(node.items[i], key)
    if len(child.keys) >= SPARSE or len(node.items) == 1:
        return node.splice(i, i + 1, [child] if child.keys else [])
    # A sparse child is joined with a neighbour, so that the depth follows the number of items left.
    left = max(i - 1, 0)
    pair = [child, node.items[1]] if i == 0 else [node.items[left], child]
    joined = _TreeNode(child.leaf, pair[0].keys + pair[1].keys, pair[0].items + pair[1].items)
    return node.splice(left, left + 2, joined.split())
