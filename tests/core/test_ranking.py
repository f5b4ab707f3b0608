"""Which node gets which rank (rule 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import RendezvousError
from rallypoint.messages.notices import Placed
from rallypoint.messages.types import Node
from rallypoint.ranking import POLICIES, Candidate, Ranking, arrival, natural, rank, sticky
from tests.support.run_driver import RunDriver, member, sealed


def named(*names: str) -> list[Candidate]:
    """Newcomers in the order of their arrival."""
    return [Candidate(member(name), i) for i, name in enumerate(names)]


def order(ranking: Ranking) -> list[str]:
    return [node.id for node in ranking.members]


def backwards(candidates: Sequence[Candidate]) -> Ranking:
    """A user's own policy: last come, first ranked."""
    return Ranking(tuple(c.node for c in sorted(candidates, key=lambda c: -c.arrival)))


# Sticky ---------------------------------------------------------------------------------------------------------------


def test_who_stays_keeps_its_rank_and_newcomers_fill_the_gaps() -> None:
    driver = sealed(3, members="abc")
    driver.lose("b")
    driver.join("d")
    driver.join_again("c", "a")
    assert driver.ranked == ["a", "d", "c"]


def test_rank_0_goes_to_the_survivor_nearest_to_it_not_to_a_newcomer() -> None:
    driver = sealed(3, members="abc")
    driver.lose("a")
    driver.join("aa")
    driver.join_again("c", "b")
    assert driver.ranked == ["b", "aa", "c"]


def test_rank_0_goes_to_a_survivor_whose_own_rank_is_beyond_the_new_size() -> None:
    driver = sealed(1, 3, members="abc")
    driver.lose("a", "b")
    driver.join_again("c")
    assert driver.ranked == ["c"]


def test_who_does_not_fit_any_more_moves_into_a_gap() -> None:
    candidates = [
        Candidate(member("a"), 0, old_rank=0),
        Candidate(member("d"), 1, old_rank=3),
        Candidate(member("c"), 2, old_rank=2),
    ]
    assert order(sticky(candidates)) == ["a", "d", "c"]


# Wishes ---------------------------------------------------------------------------------------------------------------


def test_of_two_that_want_one_rank_the_first_gets_it_and_the_other_is_told() -> None:
    driver = RunDriver(2)
    driver.join("first", wanted_rank=1)
    driver.join("other", wanted_rank=1)
    assert driver.ranked == ["other", "first"]
    assert driver.answer("other", Placed).remark == "rank 1 was wanted, but first has it"
    assert driver.answer("first", Placed).remark == ""


def test_a_wish_beyond_the_size_is_told_so() -> None:
    driver = RunDriver(2)
    driver.join("greedy", wanted_rank=2)
    driver.join("modest")
    assert "only 2 nodes" in driver.answer("greedy", Placed).remark


def test_a_survivor_keeps_the_rank_that_a_newcomer_wants() -> None:
    driver = sealed(2)
    driver.lose("b")
    driver.join("c", wanted_rank=0)
    driver.join_again("a")
    assert driver.ranked == ["a", "c"]
    assert driver.answer("c", Placed).remark == "rank 0 was wanted, but a has it"


# By nature ------------------------------------------------------------------------------------------------------------


def test_names_sort_as_people_count() -> None:
    names = ["node10", "node9", "node1", "node", "9", "10", "a2b10", "a2b9", "node9-x"]
    assert sorted(names, key=natural) == ["9", "10", "a2b9", "a2b10", "node", "node1", "node9", "node9-x", "node10"]
    assert order(sticky(named("host10", "host2", "host1"))) == ["host1", "host2", "host10"]


def test_topology_goes_before_the_name_and_compares_part_by_part() -> None:
    places = {"a": "pod2/rack1", "b": "pod10/rack1", "c": "pod2/rack10", "d": "pod2/rack9", "e": "pod2"}
    candidates = [Candidate(member(name, topology=path), i) for i, (name, path) in enumerate(places.items())]
    assert order(sticky(candidates)) == ["e", "a", "d", "c", "b"]


