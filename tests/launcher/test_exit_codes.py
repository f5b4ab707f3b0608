"""Each exit code of the launcher's own, and what else of an end a scheduler or an operator sees."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.launcher.exit_codes import LaunchExit
from tests.launcher.conftest import Launch
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S

SETTINGS = "last_call_timeout=0.2,heartbeat_timeout=5,join_timeout=60"
WORKS = ("--", "sh", "-c", "echo works; exec sleep 600")


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def works(*launchers: subprocess.Popen[str]) -> None:
    for launcher in launchers:
        assert launcher.stdout is not None
        assert launcher.stdout.readline().endswith("works\n")


def meeting(port: int, nodes: str) -> tuple[str, ...]:
    return ("--nnodes", nodes, "--rdzv", f"127.0.0.1:{port}", "--run-id", "job", "--rdzv-conf", SETTINGS)


def test_a_run_that_somebody_closes_ends_with_82_everywhere(launch: Launch) -> None:
    port = free_port()
    both = [launch(*meeting(port, "2"), *WORKS) for _ in range(2)]
    works(*both)
    close = [sys.executable, "-m", "rallypoint", "close", "job", "--why", "the budget is spent"]
    subprocess.run([*close, "--endpoint", f"127.0.0.1:{port}"], check=True, capture_output=True, timeout=60)
    for code, _, err in map(ends, both):
        assert code == 82
        assert "the budget is spent" in err


def test_a_node_that_is_refused_ends_with_81(launch: Launch) -> None:
    port = free_port()
    first = launch(*meeting(port, "1"), *WORKS)
    works(first)
    code, out, err = ends(launch(*meeting(port, "3"), *WORKS))
    assert (code, out) == (81, "")
    assert "nodes" in err
    first.send_signal(signal.SIGTERM)
    assert ends(first)[0] == 83


def test_a_node_that_is_not_needed_ends_with_0(launch: Launch, tmp_path: Path) -> None:
    port, stop = free_port(), tmp_path / "stop"
    program = ("--", "sh", "-c", f"echo works; while [ ! -e {stop} ]; do sleep 0.05; done")
    first = launch(*meeting(port, "1"), *program)
    works(first)
    spare = launch(*meeting(port, "1"), *program)
    assert spare.stderr is not None
    assert any("standing by" in line for line in spare.stderr)
    stop.touch()
    assert [ends(first)[0], ends(spare)[0]] == [0, 0]


def test_a_preempted_node_costs_the_others_no_restart(launch: Launch) -> None:
    port = free_port()
    both = [launch(*meeting(port, "1:2"), "--max-restarts", "0", *WORKS) for _ in range(2)]
    works(*both)
    both[0].send_signal(signal.SIGTERM)
    assert ends(both[0])[0] == 83
    works(both[1])
    both[1].send_signal(signal.SIGTERM)
    assert ends(both[1])[0] == 83


# Rank 1 is lost with its launcher; rank 0 dies of it before anybody has told its launcher.
BREAKS = """
import os, socket, sys
import rallypoint
me = rallypoint.worker()
print("works", flush=True)
if me.world_size == 2:
    if me.rank == 1:
        listener = socket.create_server(("127.0.0.1", 0))
        me.store.set("port", str(listener.getsockname()[1]))
        listener.accept()[0].recv(1)
    else:
        line = socket.create_connection(("127.0.0.1", int(me.store.get("port"))))
        print("paired", flush=True)
        if not line.recv(1):
            raise ConnectionResetError("Connection closed by peer")
"""


def test_a_worker_that_dies_of_a_lost_peer_is_not_charged(launch: Launch) -> None:
    port = free_port()
    arguments = (*meeting(port, "1:2"), "--max-restarts", "0", "--", sys.executable, "-c", BREAKS)
    both = [launch(*arguments) for _ in range(2)]
    works(*both)
    by_rank = sorted(both, key=lambda launcher: "node is 0 of 2" not in read_round(launcher))
    assert by_rank[0].stdout is not None
    assert by_rank[0].stdout.readline().endswith("paired\n")
    by_rank[1].kill()
    code, out, err = ends(by_rank[0])
    assert code == 0, err
    assert out == "works\n"
    assert "failed because of that: it is not charged" in err or "is over" in err


def read_round(launcher: subprocess.Popen[str]) -> str:
    assert launcher.stderr is not None
    return next(line for line in launcher.stderr if "this node is" in line)


def test_before_a_restart_the_old_processes_are_gone(launch: Launch, tmp_path: Path) -> None:
    left = tmp_path / "left"
    program = f"""
import os, subprocess, sys, time
from pathlib import Path
left = Path({str(left)!r})
if left.exists():
    print("still there" if Path("/proc", left.read_text()).exists() else "gone")
    sys.exit(0)
left.write_text(str(subprocess.Popen(["setsid", "sleep", "600"]).pid))
sys.exit(5)
"""
    code, out, err = ends(launch("--", sys.executable, "-c", program))
    assert (code, out) == (0, "gone\n"), err


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_same_failure_in_a_row_ends_the_run_wherever_it_happens(launch: Launch, nodes: int) -> None:
    program = """
