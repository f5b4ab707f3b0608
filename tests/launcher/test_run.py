"""`rallypoint run` as a new user would use it: real commands, real kills, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rallypoint.launcher.guard import descendants
from rallypoint.launcher.start import own_endpoint
from rallypoint.net import listen
from tests.launcher.conftest import Launch
from tests.support.node_processes import free_port
from tests.support.waiting import PATIENCE_S, until

SETTINGS = "last_call_timeout=0.2,heartbeat_timeout=5,join_timeout=60"


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@contextmanager
def nothing_left(*launchers: subprocess.Popen[str]) -> Iterator[list[int]]:
    """All processes below these launchers, which must be gone when the block is over."""
    everything = [pid for launcher in launchers for pid in descendants(launcher.pid)]
    yield everything
    until(lambda: not any(is_alive(pid) for pid in everything), "everything is gone")


def is_alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


# One machine ----------------------------------------------------------------------------------------------------------


def test_one_command_and_nothing_else_to_say(launch: Launch) -> None:
    code, out, _ = ends(launch("--", sys.executable, "-c", "import os; print('rank', os.environ['RANK'])"))
    assert (code, out) == (0, "rank 0\n")


def test_the_port_of_a_run_on_one_machine_is_held_until_its_server_has_it() -> None:
    """Two that start at once must not meet."""
    with socket.socket() as held, socket.socket() as other:
        port = int(own_endpoint(held).rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen("127.0.0.1", port).close()


def test_every_worker_knows_its_place(launch: Launch) -> None:
    script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MINE"
    code, out, _ = ends(launch("--nproc-per-node", "3", "--env", "MINE=w{rank}", "--", "sh", "-c", script))
    assert code == 0
    assert sorted(out.splitlines()) == [f"[{n}] {n}/3 {n}/3 0 w{n}" for n in range(3)]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)])
def test_the_exit_code_is_that_of_the_worker(launch: Launch, script: str, code: int) -> None:
    ended, _, err = ends(launch("--max-restarts", "0", "--", "sh", "-c", script))
    assert ended == code
    assert "failed" in err


def test_a_crash_is_followed_by_another_start(launch: Launch, tmp_path: Path) -> None:
    script = f"echo $TORCHELASTIC_RESTART_COUNT; test -e {tmp_path}/second || {{ touch {tmp_path}/second; exit 5; }}"
    code, out, err = ends(launch("--", "sh", "-c", script))
    assert (code, out) == (0, "0\n1\n")
    assert "restart 1 of 3" in err


def test_the_same_failure_again_and_again_ends_it(launch: Launch) -> None:
    code, _, err = ends(
        launch("--max-restarts", "50", "--no-progress", "2", "--", "sh", "-c", "echo broken >&2; exit 4")
    )
    assert code == 4
    assert "the same failure came 2 times in a row" in err


def test_output_before_a_death_is_never_lost(launch: Launch) -> None:
    program = "import os, sys; sys.stdout.write(('x' * 999 + '\\n') * 200 + 'last'); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    code, out, _ = ends(launch("--max-restarts", "0", "--", sys.executable, "-c", program))
    assert code == 137
    assert out == ("x" * 999 + "\n") * 200 + "last\n"


def test_a_terminal_that_nobody_reads_stalls_no_worker(launch: Launch, tmp_path: Path) -> None:
    program = "import sys; sys.stdout.write(('x' * 999 + '\\n') * 4000); sys.stdout.flush(); open(sys.argv[1], 'w')"
    launcher = launch("--", sys.executable, "-c", program, str(tmp_path / "written"))
    until((tmp_path / "written").exists, "the worker has written all of it")
    code, out, _ = ends(launcher)
    assert code == 0
    assert out == ("x" * 999 + "\n") * 4000


def test_logs_go_to_files_by_rank_and_round(launch: Launch, tmp_path: Path) -> None:
    code, out, _ = ends(
        launch(
            "--nproc-per-node",
            "2",
            "--log-dir",
            str(tmp_path),
            "--redirects",
            "1",
            "--",
            "sh",
            "-c",
            "echo hi; echo oh >&2",
        )
    )
    assert (code, out) == (0, "")
    assert (tmp_path / "latest" / "rank-1.stdout.log").read_text() == "hi\n"
    (round_folder,) = tmp_path.glob("round-1-*")
    assert (round_folder / "rank-0.stderr.log").read_text() == "oh\n"


def test_a_worker_of_ours_finds_its_place_and_its_store(launch: Launch) -> None:
    program = """
