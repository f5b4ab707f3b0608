"""The layers hold on the tree as it is, and each contract bites on a copy of the tree with an offence in it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rallypoint"
SIMULATION = ROOT / "simulation"

LAYERS = "Layers: imports point downwards, and every folder is declared"
ROOT_UNSEEN = "Root: the package's own __init__ is for users; nothing inside imports it"
CORE_PURE = "Core, and what decides beside it: no clock, no chance, no IO, no threads"
CORE_ALONE = "Core: sees nothing of rallypoint but messages, ranking, wording, errors and the map"
SIMULATION_SEES = (
    "Simulation: sees location, server, client, protocol, record, core, messages, ranking, tokens and errors only"
)
SIMULATION_UNSEEN = "Simulation: nothing imports it"
TORCH = "Torch: only torch_bridge imports it"
GRPC = "gRPC: only etcd_client imports it"
PICKLE = "Pickle: nothing is unpickled, ever"
CONTRACTS = (
    LAYERS,
    ROOT_UNSEEN,
    CORE_PURE,
    CORE_ALONE,
    SIMULATION_SEES,
    SIMULATION_UNSEEN,
    TORCH,
    GRPC,
    PICKLE,
)

IMPURE = (
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "rich",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
)


@dataclass(frozen=True)
class Offence:
    """Modules to plant in a copy of the packages, the contracts they break, and the imports that are to be named."""

    modules: Mapping[str, str]
    broken: tuple[str, ...]
    named: tuple[str, ...] = field(default=())


# A planted module is called `planted`, or is the empty root of a layer that the tree may not have yet.
OFFENCES = {
    "a folder that no layer declares": Offence(
        {"extras/__init__.py": ""},
        broken=(LAYERS,),
        named=("rallypoint.extras",),
    ),
    "a module that no layer declares": Offence(
        {"planted.py": ""},
        broken=(LAYERS,),
        named=("rallypoint.planted",),
    ),
    "an import that points upwards": Offence(
        {
            "server/__init__.py": "",
            "elastic/__init__.py": "",
            "server/planted.py": "import rallypoint.elastic\n",
        },
        broken=(LAYERS,),
        named=("rallypoint.server.planted -> rallypoint.elastic",),
    ),
    "neighbours in one layer that see each other": Offence(
        {
            "stores/__init__.py": "",
            "stores/planted.py": "import rallypoint.core\n",
            "server/__init__.py": "",
            "server/planted.py": "import rallypoint.client\n",
        },
        broken=(LAYERS,),
        named=("rallypoint.stores.planted -> rallypoint.core", "rallypoint.server.planted -> rallypoint.client"),
    ),
    "a layer that imports the root": Offence(
        {"cli/__init__.py": "", "cli/planted.py": "import rallypoint\n"},
        broken=(ROOT_UNSEEN,),
        named=("rallypoint.cli.planted -> rallypoint",),
    ),
    "a core that does what a pure one cannot": Offence(
        {"core/planted.py": "".join(f"import {name}\n" for name in IMPURE)},
        broken=(CORE_PURE,),
        named=tuple(f"rallypoint.core.planted -> {name} " for name in IMPURE),
    ),
    "a core that does so through errors": Offence(
        {"core/planted.py": "import rallypoint.errors\n", "errors.py": "import time\n"},
        broken=(CORE_PURE,),
        named=("rallypoint.errors -> time",),
    ),
    "a core that sees the layers below it": Offence(
        {
            "events.py": "",
            "etcd_client/__init__.py": "",
            "core/planted.py": "import rallypoint.etcd_client\nimport rallypoint.events\n",
        },
        broken=(CORE_ALONE, CORE_PURE),  # the recorder has threads and a clock
        named=("rallypoint.core.planted -> rallypoint.etcd_client", "rallypoint.core.planted -> rallypoint.events"),
    ),
    "a core that sees the layers above it": Offence(
        {"server/__init__.py": "", "core/planted.py": "import rallypoint.server\n"},
        broken=(LAYERS, CORE_ALONE),
        named=("rallypoint.core.planted -> rallypoint.server",),
    ),
    "a simulation that sees what it may not": Offence(
        {
            "events.py": "",
            "stores/__init__.py": "",
            "simulation/planted.py": "import rallypoint.events\nimport rallypoint.stores\n",
        },
        broken=(SIMULATION_SEES,),
        named=(
            "simulation.planted -> rallypoint.events",
            "simulation.planted -> rallypoint.stores",
        ),
    ),
    "a layer that imports the simulation": Offence(
        {"server/__init__.py": "", "server/planted.py": "import simulation\n"},
        broken=(SIMULATION_UNSEEN,),
        named=("rallypoint.server.planted -> simulation",),
    ),
    "torch outside its bridge": Offence(
        {"elastic/__init__.py": "", "elastic/planted.py": "def late():\n    import torch.distributed\n"},
        broken=(TORCH,),
        named=("rallypoint.elastic.planted -> torch",),
    ),
    "grpc outside the etcd client": Offence(
        {"location/__init__.py": "", "location/planted.py": "import grpc.aio\n"},
        broken=(GRPC,),
        named=("rallypoint.location.planted -> grpc",),
    ),
    "anything that unpickles": Offence(
        {"stores/__init__.py": "", "stores/planted.py": "import marshal\nimport pickle\nfrom shelve import open\n"},
        broken=(PICKLE,),
        named=tuple(f"rallypoint.stores.planted -> {name}" for name in ("marshal", "pickle", "shelve")),
    ),
}

# All that is allowed and comes near to an offence, in one tree.
ALLOWED = {
    "server/__init__.py": "",
    "location/__init__.py": "",
    "location/planted.py": "import rallypoint.etcd_client.planted\nimport rallypoint.core\n",
    "events.py": "import time\n",
    "server/planted.py": "import rallypoint.events\nimport rallypoint.torch_bridge.planted\n",
    "torch_bridge/__init__.py": "",
    "torch_bridge/planted.py": "import torch\n",
    "etcd_client/__init__.py": "",
    "etcd_client/planted.py": "import grpc\n",
    "core/planted.py": "import rallypoint.errors\nimport msgspec\n",
    "simulation/planted.py": (
        "import random\nimport rallypoint.core.planted\nimport rallypoint.errors\nimport rallypoint.server.planted\n"
        "import rallypoint.location\n"
    ),
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages that lie in this folder, with the project's own contracts."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml", "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'src'}", "COLUMNS": "1000", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def verdicts(output: str) -> dict[str, str]:
    """Each contract's verdict: KEPT or BROKEN."""
    return dict(re.findall(r"^(.+) (KEPT|BROKEN)\b", output, flags=re.MULTILINE))


