"""The table behaves as a sorted dict whose old versions stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.sorted_map import SortedMap

# One more than fills a tree of two levels: the last leaf of a table built of so many stands alone in its branch.
LONE_CHILD = 32 * 32 + 1


def agrees(table: SortedMap[int, Any], model: dict[int, Any]) -> None:
    assert list(table.items()) == sorted(model.items())
    assert len(table) == len(model)
    assert table.first() == min(model, default=None)


@st.composite
def spans(draw: st.DrawFn) -> tuple[bool, range]:
    """Keys to put in or to take out, in a row or far apart, up or down."""
    start, count, pace = draw(st.integers(0, 1500)), draw(st.integers(0, 400)), draw(st.sampled_from((-7, -1, 1, 3)))
    return draw(st.booleans()), range(start, start + count * pace, pace)


@given(st.integers(0, 1500), st.lists(spans(), max_size=6))
def test_a_table_agrees_with_a_dict_and_old_versions_never_change(size: int, changes: list[tuple[bool, range]]) -> None:
    table, model = SortedMap.build((i, -i) for i in range(size)), {i: -i for i in range(size)}
    versions = [(table, dict(model))]
    for put, keys in changes:
        for key in keys:
            if put:
                table, model[key] = table.set(key, key), key
            else:
                table = table.without(key)
                model.pop(key, None)
        versions.append((table, dict(model)))
    for version, then in versions:
        agrees(version, then)
    for key in range(-20, 1600, 13):
        assert (key in table) == (key in model)
        assert table.get(key, "none") == model.get(key, "none")


@given(st.dictionaries(st.text("abc", max_size=4), st.integers(0, 9), max_size=80))
def test_a_table_built_at_once_equals_one_set_pair_by_pair(pairs: dict[str, int]) -> None:
    table: SortedMap[str, int] = SortedMap()
    for key, value in pairs.items():
        table = table.set(key, value)
    assert table == SortedMap.build(pairs.items())
    assert list(table) == sorted(pairs)
    assert list(table.values()) == [pairs[key] for key in sorted(pairs)]


@pytest.mark.parametrize("size", [0, 1, 32, 33, 1024, LONE_CHILD, LONE_CHILD + 32, 3000])
@pytest.mark.parametrize("pace", [1, -1])
def test_a_table_can_be_emptied_from_either_end_and_filled_again(size: int, pace: int) -> None:
    table, model = SortedMap.build((i, i) for i in range(size)), {i: i for i in range(size)}
    for key in list(model)[::pace]:
        table = table.without(key)
        del model[key]
        if len(model) % 97 == 0:
            agrees(table, model)
    assert not table
    assert table == SortedMap()
    agrees(table.set(5, 5), {5: 5})


@pytest.mark.parametrize("size", [LONE_CHILD, 32 * 32 * 32 + 1])
def test_the_lone_last_leaf_of_a_table_built_at_once_can_go_and_come_back(size: int) -> None:
    table = SortedMap.build((i, i) for i in range(size))
    shorter = table.without(size - 1)
    agrees(shorter, {i: i for i in range(size - 1)})
    assert shorter.set(size - 1, size - 1) == table
    assert len(table) == size


class Counted(int):
    """A key that counts how often keys are compared."""

    comparisons = 0

    def __lt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int.__lt__(self, other)  # type: ignore[operator]


def test_the_depth_follows_the_number_of_items_left() -> None:
    table = SortedMap.build((Counted(i), i) for i in range(10_000))
    for i in range(10_000):
        if i % 1000:
            table = table.without(Counted(i))
    Counted.comparisons = 0
    assert table[Counted(9_000)] == 9_000
    assert Counted.comparisons <= 10


def test_of_two_pairs_with_one_key_the_later_one_stands() -> None:
    assert SortedMap.build([("a", 1), ("b", 2), ("a", 3)]) == SortedMap.build([("b", 2), ("a", 3)])


def test_taking_out_what_is_not_there_changes_nothing() -> None:
    table = SortedMap.build([("a", 1)])
    assert table.without("b") is table


def test_a_missing_key_is_named() -> None:
    with pytest.raises(KeyError, match="nobody"):
        SortedMap.build([("a", 1)])["nobody"]
    assert SortedMap.build([("a", 1)])["a"] == 1


def test_tables_are_equal_by_what_is_in_them() -> None:
    table = SortedMap.build([("a", 1)])
    assert table == SortedMap[str, int]().set("a", 1)
    assert table != SortedMap.build([("a", 2)])
    assert table != SortedMap.build([("a", 1), ("b", 1)])
    assert table != {"a": 1}
    with pytest.raises(TypeError, match="unhashable"):
        hash(table)


def test_a_table_shows_itself_as_the_dict_that_it_stands_for() -> None:
    assert repr(SortedMap.build([("b", 2), ("a", 1)])) == "Table({'a': 1, 'b': 2})"
