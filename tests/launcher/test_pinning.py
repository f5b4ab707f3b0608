"""Devices and cores of each local rank, on machines that are folders here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rallypoint.launcher.pinning import Machine, check_pin, cores_of, device_of, parse_list, visible_devices


def machine(folder: Path, *, nodes: tuple[str, ...] = (), gpus: tuple[int, ...] = ()) -> Machine:
    """A machine with NUMA nodes of these cores, and GPUs that hang on these nodes."""
    for number, cores in enumerate(nodes):
        (folder / "nodes" / f"node{number}").mkdir(parents=True)
        (folder / "nodes" / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    (folder / "dev").mkdir()
    for number, node in enumerate(gpus):
        (folder / "dev" / f"nvidia{number}").touch()
        address = f"0000:0{number}:00.A"
        (folder / "gpus" / address).mkdir(parents=True)
        (folder / "gpus" / address / "information").write_text(f"Model: \t X: 1\nDevice Minor: \t {number}\n")
        (folder / "pci" / address.lower()).mkdir(parents=True)
        (folder / "pci" / address.lower() / "numa_node").write_text(f"{node}\n")
    return Machine(folder / "nodes", folder / "gpus", folder / "pci", folder / "dev")


def test_a_set_of_cores_is_read_as_the_kernel_writes_it() -> None:
    assert parse_list("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
    assert parse_list("\n") == []


def test_workers_are_near_their_gpus(tmp_path: Path) -> None:
    here = machine(tmp_path, nodes=("0-1", "2-3"), gpus=(1, 0, 1, -1))
    devices = visible_devices({}, here)
    cores = [cores_of("numa", rank, 4, range(4), devices, here) for rank in range(4)]
    assert cores == [[2, 3], [0, 1], [2, 3], [2, 3]], "where the kernel does not tell, they are spread"


def test_without_gpus_they_are_spread_over_the_nodes_that_may_be_used(tmp_path: Path) -> None:
    here = machine(tmp_path, nodes=("0-1", "2-3", "4-5"))
    assert [cores_of("numa", rank, 4, [0, 2, 3, 9], [], here) for rank in range(4)] == [[0], [0], [2, 3], [2, 3]]
    assert cores_of("numa", 0, 1, [0, 1], [], here) == [], "one node is no choice"


def test_cores_are_shared_in_equal_parts() -> None:
    none = Machine()
    assert [cores_of("cpu", rank, 2, [0, 1, 4, 5, 6], [], none) for rank in range(2)] == [[0, 1], [4, 5]]
    assert [cores_of("cpu", rank, 3, [0, 1], [], none) for rank in range(3)] == [[0], [1], [0]]


def test_devices_are_those_that_this_launcher_may_use(tmp_path: Path) -> None:
    here = machine(tmp_path, gpus=(0, 0))
    assert visible_devices({}, here) == ["0", "1"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "GPU-7, 3"}, here) == ["GPU-7", "3"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, here) == []
    assert device_of(1, ["GPU-7", "3"]) == "3"


@pytest.mark.parametrize(
    ("pin", "workers", "parts", "sentence"),
    [
        ("gpu", 2, {"gpus": (0, 0)}, "each worker sees one of the GPUs 0, 1"),
        ("gpu", 1, {}, "no GPU that can be seen"),
        ("gpu", 3, {"gpus": (0, 0)}, "3 workers and 2 GPUs: say --nproc-per-node 2"),
        ("numa", 1, {}, "tells of no NUMA nodes"),
        ("numa", 1, {"nodes": ("0-1",)}, "has one NUMA node, so every worker has all of its cores"),
        ("numa", 1, {"nodes": ("0-1", "2")}, "spread over 2 NUMA nodes"),
        ("cpu", 9999, {}, f"9999 workers share {len(os.sched_getaffinity(0))} cores"),
    ],
)
def test_what_it_does_here_is_said(
    tmp_path: Path, pin: str, workers: int, parts: dict[str, tuple[str, ...]], sentence: str
) -> None:
    try:
        said = check_pin(pin, workers, {}, machine(tmp_path, **parts))  # type: ignore[arg-type]
    except ValueError as exc:
        said = str(exc)
    assert sentence in said
