"""The environment of a worker: torchrun's variables, JAX's, Rallypoint's own, and what the user's templates ask for."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterable, Mapping

import msgspec

from rallypoint import net

__all__ = ["Template", "WorkerPlace", "parse_template", "worker_environment"]


class WorkerPlace(msgspec.Struct, frozen=True):
    """Where one worker stands in one round: all that its environment is made of.

    `rank` counts workers, `role_rank` those of the same role, `group_rank` nodes.  `store` is host and port of the round's
    bootstrap store, `coordinator` those on which JAX's process 0 listens.  `store_secret` is what `rallypoint.worker()` proves to
    the store.
    """

    run_id: str
    round: int
    fence: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    store: tuple[str, int]
    coordinator: tuple[str, int]
    store_secret: str = ""
    peers_file: str = ""
    role: str = "default"
    role_rank: int = 0
    role_world_size: int = 0
    restarts: int = 0
    max_restarts: int = 0
    devices: str | None = None
    """Which accelerators it may see, where that was asked for."""


class Template(msgspec.Struct, frozen=True):
    """A variable that the user asks for, such as OMPI_COMM_WORLD_RANK={rank}."""

    name: str
    text: str


def worker_environment(
    inherited: Mapping[str, str], place: WorkerPlace, templates: Iterable[Template] = ()
) -> dict[str, str]:
    """What a worker gets: the launcher's own environment, with its place in the world."""
    address, port = place.store
    places = {
        "RANK": place.rank,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "GROUP_RANK": place.group_rank,
        "GROUP_WORLD_SIZE": place.group_world_size,
        "ROLE_NAME": place.role,
        "ROLE_RANK": place.role_rank,
        "ROLE_WORLD_SIZE": place.role_world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": place.restarts,
        "TORCHELASTIC_MAX_RESTARTS": place.max_restarts,
        "TORCHELASTIC_RUN_ID": place.run_id,
        # MASTER_ADDR and MASTER_PORT are those of a store that is there already: rank 0 is not to serve another one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RALLYPOINT_RUN_ID": place.run_id,
        "RALLYPOINT_ROUND": place.round,
        "RALLYPOINT_STORE": net.written(*place.store),
        # Only processes of this user can read it there.
        "RALLYPOINT_STORE_SECRET": place.store_secret,
        "RALLYPOINT_FENCE": place.fence,
        "RALLYPOINT_PEERS": place.peers_file,
        "JAX_COORDINATOR_ADDRESS": net.written(*place.coordinator),
        "JAX_NUM_PROCESSES": place.world_size,
        "JAX_PROCESS_ID": place.rank,
    }
    environment = {**inherited, **{name: str(value) for name, value in places.items()}}
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if place.local_world_size > 1:
        # As torchrun does: many workers with a thread for every core each would only stand in each other's way.
        environment.setdefault("OMP_NUM_THREADS", "1")
    if place.devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = place.devices
    fields = _fields_of(place)
    return {**environment, **{template.name: template.text.format_map(fields) for template in templates}}


def parse_template(text: str) -> Template:
    """A template as the command line has it; ValueError that says what is wrong with it."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{text!r} is not NAME=TEXT, such as OMPI_COMM_WORLD_RANK={{rank}}")
    try:
        fields = [(field, form, how) for _, field, form, how in string.Formatter().parse(value) if field is not None]
    except ValueError as exc:
        raise ValueError(f"{text!r} cannot be read ({exc}); write a brace that is meant as such twice") from None
    for field, form, how in fields:
        if field not in FIELDS or form or how:
            near = difflib.get_close_matches(field, FIELDS, 1)
            guess = f"; did you mean {{{near[0]}}}?" if near else ""
            raise ValueError(f"{text!r} has {{{field}}}, which is none of {', '.join(FIELDS)}{guess}")
    return Template(name, value)


def _fields_of(place: WorkerPlace) -> dict[str, object]:
    return {
        "rank": place.rank,
        "world_size": place.world_size,
        "local_rank": place.local_rank,
        "local_world_size": place.local_world_size,
        "node_rank": place.group_rank,
        "nnodes": place.group_world_size,
        "master_addr": place.store[0],
        "master_port": place.store[1],
        "run_id": place.run_id,
        "round": place.round,
        "restarts": place.restarts,
        "role": place.role,
    }


FIELDS = tuple(_fields_of(WorkerPlace("", 0, "", 0, 0, 0, 0, 0, 0, ("", 0), ("", 0))))
"""What a template may name."""
