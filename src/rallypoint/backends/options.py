"""The options of a backend: declared once in a table, read from the configuration into typed values.

    JOIN_TIMEOUT = seconds("join_timeout", 600.0, "how long to wait for the other nodes")
    options = read_options("rallypoint", params.config, (JOIN_TIMEOUT,))
    options[JOIN_TIMEOUT]  # a float
    JOIN_TIMEOUT in options  # whether it was given

Values come from a command line as text, or from a program as numbers and truths; both are read.  An option that is
None counts as not given.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from rallypoint.messages.types import MOST_NODES

LONGEST_RUN_ID = LONGEST_ADDRESS = 128
"""As many characters as a message takes (`messages.types.Token`)."""

T = TypeVar("T")
Default = TypeVar("Default")

log = logging.getLogger(__name__)

# torchrun adds the first one to whatever the user gave, and torch's agent the second one for every backend: a backend
# that has no use for them lets them pass.
_ALWAYS_THERE = ("timeout", "is_host")

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


class Option(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One line of a backend's table; `parse` raises ValueError for what is not `expected`."""

    name: str
    default: T
    help: str
    expected: str
    parse: Callable[[object], T]

    def describe(self) -> str:
        default = "not set" if self.default in (None, (0,)) else self.default
        if isinstance(default, float):
            default = f"{default:g}"
        return f"{self.name} ({self.expected}; default: {default}): {self.help}"


class OptionValues:
    """What was read: `values[OPTION]` is its value or its default, `OPTION in values` tells whether it was given."""

    def __init__(self, table: Collection[Option[Any]], given: Mapping[str, object]) -> None:
        self._given = frozenset(given)
        self._values = {option.name: given.get(option.name, option.default) for option in table}

    def __getitem__(self, option: Option[T]) -> T:
        return cast("T", self._values[option.name])

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name in self._given

    def __repr__(self) -> str:
        # Names only: a value may be a secret, and this text may go to a log.
        return f"OptionValues(given: {', '.join(sorted(self._given)) or 'none'})"


def read_options(
    backend: str, config: Mapping[str, object], table: Iterable[Option[Any]], *, lenient: bool = False
) -> OptionValues:
    """Read a configuration by a backend's table; ValueError for a value that is not expected.

    An unknown option is a ValueError too, or a warning where the backend is `lenient`.
    """
    known = {option.name: option for option in table}
    given: dict[str, object] = {}
    for name, value in config.items():
        option = known.get(name)
        if option is not None and value is not None:
            try:
                given[name] = option.parse(value)
            except ValueError:
                raise ValueError(
                    f"The option {name!r} of the backend {backend!r} is {value!r}, but should be {option.expected}. "
                    f"It says {option.help}."
                ) from None
        elif option is None and name not in _ALWAYS_THERE:
            if not lenient:
                raise ValueError(_unknown(backend, name, known))
            log.warning("The backend %r has no option %r, and ignores it.%s", backend, name, did_you_mean(name, known))
    return OptionValues(known.values(), given)


def _unknown(backend: str, name: str, known: Mapping[str, Option[Any]]) -> str:
    refusal = f"The backend {backend!r} has no option {name!r}."
    if not known:
        return f"{refusal} It takes none: leave it out."
    listing = "\n  ".join(option.describe() for option in known.values())
    return f"{refusal}{did_you_mean(name, known)} Its options are:\n  {listing}"


def seconds(
    name: str, default: Default, help: str, *, or_zero: bool = False, at_most: float = math.inf
) -> Option[float | Default]:
    """A duration: a finite number above zero, or zero as well where that has a meaning."""

    def parse(value: object) -> float | Default:
        duration_s = _as_float(value)
        too_small = duration_s < 0 or (duration_s == 0 and not or_zero)
        if not math.isfinite(duration_s) or too_small or duration_s > at_most:
            raise ValueError(value)
        return duration_s

    expected = "a number of seconds, 0 or more" if or_zero else "a number of seconds above 0"
    return Option(name, default, help, expected + (f", {at_most:.0f} at most" if at_most < math.inf else ""), parse)


def number(name: str, default: Default, help: str, *, at_least: int | None = None) -> Option[int | Default]:
    """A whole number, from `at_least` upwards where that is given."""

    def parse(value: object) -> int | Default:
        whole = as_int(value)
        if at_least is not None and whole < at_least:
            raise ValueError(value)
        return whole

    expected = "a whole number" if at_least is None else f"a whole number, {at_least} or more"
    return Option(name, default, help, expected, parse)


