"""What tests/conftest.py promises to every test: shown by running pytest on a small suite that uses it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SHARED = (
    *(
        "pyproject.toml",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/project/__init__.py",
        "tests/project/pains.py",
    ),
    *(f"tests/support/{name}.py" for name in ("__init__", "account", "markers", "order")),
)
Pytest = Callable[..., str]


@pytest.fixture
def run_pytest(tmp_path: Path) -> Pytest:
    """Run pytest with the project's conftest and settings on files that are given as path=text."""

    def run(files: dict[str, str], *arguments: str, failing: bool = False) -> str:
        for name in SHARED:
            files = {name: (ROOT / name).read_text(encoding="utf-8"), **files}
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == int(failing), run.stdout + run.stderr
        return run.stdout

    return run


SUITE = {
    "tests/core/__init__.py": "",
    "tests/core/test_a.py": "def test_one(): ...\ndef test_two(): ...\n",
    "tests/core/deep/__init__.py": "",
    "tests/core/deep/test_b.py": "def test_three(): ...\n",
    "tests/simulation/__init__.py": "",
    "tests/simulation/test_a.py": "def test_four(): ...\n",
}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_ends_with_its_time_by_folder(run_pytest: Pytest, workers: str) -> None:
    lines = run_pytest(SUITE, "-n", workers).splitlines()
    start = next(number for number, line in enumerate(lines) if "time by folder" in line)
    assert sorted(line.split()[2:] for line in lines[start + 1 : -1]) == [
        ["1", "tests", "tests/simulation"],
        ["3", "tests", "tests/core"],
    ]
    assert "4 passed" in lines[-1]


def test_pains_without_tests_are_listed_when_the_project_is_tested(run_pytest: Pytest) -> None:
    pains = "| 1 | hurts | heals | `tests/project/test_a.py::test_one` |\n| 2 | hurts | heals | — |\n"
    suite = {"docs/pains.md": pains, "tests/project/test_a.py": "def test_one(): ...\n"}
    assert "no test yet shows these gone: 2\n" in run_pytest({**SUITE, **suite})
    assert "shows these gone" not in run_pytest({**SUITE, **suite}, "tests/core")


@pytest.mark.parametrize("user", [0, 1000])
def test_a_test_that_needs_root_fails_without_it_and_says_so(run_pytest: Pytest, user: int) -> None:
    suite = {
        "tests/faults/__init__.py": "",
        "tests/faults/test_a.py": "import pytest\n@pytest.mark.root\ndef test_as_root(): ...\n",
        "as_user.py": f"import os\nos.geteuid = lambda: {user}\n",
    }
    output = run_pytest(suite, "-p", "as_user", "tests/faults", failing=user != 0)
    assert ("This test needs root, and must not pass for want of it: run it as root." in output) == (user != 0)
    assert "skipped" not in output


@pytest.mark.parametrize(("arguments", "expected"), [((), "False"), (("--rewrite",), "True")])
def test_golden_files_are_rewritten_only_when_asked_for(
    run_pytest: Pytest, arguments: tuple[str, ...], expected: str
) -> None:
    suite = {
        "tests/core/__init__.py": "",
        "tests/core/test_a.py": f"def test_a(rewrite: bool) -> None:\n    assert rewrite is {expected}\n",
    }
    run_pytest(suite, "tests/core", *arguments)


def test_a_test_hands_in_a_section_of_the_summary(run_pytest: Pytest) -> None:
    test = "def test_it(record_property): record_property('section of the summary', 'schedules\\n10000 passed')\n"
    output = run_pytest({"tests/core/__init__.py": "", "tests/core/test_a.py": test})
    assert re.search(r"=+ schedules =+\n10000 passed\n", output)


def test_soaks_can_be_left_out(run_pytest: Pytest) -> None:
    soak = "import pytest\n@pytest.mark.soak\ndef test_long(): ...\ndef test_short(): ...\n"
    suite = {"tests/core/__init__.py": "", "tests/core/test_a.py": soak}
    assert "1 passed, 1 deselected" in run_pytest(suite, "-m", "not soak")


def test_a_test_is_marked_by_what_it_needs(run_pytest: Pytest) -> None:
    asks = "def test_it(request): assert {mark.name for mark in request.node.own_markers} == "
    suite = {
        "torch/__init__.py": "",
        "torch/distributed.py": "",
        "tests/core/__init__.py": "",
        "tests/core/children.py": "def start():\n    import subprocess\n",
        "tests/core/kinds.py": "import torch\n",
        "tests/core/test_bare.py": f"from tests.core import kinds\n{asks} {{'check'}}\n",
        "tests/core/test_needy.py": f"import torch.distributed\nfrom tests.core.children import start\n{asks}"
        "{'check', 'processes', 'torch'}\n",
        "tests/core/test_kinds.py": "import pytest\n@pytest.mark.parametrize('kind', ['file', 'EtcdStore'])\n"
        "def test_it(request, kind): assert ('etcd' in request.keywords) is (kind == 'EtcdStore')\n",
        "tests/torchrun/__init__.py": "",
        "tests/torchrun/test_agent.py": f"{asks}{{'torch'}}\n",
        "tests/etcd_v2/__init__.py": "",
        "tests/support/etcd_servers.py": "import subprocess\n",
        "tests/etcd_v2/conftest.py": "from tests.support.etcd_servers import subprocess\n",
        "tests/etcd_v2/test_etcd_server.py": f"{asks}{{'etcd'}}\n",
    }
    assert "6 passed" in run_pytest(suite, "-q")