def test_nodes_of_one_name_and_place_are_ranked_as_they_came() -> None:
    candidates = [Candidate(member(f"host.{i}"), arrival) for i, arrival in enumerate((3, 1, 2))]
    assert order(sticky(candidates)) == ["host.1", "host.2", "host.0"]


def test_the_arrival_policy_ranks_as_they_came() -> None:
    assert order(arrival(named("z", "y", "x"))) == ["z", "y", "x"]
    driver = RunDriver(3, rank_policy="arrival")
    driver.join("z", "y", "x")
    assert driver.ranked == ["z", "y", "x"]


# Policies -------------------------------------------------------------------------------------------------------------


def test_a_user_can_bring_a_policy() -> None:
    driver = RunDriver(3, policies={**POLICIES, "backwards": backwards}, rank_policy="backwards")
    driver.join("a", "b", "c")
    assert driver.ranked == ["c", "b", "a"]


def test_a_policy_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RendezvousError, match=r"no rank policy 'fastest'; there are arrival, sticky"):
        rank(POLICIES, "fastest", named("a"))


@pytest.mark.parametrize(
    "members",
    [(), (member("a"),), (member("a"), member("a")), (member("a"), member("b"), member("c"))],
    ids=["nobody", "some", "twice", "strangers"],
)
def test_a_policy_that_does_not_return_each_candidate_once_is_refused(members: tuple[Node, ...]) -> None:
    with pytest.raises(RendezvousError, match=r"'broken' must return each of the 2 candidates once.*mend the policy"):
        rank({"broken": lambda _: Ranking(members)}, "broken", named("a", "b"))


# Whatever comes -------------------------------------------------------------------------------------------------------


@st.composite
def gatherings(draw: st.DrawFn) -> list[Candidate]:
    """Survivors of a world of up to eight and newcomers with all sorts of wishes."""
    old_ranks = draw(st.sets(st.integers(0, 7), max_size=5))
    newcomers = draw(st.integers(0 if old_ranks else 1, 4))
    held: list[int | None] = [*old_ranks, *[None] * newcomers]
    arrivals = draw(st.permutations(range(len(held))))
    return [
        Candidate(
            member(
                f"{draw(st.sampled_from('ab'))}{draw(st.integers(0, 11))}.{i}",
                wanted_rank=draw(st.none() | st.integers(0, 9)),
                topology=draw(st.sampled_from(("", "rack2", "rack10/u1", "/"))),
            ),
            arrivals[i],
            old_rank,
        )
        for i, old_rank in enumerate(held)
    ]


@given(gatherings(), st.sampled_from(("sticky", "arrival")))
def test_every_candidate_gets_exactly_one_rank(candidates: list[Candidate], policy: str) -> None:
    ranking = rank(POLICIES, policy, candidates)
    assert sorted(order(ranking)) == sorted(c.node.id for c in candidates)
    assert set(ranking.remarks) <= set(order(ranking))


@given(gatherings())
def test_survivors_keep_their_ranks_where_the_size_allows_and_one_of_them_is_rank_0(
    candidates: list[Candidate],
) -> None:
    ranked = order(sticky(candidates))
    survivors = {c.node.id: c.old_rank for c in candidates if c.old_rank is not None}
    assert not survivors or ranked[0] in survivors
    moved = [node_id for node_id, old in survivors.items() if old < len(ranked) and ranked[old] != node_id]
    heir = [] if 0 in survivors.values() else [ranked[0]]
    assert moved in ([], heir)


@given(gatherings())
def test_who_does_not_get_the_wanted_rank_is_told(candidates: list[Candidate]) -> None:
    ranking = sticky(candidates)
    ranked = order(ranking)
    for candidate in candidates:
        wanted = candidate.node.wanted_rank
        if candidate.old_rank is None and wanted is not None:
            got_it = ranked.index(candidate.node.id) == wanted
            assert got_it != (candidate.node.id in ranking.remarks)
