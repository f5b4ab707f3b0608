"""The options of `rallypoint run`, one table: name, kind, default, where each value may come from.

A value comes from the first of: the command line; RALLYPOINT_NAME, then PET_NAME (torchrun's variables); a TOML file; the
scheduler; the default.  torchrun's spellings are accepted, with dashes or underscores.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rallypoint.launcher.worker_env import Template, parse_template

__all__ = ["NESTED", "NOT_NEEDED", "OPTIONS", "LaunchOption", "OptionSources", "parse_duration"]


class LaunchOption(msgspec.Struct, frozen=True):
    """One option.  `parse` turns text into a value, and raises ValueError with half a sentence."""

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any]
    metavar: str = "TEXT"
    is_flag: bool = False
    is_repeated: bool = False
    also: tuple[str, ...] = ()
    """Other spellings on the command line."""

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is written on a command line: with dashes, with underscores, and otherwise."""
        dashed = f"--{self.name.replace('_', '-')}"
        spelled = (dashed, f"--{self.name}", *self.also)
        return tuple(dict.fromkeys(spelled))

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that it is read from: RALLYPOINT_NAME, then torchrun's for each of its spellings."""
        spellings = (flag[2:].replace("-", "_").upper() for flag in self.flags if flag.startswith("--"))
        return tuple(dict.fromkeys((f"RALLYPOINT_{self.name.upper()}", *(f"PET_{name}" for name in spellings))))


def _count(value: str, least: int = 0) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"should be a whole number from {least} on, not {value!r}")
    return number


def _nnodes(value: str) -> tuple[int, int]:
    low, colon, high = value.partition(":")
    try:
        bounds = int(low), int(high if colon else low)
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(f"should be a number of nodes such as 4, or a range such as 2:4, not {value!r}")
    return bounds


def _nproc(value: str) -> str | int:
    if value in ("auto", "cpu", "gpu"):
        return value
    try:
        return _count(value, 1)
    except ValueError:
        raise ValueError(f"should be auto, cpu, gpu or a number of workers, not {value!r}") from None


def parse_duration(value: str) -> float:
    """Seconds of a text such as 30, 30s, 10m or 2h."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"should be a time such as 30s, 10m or 2h, not {value!r}")
    return seconds


def _flag(value: str) -> bool:
    if value.lower() in ("1", "true", "yes", "t", "y"):
        return True
    if value.lower() in ("0", "false", "no", "f", "n", ""):
        return False
    raise ValueError(f"should be true or false, not {value!r}")


def _config(value: str) -> dict[str, str]:
    """torchrun's k=v,k2=v2, with quotes around it or not."""
    found = {}
    for part in filter(None, (part.strip() for part in value.strip().strip("'\"").split(","))):
        name, equals, text = part.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"should be name=value,name=value, not {value!r}")
        found[name.strip()] = text.strip().strip("'\"")
    return found


def _ranks(value: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"should be ranks such as 0,1,7, not {value!r}") from None


def _streams(value: str) -> dict[int, int] | int:
    """torchrun's: 0 none, 1 stdout, 2 stderr, 3 both; or local_rank:number, separated by commas."""
    pairs = [part.partition(":")[::2] for part in value.split(",") if part.strip()]
    try:
        if ":" not in value:
            numbers: dict[int, int] | int = int(value)
            used = {numbers}
        else:
            numbers = {int(rank): int(number) for rank, number in pairs}
            used = set(numbers.values())
    except ValueError:
        used = {-1}
        numbers = 0
    if not used <= {0, 1, 2, 3}:
        raise ValueError(f"should be 0, 1, 2 or 3, or such as 0:1,1:3 by local rank, not {value!r}")
    return numbers


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"should be one of {', '.join(choices)}, not {value!r}")
        return value

    return parse


def _template(value: str) -> Template:
    try:
        return parse_template(value)
    except ValueError as exc:
        raise ValueError(f"cannot be used: {exc}") from None


