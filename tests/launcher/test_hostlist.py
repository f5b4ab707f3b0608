"""Slurm's node lists."""

from __future__ import annotations

import pytest

from rallypoint.launcher.hostlist import expand, first


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("r[1-2]n[01-02].cluster", ["r1n01.cluster", "r1n02.cluster", "r2n01.cluster", "r2n02.cluster"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (" a , b ", ["a", "b"]),
    ],
)
def test_a_node_list_is_expanded_in_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts
    assert first(text) == hosts[0]


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[a-b]", "n[3-1]", "n[[1]]", "n[]"])
def test_what_cannot_be_read_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match="The node list"):
        expand(text)


def test_the_first_host_of_a_huge_list_is_there_at_once() -> None:
    assert first("n[1-999999999]") == "n1"
    with pytest.raises(ValueError, match="more than 100000 hosts"):
        expand("n[1-999999999]")


def test_an_empty_list_has_no_first_host() -> None:
    assert expand("") == []
    with pytest.raises(ValueError, match="names no host"):
        first(" ,")