import rallypoint
me = rallypoint.worker()
me.store.set(f"from {me.rank}", str(me.rank))
print(me.rank, me.world_size, me.round, me.store.get(f"from {1 - me.rank}").decode(), len(me.peers()))
"""
    code, out, err = ends(launch("--nproc-per-node", "2", "--", sys.executable, "-c", program))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] 0 2 1 1 1", "[1] 1 2 1 0 1"]


def test_a_program_that_was_not_started_that_way_is_told_so() -> None:
    import rallypoint

    with pytest.raises(RuntimeError, match="not started by `rallypoint run`"):
        rallypoint.worker({})


# Signals --------------------------------------------------------------------------------------------------------------

TRAPS = """
import os, signal, sys, time
def heard(number, frame):
    print("heard", signal.Signals(number).name, flush=True)
    if number in (signal.SIGTERM, signal.SIGINT):
        sys.exit(0)
for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), heard)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 83), (signal.SIGINT, 130), (signal.SIGHUP, 83)])
def test_a_signal_that_ends_it_reaches_the_workers_first(launch: Launch, number: int, code: int) -> None:
    launcher = launch("--", sys.executable, "-c", TRAPS)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    with nothing_left(launcher):
        launcher.send_signal(number)
        ended, out, _ = ends(launcher)
    assert ended == code
    if number != signal.SIGHUP:
        assert out == f"heard {signal.Signals(number).name}\n"


def test_other_signals_are_passed_on(launch: Launch) -> None:
    launcher = launch("--", sys.executable, "-c", TRAPS)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        launcher.send_signal(number)
        assert launcher.stdout.readline() == f"heard {number.name}\n"
    launcher.send_signal(signal.SIGTERM)
    assert ends(launcher)[0] == 83


