"""Slurm's node lists."""

from __future__ import annotations

import pytest

from rallypoint.launcher.hostlist import first


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("login", "login"),
        ("a,b", "a"),
        (" a , b ", "a"),
        (",b", "b"),
        ("gpu[01-03,07],login", "gpu01"),
        ("login,gpu[01-03,07]", "login"),
        ("n[8-11]", "n8"),
        ("n[098-101]", "n098"),
        ("n[7,9]", "n7"),
        ("r[1-2]n[01-02].cluster", "r1n01.cluster"),
        ("n[1-999999999]", "n1"),
    ],
)
def test_the_first_host_of_a_node_list_is_found(text: str, host: str) -> None:
    assert first(text) == host


@pytest.mark.parametrize("text", ["n[1-", "n1]", "a,n[1", "n[a-b]", "n[3-1]", "n[1,x]", "n[[1]]", "n[]", "", " ,"])
def test_what_cannot_be_read_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match="The node list"):
        first(text)
