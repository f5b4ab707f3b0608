"""Where each worker stands among all workers of a round."""

from __future__ import annotations

from rallypoint.launcher.places import Places, Told, places_of


def test_ranks_follow_each_other_where_nodes_have_unequal_numbers_of_workers() -> None:
    told = [Told(2), Told(1), Told(4)]
    assert [places_of(told, node).first_rank for node in range(3)] == [0, 2, 3]
    assert places_of(told, 2) == Places(3, 7, 0, 4, 3, 7)


def test_launchers_on_one_host_number_their_workers_together() -> None:
    told = [Told(1, "", "a", "0,1"), Told(1, "", "b", "0,1"), Told(1, "", "a", "0,1"), Told(2, "", "a", "0,1")]
    assert [places_of(told, node).first_local_rank for node in range(4)] == [0, 0, 1, 2]
    assert [places_of(told, node).local_world_size for node in range(4)] == [4, 1, 4, 4]


def test_cores_are_shared_only_by_launchers_that_have_the_same() -> None:
    assert places_of([Told(1, "", "a", "0,1"), Told(1, "", "a", "0,1")], 0).shares_cores
    assert not places_of([Told(1, "", "a", "0"), Told(1, "", "a", "1")], 0).shares_cores
    assert not places_of([Told(1, "", "a", "0"), Told(1, "", "b", "0")], 0).shares_cores


def test_workers_of_a_role_have_ranks_of_their_own() -> None:
    told = [Told(2, "trainer"), Told(1, "reader"), Told(2, "trainer")]
    places = [places_of(told, node) for node in range(3)]
    assert [(each.first_role_rank, each.role_world_size) for each in places] == [(0, 4), (0, 1), (2, 4)]