def test_a_worker_that_does_not_heed_is_killed_after_the_grace(launch: Launch) -> None:
    launcher = launch("--grace", "0.5s", "--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    with nothing_left(launcher):
        launcher.send_signal(signal.SIGTERM)
        assert ends(launcher)[0] == 83


def test_a_second_interrupt_hurries(launch: Launch) -> None:
    launcher = launch("--grace", "600s", "--", "sh", "-c", "trap 'echo no' INT; echo ready; while :; do sleep 1; done")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    with nothing_left(launcher):
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout.readline() == "no\n"
        launcher.send_signal(signal.SIGINT)
        assert ends(launcher)[0] == 130


def test_what_was_ignored_stays_so_as_under_nohup(launch: Launch) -> None:
    program = (
        f"import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv({sys.executable!r}, sys.argv[1:])"
    )
    command = [sys.executable, "-m", "rallypoint", "run", "--", sys.executable, "-c", TRAPS]
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import sys; {program}", *command], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGHUP)
    launcher.send_signal(signal.SIGUSR1)
    assert launcher.stdout.readline() == "heard SIGUSR1\n"
    launcher.send_signal(signal.SIGTERM)
    assert ends(launcher)[0] == 83


@pytest.mark.parametrize("victim", ["launcher", "guard"])
def test_nothing_is_left_after_kill_9(launch: Launch, victim: str) -> None:
    launcher = launch("--", "sh", "-c", "setsid sleep 600 & echo ready; sleep 600")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    until(lambda: len(descendants(launcher.pid)) == 4)
    with nothing_left(launcher) as everything:
        os.kill(launcher.pid if victim == "launcher" else min(everything), signal.SIGKILL)
        launcher.wait(PATIENCE_S)


# Several nodes --------------------------------------------------------------------------------------------------------

COUNTS = """
import os, sys, time
print("start", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


def started(launcher: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Rank, size and restarts of a worker that has just started."""
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    match = re.search(r"start (\d+) (\d+) (\d+)", line)
    assert match is not None, line
    return int(match[1]), int(match[2]), int(match[3])


def node(launch: Launch, port: int, stop: Path, nodes: str, *more: str) -> subprocess.Popen[str]:
    return launch(
        "--nnodes", nodes, "--rdzv", f"127.0.0.1:{port}", "--run-id", "job", "--rdzv-conf", SETTINGS, *more, "--",
        sys.executable, "-c", COUNTS, str(stop),
    )  # fmt: skip


def test_nodes_meet_and_end_together(launch: Launch, tmp_path: Path) -> None:
    port, stop = free_port(), tmp_path / "stop"
    nodes = [node(launch, port, stop, "3") for _ in range(3)]
    assert sorted(started(launcher) for launcher in nodes) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    stop.touch()
    assert [ends(launcher)[0] for launcher in nodes] == [0, 0, 0]


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_go_on_with_new_ranks_and_are_not_charged(launch: Launch, tmp_path: Path, victim: int) -> None:
    port, stop = free_port(), tmp_path / "stop"
    nodes = [node(launch, port, stop, "2:3", "--max-restarts", "0") for _ in range(3)]
    ranks = {started(launcher)[0]: launcher for launcher in nodes}
    with nothing_left(ranks[victim]):
        ranks[victim].kill()
    survivors = [launcher for rank, launcher in ranks.items() if rank != victim]
    assert sorted(started(launcher) for launcher in survivors) == [(0, 2, 0), (1, 2, 0)]
    stop.touch()
    assert [ends(launcher)[0] for launcher in survivors] == [0, 0]


def test_a_newcomer_is_let_in(launch: Launch, tmp_path: Path) -> None:
    port, stop = free_port(), tmp_path / "stop"
    first = node(launch, port, stop, "1:2")
    assert started(first) == (0, 1, 0)
    second = node(launch, port, stop, "1:2")
    assert sorted([started(first), started(second)]) == [(0, 2, 0), (1, 2, 0)]
    stop.touch()
    assert [ends(launcher)[0] for launcher in (first, second)] == [0, 0]


def test_a_wait_says_what_it_waits_for_and_a_time_out_has_a_code_of_its_own(launch: Launch) -> None:
    conf = "join_timeout=4,last_call_timeout=0.2"
    code, _, err = ends(
        launch("--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--rdzv-conf", conf, "--", "true")
    )
    assert code == 80
    assert "waiting for 2 s" in err
    assert "1 of 2 nodes is here" in err
    assert "was not joined within" in err


def test_nodes_with_unequal_numbers_of_workers_share_one_row_of_ranks(launch: Launch) -> None:
    port = free_port()
    shared = ("--nnodes", "2", "--rdzv", f"127.0.0.1:{port}", "--rdzv-conf", SETTINGS)
    one = launch(*shared, "--nproc-per-node", "1", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    two = launch(*shared, "--nproc-per-node", "3", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    lines = ends(one)[1].splitlines() + ends(two)[1].splitlines()
    assert sorted(line.partition("] ")[2] for line in lines) == [f"rank {n} of 4" for n in range(4)]


def test_a_shell_that_ends_at_once_does_not_cost_its_program_the_grace(launch: Launch, tmp_path: Path) -> None:
    program = (
        f"trap 'sleep 1; echo saved > {tmp_path}/checkpoint; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    )
    launcher = launch("--grace", "20s", "--", "sh", "-c", f'sh -c "{program}" & wait')
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGTERM)
    assert ends(launcher)[0] == 83
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


def test_the_cause_on_the_same_node_is_named_although_it_ended_later(launch: Launch) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0': raise ConnectionResetError('Connection closed by peer')\n"
        "time.sleep(0.7)\nraise ValueError('loss is nan')"
    )
    code, _, err = ends(launch("--nproc-per-node", "2", "--max-restarts", "0", "--", sys.executable, "-c", script))
    assert code == 1
    assert re.search(r"rank 1 on \S+ failed first: it .*ValueError: loss is nan", err), err


def test_a_launcher_inside_a_worker_does_not_join_the_outer_run(launch: Launch) -> None:
    inner = f"{sys.executable} -m rallypoint run --dry-run -- true"
    code, out, _ = ends(launch("--", "sh", "-c", inner, RALLYPOINT_NNODES="1:1", RALLYPOINT_RUN_ID="outer"))
    assert code == 0
    assert "1 node meets at a free port of this machine as run 'run'" in out


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no command"),
        (["--", "no-such-command"], "there is no command 'no-such-command' on the PATH"),
        (["--", "/etc/passwd"], "cannot be executed: chmod"),
        (["missing.py"], "the script 'missing.py' does not exist"),
        (["--nnodes", "3:2", "--", "true"], "--nnodes should be a number of nodes"),
        (["--nnodes", "2", "--", "true"], "several nodes need a place to meet"),
        (["--nproc-per-node", "many", "--", "true"], "--nproc-per-node should be auto, cpu, gpu"),
        (["--nproc-per-node", "gpu", "--", "true"], "no GPU that can be seen"),
        (["--pin", "gpu", "--", "true"], "no GPU that can be seen"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv", "h:1", "--", "true"], "--node-rank 2 does not exist"),
        (["--standalone", "--nnodes", "2", "--", "true"], "--standalone is one node"),
        (["--log-dir", "/proc/nowhere", "--", "true"], "--log-dir /proc/nowhere cannot be written"),
        (["--env", "X={rnk}", "--", "true"], r"did you mean \{rank\}"),
        (["--rdzv", "h:1", "--rdzv-endpoint", "h:1", "--", "true"], "give one of them"),
        (["--rdzv-backend", "c10", "--", "true"], "should be one of"),
        (["--config", "/nowhere.toml", "--", "true"], "/nowhere.toml cannot be read"),
        (["--rdzv-conf", "join_timout=3", "--", "true"], "has no option 'join_timout'"),
        (["--rdzv", "etdc://h", "--nnodes", "2", "--", "true"], "begins with etdc://, which is unknown"),
    ],
)
def test_bad_input_gets_a_sentence_before_anything_starts(launch: Launch, arguments: list[str], sentence: str) -> None:
    code, out, err = ends(launch(*arguments, CUDA_VISIBLE_DEVICES=""))
    assert (code, out) == (2, "")
    assert re.search(sentence, err)


def test_a_file_has_the_options_by_name(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('nproc_per_node = 2\nenv = ["A={rank}"]\n')
    code, out, _ = ends(launch("--config", str(file), "--", "sh", "-c", "echo $A"))
    assert (code, sorted(out.splitlines())) == (0, ["[0] 0", "[1] 1"])
    file.write_text("nproc_per_nod = 2\n")
    code, _, err = ends(launch("--config", str(file), "--", "true"))
    assert code == 2
    assert "has the key 'nproc_per_nod', which is no option; did you mean 'nproc_per_node'?" in err


def test_a_dry_run_says_what_would_happen_and_why(launch: Launch) -> None:
    code, out, _ = ends(
        launch("--dry-run", "--", "true", PET_NNODES="2:4", PET_RDZV_ENDPOINT="host:29400", RALLYPOINT_RUN_ID="job")
    )
    assert code == 0
    assert "2 to 4 nodes meet at host:29400 as run 'job'" in out
    assert "nnodes: from PET_NNODES" in out


def test_a_dry_run_leaves_nothing_behind(launch: Launch, tmp_path: Path) -> None:
    code, _, err = ends(launch("--dry-run", "--log-dir", str(tmp_path / "logs" / "today"), "--", "true"))
    assert code == 0, err
    assert list(tmp_path.iterdir()) == []


def test_slurm_needs_no_flags(launch: Launch) -> None:
    code, out, _ = ends(
        launch(
            "--dry-run", "--", "true",
            SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="4", SLURM_STEP_NUM_NODES="4",
            SLURM_STEP_NODELIST="gpu[1-4]", SLURM_PROCID="1",
        )
    )  # fmt: skip
    assert code == 0
    assert "4 nodes meet at gpu1:20049 as run 'slurm-7.0'" in out


def test_a_line_for_torchrun_works_with_the_name_changed(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys, json; print(json.dumps([sys.argv[1:], os.environ['WORLD_SIZE']]))")
    code, out, _ = ends(launch("--standalone", "--nnodes=1", "--nproc_per_node=2", str(script), "--lr", "3"))
    assert code == 0
    assert sorted(out.splitlines()) == [f"[{rank}] " + json.dumps([["--lr", "3"], "2"]) for rank in range(2)]


# The verdict ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "an exception": ("raise ValueError('loss is nan')", 1, "ValueError: loss is nan"),
    "an exit code": ("sys.exit(17)", 17, "ended with code 17"),
    "an abort": ("os.abort()", 134, "was ended by SIGABRT"),
    "a segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was ended by SIGSEGV"),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL"),
}
# Rank 0 talks to rank 1, and dies of the reset when rank 1 is gone.
PAIR = """
import os, signal, socket, sys, time
import rallypoint
me = rallypoint.worker()
if me.rank == 1:
    listener = socket.create_server(("127.0.0.1", 0))
    me.store.set("port", str(listener.getsockname()[1]))
    peer, _ = listener.accept()
    peer.recv(1)
    FAULT
line = socket.create_connection(("127.0.0.1", int(me.store.get("port"))))
line.sendall(b"x")
if not line.recv(1):
    raise ConnectionResetError("Connection closed by peer")
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_every_node_names_the_rank_that_failed_first(launch: Launch, fault: str) -> None:
    statement, code, words = FAULTS[fault]
    port = free_port()
    shared = ("--nnodes", "2", "--rdzv", f"127.0.0.1:{port}", "--rdzv-conf", SETTINGS, "--max-restarts", "0")
    program = PAIR.replace("FAULT", statement)
    nodes = [launch(*shared, "--", sys.executable, "-c", program) for _ in range(2)]
    for ended, _, err in map(ends, nodes):
        assert ended == code, err
        assert re.search(rf"rank 1 on \S+ failed first: it .*{words}", err), err
        assert "rank 0 failed only because of it" in err
