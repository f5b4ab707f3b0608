"""Which devices and cores each local rank has for itself, where `--pin` asks for that."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["Machine", "check_pin", "cores_of", "device_of", "usable_cores", "visible_devices"]

NODES = Path("/sys/devices/system/node")
GPUS = Path("/proc/driver/nvidia/gpus")
PCI = Path("/sys/bus/pci/devices")
DEVICES = Path("/dev")


class Machine:
    """What the kernel tells of this machine; tests give it other folders."""

    def __init__(self, nodes: Path = NODES, gpus: Path = GPUS, pci: Path = PCI, devices: Path = DEVICES) -> None:
        self._nodes, self._gpus, self._pci, self._devices = nodes, gpus, pci, devices

    def numa_nodes(self) -> dict[int, list[int]]:
        """The cores of each NUMA node that has any; empty where the kernel knows of no such nodes."""
        found = {}
        for folder in sorted(self._nodes.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:])):
            with suppress(OSError, ValueError):
                if cores := parse_list((folder / "cpulist").read_text()):
                    found[int(folder.name[4:])] = cores
        return found

    def gpus(self) -> list[str]:
        """The numbers of the GPUs that are there, without loading anything that talks to them."""
        return sorted((path.name[6:] for path in self._devices.glob("nvidia[0-9]*")), key=int)

    def node_of_gpu(self, gpu: str) -> int | None:
        """The NUMA node that a GPU hangs on; None where the kernel does not tell."""
        for folder in self._gpus.glob("*"):
            with suppress(OSError, ValueError):
                told = [line.partition(":") for line in (folder / "information").read_text().splitlines()]
                if {name.strip(): value.strip() for name, _, value in told}.get("Device Minor") == gpu:
                    node = int((self._pci / folder.name.lower() / "numa_node").read_text())
                    return node if node >= 0 else None
        return None


def check_pin(pin: str, workers: int, environment: Mapping[str, str], machine: Machine) -> str:
    """What pinning does on this machine, in a sentence; ValueError where it cannot be done."""
    if pin == "gpu":
        devices = visible_devices(environment, machine)
        if not devices:
            raise ValueError("--pin gpu: this machine has no GPU that can be seen; leave the option out")
        if workers > len(devices):
            raise ValueError(
                f"--pin gpu gives each worker a GPU of its own, but there are {workers} workers and {len(devices)} GPUs: "
                f"say --nproc-per-node {len(devices)}"
            )
        return f"pin gpu: each worker sees one of the GPUs {', '.join(devices)}, as its device 0"
    cores = usable_cores()
    if pin == "cpu":
        each = max(len(cores) // workers, 1)
        short = f"; {workers} workers share {len(cores)} cores" if workers > len(cores) else ""
        return f"pin cpu: each worker has {each} of {len(cores)} cores{short}"
    nodes = machine.numa_nodes()
    if not nodes:
        raise ValueError("--pin numa: this machine tells of no NUMA nodes; use --pin cpu, or leave the option out")
    if len(nodes) == 1:
        return "pin numa: this machine has one NUMA node, so every worker has all of its cores"
    return f"pin numa: the workers are spread over {len(nodes)} NUMA nodes, each near its GPU where it has one"


def visible_devices(environment: Mapping[str, str], machine: Machine) -> list[str]:
    """The GPUs that this launcher may give to its workers."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [device.strip() for device in listed.split(",") if device.strip() not in ("", "-1")]
    return machine.gpus()


def device_of(local_rank: int, devices: Sequence[str]) -> str:
    """The GPU of a local rank."""
    return devices[local_rank % len(devices)]


def cores_of(
    pin: str, local_rank: int, local_world_size: int, cores: Sequence[int], devices: Sequence[str], machine: Machine
) -> list[int]:
    """The cores of a local rank; empty where it has all that there are."""
    if pin == "cpu":
        return _share(cores, local_rank, local_world_size)
    if pin != "numa":
        return []
    nodes = {number: [core for core in own if core in set(cores)] for number, own in machine.numa_nodes().items()}
    usable = {number: own for number, own in nodes.items() if own}
    if len(usable) < 2:
        return []
    node = machine.node_of_gpu(device_of(local_rank, devices)) if devices else None
    if node not in usable:
        node = sorted(usable)[local_rank * len(usable) // max(local_world_size, 1) % len(usable)]
    return usable[node]


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def parse_list(text: str) -> list[int]:
    """The kernel's way to write a set of numbers: 0-3,8."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _share(cores: Sequence[int], local_rank: int, local_world_size: int) -> list[int]:
    """An equal share of the cores; where there are fewer than ranks, one that is shared."""
    each = max(len(cores) // local_world_size, 1)
    start = local_rank * each % len(cores)
    return list(cores[start : start + each])