def plant(folder: Path, modules: Mapping[str, str]) -> None:
    """Copy both packages into the folder and add the modules; a layer's empty root never replaces a real one."""
    for package in (PACKAGE, SIMULATION):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in modules.items():
        module = (folder if name.startswith("simulation/") else folder / "rallypoint") / name
        module.parent.mkdir(parents=True, exist_ok=True)
        with module.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")


def test_every_contract_is_kept_by_the_tree() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout
    assert verdicts(run.stdout) == dict.fromkeys(CONTRACTS, "KEPT")


def test_what_is_allowed_is_kept(tmp_path: Path) -> None:
    plant(tmp_path, ALLOWED)
    run = lint_imports(tmp_path)
    assert verdicts(run.stdout) == dict.fromkeys(CONTRACTS, "KEPT"), run.stdout


@pytest.mark.parametrize("offence", OFFENCES.values(), ids=OFFENCES.keys())
def test_each_offence_breaks_its_contract(offence: Offence, tmp_path: Path) -> None:
    plant(tmp_path, offence.modules)
    run = lint_imports(tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    expected = {name: "BROKEN" if name in offence.broken else "KEPT" for name in CONTRACTS}
    assert verdicts(run.stdout) == expected, run.stdout
    assert [name for name in offence.named if name not in run.stdout] == [], run.stdout


def test_each_contract_has_an_offence() -> None:
    assert {name for offence in OFFENCES.values() for name in offence.broken} == set(CONTRACTS)


def test_importing_rallypoint_imports_neither_torch_nor_grpc(tmp_path: Path) -> None:
    """With both at hand, so that an import which hides its failure is seen as well."""
    for name in ("torch", "grpc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    script = "import sys, rallypoint; print(sorted({'torch', 'grpc'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")
