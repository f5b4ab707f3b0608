"""The older etcd protocol, the part that decides: what the state of a run may become.  Pure; the words are the protocol's.

The state is a JSON object, written by compare-and-set on what was there before; nodes of PyTorch's own backend write it as
well.  So that a write can be told from everybody else's after a lost answer, ours end with blanks that nobody else has;
one blank more passes on that nodes of PyTorch's are about.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from rallypoint.errors import RendezvousStateError
from rallypoint.wording import are, nodes

SETUP, JOINABLE, FROZEN, FINAL, CLOSED = "setup", "joinable", "frozen", "final", "closed"

SETUP_TTL_S = 5
JOINABLE_TTL_S = 10
FROZEN_TTL_S = 10
KEEP_ALIVE_TTL_S = 10
RUN_TTL_S = 7200

_BLANKS = 48
_AS_BLANKS = str.maketrans("01", " \t")

State = dict[str, Any]


class EtcdRendezvousRetryableFailure(Exception):  # noqa: N818  # the name is PyTorch's
    """The rendezvous did not come about, and may after a while: go through the phases again."""


class EtcdRendezvousRetryImmediately(Exception):  # noqa: N818  # the name is PyTorch's
    """The rendezvous did not come about, and may at once: go through the phases again."""


class VersionRank(NamedTuple):
    """A place in a version."""

    version: str
    rank: int


class Found(NamedTuple):
    """The state as it was read or written (empty: none): its text, etcd's index then, and that of its last change."""

    state: State
    text: str
    at: int
    modified: int = 0

    def is_at(self, status: str, version: str) -> bool:
        """Whether this version has this status."""
        return self.state.get("status") == status and self.state.get("version") == version


class Edit(NamedTuple):
    """What the state is to become, and how long it lives without a further edit (None: for good)."""

    state: State
    ttl_s: int | None


def read(text: str) -> State:
    """A state; RendezvousStateError where the text is none."""
    try:
        state = json.loads(text)
    except ValueError as exc:
        raise RendezvousStateError(f"the state of the run is no JSON, but begins with {text[:60]!r}") from exc
    if not isinstance(state, dict) or state.get("status") not in _FIELDS:
        raise RendezvousStateError(f"the state of the run has no status that is known: {text[:200]!r}")
    for field, kind in _FIELDS[state["status"]].items():
        if not isinstance(state.get(field), kind):
            raise RendezvousStateError(f"the {state['status']} state of the run lacks {field!r}: {text[:200]!r}")
    return state


def written(state: State, *, mixed: bool = False) -> str:
    """The text of a state, unlike any that was written before; mixed is a run that nodes of PyTorch's take part in."""
    blanks = _BLANKS + 1 if mixed else _BLANKS
    return json.dumps(state) + f"{secrets.randbits(_BLANKS):0{blanks}b}".translate(_AS_BLANKS)


def is_mixed(text: str) -> bool:
    """Whether a node of PyTorch's wrote this, or one of ours that knows of one."""
    return len(text) - len(text.rstrip(" \t")) != _BLANKS


def set_up() -> Edit:
    """The first node begins a version."""
    return Edit({"status": SETUP}, SETUP_TTL_S)


def opened(version: str) -> Edit:
    """The version has its place: nodes may join."""
    return Edit({"status": JOINABLE, "version": version, "participants": []}, None)


def joined(state: State, min_nodes: int, max_nodes: int) -> Edit:
    """One node more.  The one that completes min keeps the state alive from then on; the one that completes max ends it."""
    participants = [*state["participants"], len(state["participants"])]
    new = {**state, "participants": participants}
    if len(participants) >= max_nodes:
        return frozen(new)
    return Edit(new, JOINABLE_TTL_S if len(participants) >= min_nodes else None)


def frozen(state: State) -> Edit:
    """Nobody joins any more; those who have must confirm."""
    return Edit({**state, "status": FROZEN, "keep_alives": []}, FROZEN_TTL_S)


def confirmed(state: State, keep_alive: str) -> Edit:
    """A member is there, and its keep-alive key is; the last one makes it final."""
    keep_alives = [*state["keep_alives"], keep_alive]
    new = {**state, "keep_alives": keep_alives}
    if len(keep_alives) < len(state["participants"]):
        return Edit(new, FROZEN_TTL_S)
    return Edit({**new, "status": FINAL, "num_workers_waiting": 0}, None)


def announced(state: State) -> Edit:
    """One node more waits for the next version."""
    return Edit({**state, "num_workers_waiting": int(state["num_workers_waiting"]) + 1}, None)


def closed(state: State) -> Edit:
    """Nobody can join any more, whatever the state was, and also where there was none."""
    return Edit({**state, "status": CLOSED}, None)


def described(state: State, min_nodes: int, max_nodes: int) -> str:
    """The state in words; an empty one stands for none."""
    if not state:
        return "nobody has begun a version yet"
    here = len(state.get("participants", ()))
    match state["status"]:
        case "setup":
            return "a version is being set up"
        case "joinable":
            wanted, missing = ("least", min_nodes) if here < min_nodes else ("most", max_nodes)
            rest = f"{min_nodes - here} more must come" if here < min_nodes else "the last call is not over yet"
            return f"{here} of at {wanted} {nodes(missing)} {are(missing)} here for version {state['version']}; {rest}"
        case "frozen":
            return f"{len(state['keep_alives'])} of the {here} nodes of version {state['version']} have confirmed"
        case "final":
            waiting = state["num_workers_waiting"]
            wait = "waits" if waiting == 1 else "wait"
            return f"version {state['version']} runs with {nodes(here)}, and {nodes(waiting)} more {wait} for the next"
        case _:
            return "the run is closed"


_JOINABLE_FIELDS: dict[str, type | tuple[type, ...]] = {"version": str, "participants": list}
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    SETUP: {},
    JOINABLE: _JOINABLE_FIELDS,
    FROZEN: {**_JOINABLE_FIELDS, "keep_alives": list},
    FINAL: {**_JOINABLE_FIELDS, "keep_alives": list, "num_workers_waiting": int},
    CLOSED: {},
}