def flag(name: str, default: Default, help: str) -> Option[bool | Default]:
    """Yes or no, in the spellings of `as_bool`."""
    return Option(name, default, help, "true or false", as_bool)


def ports(name: str, help: str) -> Option[tuple[int, ...]]:
    """A port, or a range of them such as `29500-29510`; any free port where it is not given."""

    def parse(value: object) -> tuple[int, ...]:
        first, dash, last = str(value).strip().partition("-")
        low = as_int(first)
        high = as_int(last) if dash else low
        if not 1 <= low <= high <= 0xFFFF:
            raise ValueError(value)
        return tuple(range(low, high + 1))

    return Option(name, (0,), help, "a port such as 29500, or a range such as 29500-29510", parse)


def text(
    name: str, default: Default, help: str, *, or_empty: bool = False, at_most: int | None = None
) -> Option[str | Default]:
    """Any text that is not blank; blanks around it do not count.  With `or_empty`, an empty one means the default.

    With `at_most`, the text goes into messages, which are UTF-8 and take no more characters.
    """

    def parse(value: object) -> str | Default:
        if or_empty and value == "":
            return default
        if not isinstance(value, str) or not value.strip():
            raise ValueError(value)
        if at_most is not None and (len(value.strip()) > at_most or not _is_utf8(value)):
            raise ValueError(value)
        return value.strip()

    expected = "a text" if at_most is None else f"a text in UTF-8 of at most {at_most} characters"
    return Option(name, default, help, expected, parse)


def choice(
    name: str, choices: Sequence[str], default: Default, help: str, *, exact: bool = False
) -> Option[str | Default]:
    """One of a few words, in any case unless it must be `exact`; the value is the word as it was declared."""
    by_word = {word.casefold(): word for word in choices}

    def parse(value: object) -> str | Default:
        word = by_word.get(str(value) if exact else str(value).strip().casefold())
        if word is None:
            raise ValueError(value)
        return word

    return Option(name, default, help, f"one of {', '.join(choices)}", parse)


def as_bool(value: object) -> bool:
    """A truth, 0 or 1, or a word for it (true, t, yes, y, false, f, no, n) in any case; ValueError otherwise."""
    word = str(int(value) if isinstance(value, bool) else value).casefold()
    if not isinstance(value, int | str) or word not in _TRUE | _FALSE:
        raise ValueError(value)
    return word in _TRUE


def as_int(value: object) -> int:
    """A whole number or the text of one; ValueError otherwise, also for a fraction."""
    if isinstance(value, int | str) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(value)


def _as_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(value) from None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ " Did you mean 'this'?" where one of the names is near, else nothing."""
    import difflib  # only a mistake pays for it

    nearest = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def check_run_id(run_id: str) -> None:
    """Refuse a run without a name, and a name that no message can hold."""
    if not run_id:
        raise ValueError("The run id is empty: every job needs a name of its own, such as its job id.")
    if len(run_id) > LONGEST_RUN_ID:
        raise ValueError(
            f"The run id has {len(run_id)} characters, and at most {LONGEST_RUN_ID} can be sent: shorten it."
        )
    if not _is_utf8(run_id):
        raise ValueError(f"The run id {run_id!r} cannot be written in UTF-8: take out what is no text.")


def check_address(address: str | None) -> None:
    """Refuse an address of this node that no message can hold."""
    if address is not None and (len(address) > LONGEST_ADDRESS or not _is_utf8(address)):
        raise ValueError(
            f"The address {address[:60]!r} is none: write an address or a name, at most {LONGEST_ADDRESS} characters."
        )


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_bounds(min_nodes: int, max_nodes: int) -> None:
    """Refuse numbers of nodes that no world can have."""
    if min_nodes < 1:
        raise ValueError(f"min_nodes is {min_nodes}, but a run has at least 1 node.")
    if max_nodes < min_nodes:
        raise ValueError(
            f"max_nodes is {max_nodes}, less than min_nodes, which is {min_nodes}: raise the one or lower the other."
        )
    if max_nodes > MOST_NODES:
        raise ValueError(f"max_nodes is {max_nodes}, but a run has at most {MOST_NODES} nodes.")
