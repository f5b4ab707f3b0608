"""Options are declared once, read into typed values, and refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.options import (
    Option,
    OptionValues,
    choice,
    did_you_mean,
    flag,
    number,
    read_options,
    seconds,
    text,
)

JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long to wait for the other nodes")
ADMIT_DELAY = seconds("admit_delay", 0.0, "how long a newcomer waits", or_zero=True)
OUTAGE_GRACE = seconds("outage_grace", None, "how long an outage may last")
ATTEMPTS = number("keep_alive_max_attempt", 3, "how many heartbeats may be missed", at_least=1)
RANK = number("rank", None, "the rank that this node would like")
IS_HOST = flag("is_host", None, "whether this node serves")
TOPOLOGY = text("topology", "", "where this node stands")
ROLE = choice("role", ("member", "spare"), "member", "whether this node stands by")

TABLE: tuple[Option[Any], ...] = (JOIN_TIMEOUT, ADMIT_DELAY, OUTAGE_GRACE, ATTEMPTS, RANK, IS_HOST, TOPOLOGY, ROLE)


def read(**config: object) -> OptionValues:
    return read_options("mine", config, TABLE)


def test_without_a_configuration_every_option_is_its_default() -> None:
    options = read()
    assert [options[option] for option in TABLE] == [600.0, 0.0, None, 3, None, None, "", "member"]
    assert not any(option in options for option in TABLE)


def test_text_from_a_command_line_becomes_typed_values() -> None:
    options = read(
        join_timeout="5.5",
        admit_delay="0",
        outage_grace="1e2",
        keep_alive_max_attempt="4",
        rank="-1",
        is_host="Yes",
        topology=" rack1/node2 ",
        role="SPARE",
    )
    assert [options[option] for option in TABLE] == [5.5, 0.0, 100.0, 4, -1, True, "rack1/node2", "spare"]
    assert all(option in options for option in TABLE)
    assert type(options[RANK]) is int
    assert options[IS_HOST] is True


def test_values_from_a_program_are_taken_as_they_are() -> None:
    options = read(join_timeout=5, rank=2, is_host=False)
    assert options[JOIN_TIMEOUT] == 5.0
    assert type(options[JOIN_TIMEOUT]) is float
    assert options[RANK] == 2
    assert options[IS_HOST] is False


def test_none_counts_as_not_given() -> None:
    options = read(join_timeout=None)
    assert options[JOIN_TIMEOUT] == 600.0
    assert JOIN_TIMEOUT not in options


def test_an_option_that_is_given_with_its_default_counts_as_given() -> None:
    assert JOIN_TIMEOUT in read(join_timeout=600)


def test_an_unknown_option_is_refused_with_the_nearest_name_and_all_there_are() -> None:
    with pytest.raises(ValueError, match="'mine' has no option 'join_timout'") as refusal:
        read(join_timout="5")
    sentence = str(refusal.value)
    assert "Did you mean 'join_timeout'?" in sentence
    for option in TABLE:
        assert option.describe() in sentence


def test_an_unknown_option_far_from_all_is_refused_without_a_guess() -> None:
    with pytest.raises(ValueError, match="Its options are") as refusal:
        read(zzz="5")
    assert "Did you mean" not in str(refusal.value)


def test_a_backend_without_options_says_so() -> None:
    with pytest.raises(ValueError, match=r"'mine' has no option 'rank'\. It takes none: leave it out\."):
        read_options("mine", {"rank": 1}, ())


@pytest.mark.parametrize("value", ["900", 900, "whatever", None])
def test_the_timeout_that_torchrun_always_adds_is_let_pass(value: object) -> None:
    assert read(timeout=value)[JOIN_TIMEOUT] == 600.0
    read_options("mine", {"timeout": value}, ())


def test_a_backend_that_declares_timeout_reads_it() -> None:
    timeout = seconds("timeout", 600.0, "how long to wait")
    assert read_options("mine", {"timeout": "900"}, (timeout,))[timeout] == 900.0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("join_timeout", "soon", "a number of seconds above 0"),
        ("join_timeout", "", "a number of seconds above 0"),
        ("join_timeout", "0", "a number of seconds above 0"),
        ("join_timeout", -1, "a number of seconds above 0"),
        ("join_timeout", "nan", "a number of seconds above 0"),
        ("join_timeout", "inf", "a number of seconds above 0"),
        ("join_timeout", 10**400, "a number of seconds above 0"),
        ("join_timeout", True, "a number of seconds above 0"),
        ("join_timeout", [], "a number of seconds above 0"),
        ("admit_delay", "-0.1", "a number of seconds, 0 or more"),
        ("keep_alive_max_attempt", "0", "a whole number, 1 or more"),
        ("keep_alive_max_attempt", "2.5", "a whole number, 1 or more"),
        ("rank", "first", "a whole number"),
        ("is_host", "perhaps", "true or false"),
        ("is_host", 2, "true or false"),
        ("topology", " ", "a text"),
        ("topology", 7, "a text"),
        ("role", "leader", "one of member, spare"),
        ("role", "", "one of member, spare"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_option_value_and_what_was_expected(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(ValueError, match="of the backend 'mine'") as refusal:
        read(**{name: value})
    assert str(refusal.value).startswith(
        f"The option {name!r} of the backend 'mine' is {value!r}, but should be {expected}."
    )
    (option,) = (option for option in TABLE if option.name == name)
    assert option.help in str(refusal.value)


def test_a_line_of_the_table_describes_itself() -> None:
    assert ROLE.describe() == "role (one of member, spare; default: member): whether this node stands by"
    assert JOIN_TIMEOUT.describe().startswith("join_timeout (a number of seconds above 0; default: 600): how long")
    assert RANK.describe() == "rank (a whole number; default: not set): the rank that this node would like"


def test_asking_for_an_option_that_was_not_declared_is_a_mistake() -> None:
    undeclared: Option[int] = number("undeclared", 1, "nothing")
    with pytest.raises(KeyError):
        read()[undeclared]


def test_values_do_not_show_themselves_in_a_log() -> None:
    assert repr(read(topology="secret", rank=1)) == "OptionValues(given: rank, topology)"
    assert repr(read()) == "OptionValues(given: none)"


def test_the_nearest_name_is_suggested_only_where_one_is_near() -> None:
    assert did_you_mean("lastcall_timeout", ["last_call_timeout", "join_timeout"]) == (
        " Did you mean 'last_call_timeout'?"
    )
    assert did_you_mean("abc", ["last_call_timeout"]) == ""
    assert did_you_mean("abc", []) == ""


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_every_duration_survives_being_written_as_text(duration_s: float) -> None:
    assert read(join_timeout=str(duration_s))[JOIN_TIMEOUT] == duration_s


@pytest.mark.parametrize("option", TABLE, ids=lambda option: str(option.name))
@given(value=st.text() | st.integers() | st.floats() | st.booleans() | st.binary())
def test_whatever_is_given_is_read_or_refused_by_a_value_error(option: Option[Any], value: object) -> None:
    try:
        read(**{option.name: value})
    except ValueError as refusal:
        sentence = str(refusal)
    else:
        return
    assert f"The option {option.name!r} of the backend 'mine' is {value!r}" in sentence