import os
print("works", flush=True)
if int(os.environ["RANK"]) == int(os.environ["RALLYPOINT_ROUND"]) % int(os.environ["WORLD_SIZE"]):
    raise ValueError(f"loss is nan in {object()}")
import time
time.sleep(600)
"""
    limits = ("--max-restarts", "50", "--no-progress", "3", "--grace", "5")
    port = free_port()
    all_of_them = [
        launch(*meeting(port, str(nodes)), *limits, "--", sys.executable, "-c", program) for _ in range(nodes)
    ]
    for code, out, err in map(ends, all_of_them):
        assert code == 1
        assert out.count("works") == 3, err
    assert re.search(r"the same failure came 3 times in a row: .*ValueError: loss is nan .*\(<string>, line 5\)", err)


def test_only_crashes_within_the_window_count(launch: Launch, tmp_path: Path) -> None:
    count = tmp_path / "count"
    # Four crashes, each later than the window is long, and each with words of its own.
    program = f"echo x >> {count}; n=$(wc -l < {count}); [ $n = 4 ] && exit 0; sleep 0.6; echo crash $n >&2; exit 3"
    limits = ("--max-restarts", "1", "--no-progress", "0")
    code, _, err = ends(launch(*limits, "--restart-window", "0.5s", "--", "sh", "-c", program))
    assert code == 0, err
    count.unlink()
    code, _, err = ends(launch(*limits, "--restart-window", "60s", "--", "sh", "-c", program))
    assert code == 3
    assert "all 1 restarts are used up within 60 s" in err


def test_output_goes_where_torchruns_options_send_it(launch: Launch, tmp_path: Path) -> None:
    script = "echo out $RANK; echo err $RANK >&2"
    shared = ("--nproc-per-node", "2")
    code, out, err = ends(
        launch(*shared, "--log-dir", str(tmp_path), "-r", "0:3,1:1", "-t", "1:2", "--", "sh", "-c", script)
    )
    assert (code, out) == (0, "")
    assert [line for line in err.splitlines() if line.startswith("[")] == ["[1] err 1"]
    assert (tmp_path / "latest" / "rank-0.stderr.log").read_text() == "err 0\n"
    assert (tmp_path / "latest" / "rank-1.stderr.log").read_text() == "err 1\n"
    for filtered in ("--show-ranks", "--local-ranks-filter"):
        code, out, _ = ends(launch(*shared, filtered, "1", "--", "sh", "-c", script))
        assert (code, out) == (0, "[1] out 1\n")


def test_redirected_output_is_never_lost_for_want_of_a_folder(launch: Launch, tmp_path: Path) -> None:
    code, out, err = ends(launch("--redirects", "3", "--", "sh", "-c", "echo kept", TMPDIR=str(tmp_path)))
    assert (code, out) == (0, "")
    folder = re.search(r"the logs are in (\S+):", err)
    assert folder is not None, err
    assert (Path(folder[1]) / "latest" / "rank-0.stdout.log").read_text() == "kept\n"


def test_a_token_that_is_wrong_is_a_refusal(launch: Launch, tmp_path: Path) -> None:
    tokens = []
    for number in range(2):
        tokens.append(tmp_path / f"token{number}")
        made = subprocess.run(
            [sys.executable, "-m", "rallypoint", "token", "--new"], check=True, capture_output=True, timeout=60
        )
        tokens[-1].write_bytes(made.stdout)
        tokens[-1].chmod(0o600)
    port = free_port()
    first, second = (
        ("--nnodes", "1:2", "--rdzv", f"127.0.0.1:{port}", "--rdzv-conf", f"{SETTINGS},token_file={token}")
        for token in tokens
    )
    serving = launch(*first, *WORKS)
    works(serving)
    code, _, err = ends(launch(*second, *WORKS))
    assert code == 81, err
    assert "token" in err
    serving.send_signal(signal.SIGTERM)
    assert ends(serving)[0] == 83


def test_the_document_has_every_code_and_its_recipes_do_as_it_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "launcher.md").read_text()
    chapter = text.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    advice = {
        int(code): again.strip() for code, again in re.findall(r"^\| (\d+) \|.*\|([^|]*)\|$", chapter, re.MULTILINE)
    }
    assert set(advice) == set(LaunchExit)
    recipe = dict(re.findall(r"action: (\w+), .*values: \[([\d, ]+)\]", chapter))
    codes = {action: {int(code) for code in listed.split(",")} for action, listed in recipe.items()}
    assert codes["Ignore"] == {code for code, again in advice.items() if again == "yes"}
    assert codes["FailJob"] == {code for code, again in advice.items() if again.startswith(("no", "not"))}
    (requeued,) = re.findall(r"\[ \$code = (\d+) \] && scontrol requeue", chapter)
    assert int(requeued) == LaunchExit.PREEMPTED


def test_the_launcher_imports_no_torch(launch: Launch) -> None:
    program = (
        "import sys\nfrom rallypoint.cli import main\ncode = main(['run', '--', 'true'])\n"
        "print(code, sorted(name for name in ('torch', 'grpc', 'rich') if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=os.environ
    )
    assert done.stdout == "0 []\n"