OPTIONS: tuple[LaunchOption, ...] = (
    LaunchOption("nnodes", None, "how many nodes: 4, or 2:4 for two to four (default: 1)", _nnodes, "N|MIN:MAX"),
    LaunchOption("nproc_per_node", None, "workers on this node: auto, cpu, gpu or a number (default: 1)", _nproc, "N"),
    LaunchOption("node_rank", None, "the rank that this node would like to have", _count, "N"),
    LaunchOption(
        "rdzv",
        "",
        "where the nodes meet: HOST:PORT, etcd://A,B,C, c10d://HOST:PORT, etcd-v2://HOST:PORT or file:///PATH",
        str,
        "ENDPOINT",
    ),
    LaunchOption(
        "rdzv_backend",
        "",
        "torchrun's way to say it: rallypoint, etcd-v3, c10d, etcd-v2, etcd or static, with --rdzv-endpoint",
        _choice("", "rallypoint", "etcd-v3", "c10d", "etcd-v2", "etcd", "static"),
        "NAME",
    ),
    LaunchOption("rdzv_endpoint", "", "HOST:PORT for --rdzv-backend", str, "HOST:PORT"),
    LaunchOption("rdzv_conf", {}, "options of the rendezvous, as name=value,name=value", _config, "K=V,…"),
    LaunchOption("run_id", "", "the name of the run", str, "NAME", also=("--rdzv-id", "--rdzv_id")),
    LaunchOption("master_addr", "", "torchrun's: where node 0 is, for --rdzv-backend static", str, "HOST"),
    LaunchOption("master_port", 29500, "torchrun's: its port", _count, "PORT"),
    LaunchOption("standalone", False, "one node, on a free port of this machine", _flag, is_flag=True),
    LaunchOption("local_addr", "", "the address by which other nodes reach this one", str, "ADDRESS"),
    LaunchOption("role", "default", "a name for the workers", str, "NAME"),
    LaunchOption("max_restarts", 3, "how often crashed workers are started again (default: 3)", _count, "N"),
    LaunchOption(
        "restart_window",
        None,
        "only crashes of the last so long count, such as 1h (default: all)",
        parse_duration,
        "TIME",
    ),
    LaunchOption("no_progress", 3, "end after the same failure so often in a row; 0: never (default: 3)", _count, "N"),
    LaunchOption(
        "grace",
        30.0,
        "from SIGTERM to SIGKILL (default: 30s)",
        parse_duration,
        "TIME",
        also=("--shutdown-timeout", "--shutdown_timeout"),
    ),
    LaunchOption("log_dir", None, "a folder for a file per rank and round", Path, "DIR"),
    LaunchOption(
        "redirects",
        0,
        "torchrun's: streams that go to files only: 1 stdout, 2 stderr, 3 both",
        _streams,
        "N",
        also=("-r",),
    ),
    LaunchOption("tee", 0, "torchrun's: streams that go to files and to the terminal", _streams, "N", also=("-t",)),
    LaunchOption("show_ranks", None, "show the output of these ranks only, such as 0,8", _ranks, "RANKS"),
    LaunchOption("local_ranks_filter", None, "torchrun's: the same by local rank", _ranks, "RANKS"),
    LaunchOption(
        "env",
        (),
        "a variable for the workers, such as 'OMPI_COMM_WORLD_RANK={rank}'",
        _template,
        "NAME=TEXT",
        is_repeated=True,
    ),
    LaunchOption(
        "pin", "", "give each local rank its own gpu, cpu or numa node", _choice("", "gpu", "cpu", "numa"), "WHAT"
    ),
    LaunchOption("no_python", False, "the program is no Python script", _flag, is_flag=True),
    LaunchOption("module", False, "the program is a Python module", _flag, is_flag=True, also=("-m",)),
    LaunchOption("dry_run", False, "say what would happen on this node, and why", _flag, is_flag=True),
)


NOT_NEEDED = {
    "monitor_interval": "a worker that ends is noticed at once",
    "start_method": "every worker is a command of its own",
    "signals_to_handle": "all signals that end or inform a job are passed on",
    "event_log_handler": "what happens is in the output of the launcher",
}
"""torchrun's options that make no difference here: they are taken, and it is said why they do nothing."""
OPTIONS += tuple(LaunchOption(name, None, f"torchrun's; not needed: {why}", str) for name, why in NOT_NEEDED.items())


NESTED = "RALLYPOINT_FENCE"
"""What only workers have in their environment."""


class OptionSources:
    """Where values come from, in order; `why` tells of each where it came from."""

    def __init__(
        self, given: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any], file_name: str = ""
    ) -> None:
        self.why: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        if NESTED in environment:
            environment = {}  # this launcher is a worker of another one, whose options are not for it
        known = {option.name: option for option in OPTIONS}
        for name in file:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                guess = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{file_name} has the key {name!r}, which is no option{guess}")
        for option in OPTIONS:
            self._take(option, given, environment, file, file_name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def is_given(self, name: str) -> bool:
        """Whether the user said something about it."""
        return name in self.why

    def _take(
        self,
        option: LaunchOption,
        given: Mapping[str, Any],
        environment: Mapping[str, str],
        file: Mapping[str, Any],
        file_name: str,
    ) -> None:
        name = option.name
        candidates = [
            (f"--{name.replace('_', '-')}", given.get(name)),
            *((variable, environment.get(variable) or None) for variable in option.variables),
            (f"{name} in {file_name}", file.get(name)),
        ]
        for source, value in candidates:
            if value is None or value == () or value == []:
                continue
            self._values[name] = _parsed(option, source, value)
            self.why[name] = source
            return
        self._values[name] = option.default


def _parsed(option: LaunchOption, source: str, value: Any) -> Any:
    values = value if isinstance(value, (list, tuple)) else [value]
    try:
        parsed = [option.parse(_as_text(item)) for item in values]
    except ValueError as exc:
        raise ValueError(f"{source} {exc}") from None
    return tuple(parsed) if option.is_repeated else parsed[-1]


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return str(value)
