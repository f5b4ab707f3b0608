"""`evict` and `close` on real processes: who is evicted stays out and is told so; a closed run's id is free at once."""

import re
import signal

import pytest

from tests.support.cli_processes import Process, Started, answer, answer_json, cli, free_port, refused, start_node

WHY = "its network card fails"


@pytest.fixture
def pair(endpoint: str, started: Started) -> tuple[Process, Process]:
    """Two nodes of run `llama` in a world."""
    first, second = (started.add(start_node(endpoint, "llama", name, "1:2")) for name in ("node1", "node2"))
    for node in (first, second):
        node.expect('"placed", "round": 1, .*"size": 2')
    return first, second


def test_an_evicted_node_stays_out_until_it_is_let_in(pair: tuple[Process, Process], endpoint: str) -> None:
    node, evicted = pair
    told = answer("evict", "llama", "node2", "--for", "2h", "--why", WHY, "--endpoint", endpoint)
    assert told == "node 'node2' was evicted from run 'llama' and is kept out for 2 h\n"
    evicted.expect('"changed"')
    node.expect('"placed", "round": 2, .*"size": 1')
    status = answer("status", "llama", "--endpoint", endpoint)
    assert "round 2 runs with 1 node (node2 is kept out by an administrator)\n" in status
    assert re.search(
        rf"^node2 +evicted, kept out for another (2 h|1 h 59 min): {WHY} +127\.0\.0\.1 +node2\.", status, re.MULTILINE
    )
    (out,) = answer_json("status", "llama", "--endpoint", endpoint)["kept_out"]
    assert (out["name"], out["address"], out["why"]) == ("node2", "127.0.0.1", WHY)
    assert 7000 < out["left_s"] <= 7200
    told = answer("evict", "llama", "node2", "--lift", "--endpoint", endpoint)
    assert told == "node 'node2' may join run 'llama' again\n"
    for member in pair:
        member.expect('"placed", "round": 3, .*"size": 2')
    assert answer_json("status", "llama", "--endpoint", endpoint)["kept_out"] == []


def test_an_evicted_node_comes_back_when_its_time_is_over(pair: tuple[Process, Process], endpoint: str) -> None:
    answer("evict", "llama", "node2", "--for", "1s", "--endpoint", endpoint)
    pair[0].expect('"placed", "round": 2, .*"size": 1')
    for member in pair:
        member.expect('"placed", "round": 3, .*"size": 2')


def test_without_a_time_it_may_come_straight_back(pair: tuple[Process, Process], endpoint: str) -> None:
    told = answer("evict", "llama", "node2", "--for", "0", "--endpoint", endpoint)
    assert told == "node 'node2' was evicted from run 'llama' and may come straight back\n"
    for member in pair:
        member.expect('"changed"')
        member.expect('"placed"')


def test_a_restarted_process_is_told_why_it_does_not_get_in(
    pair: tuple[Process, Process], endpoint: str, started: Started
) -> None:
    node, evicted = pair
    answer("evict", "llama", "node2", "--for", "10m", "--why", WHY, "--endpoint", endpoint)
    evicted.end()
    node.expect('"placed", "round": 2, .*"size": 1')
    restarted = started.add(
        Process(
            "-c",
            "import rallypoint\n"
            f"rallypoint.join({endpoint!r}, run='llama', nodes='1:2', node_name='node2', is_host=False, join_timeout=1)\n",
        )
    )
    restarted.expect(
        rf"RendezvousTimeoutError: run 'llama' at \S+ was not joined within 1\.\d s: node2 was evicted by an administrator "
        rf"\({WHY}\) and is kept out for another (10 min|9 min \d+ s)$",
        "stderr",
    )
    nodes = answer_json("status", "llama", "--endpoint", endpoint)["nodes"]
    assert [known["name"] for known in nodes if known["rank"] is not None] == ["node1"]
    started.add(start_node(endpoint, "llama", "node3", "1:2")).expect('"placed", "round": 3, .*"size": 2')


def test_every_eviction_lasts_longer(pair: tuple[Process, Process], endpoint: str) -> None:
    for time in ("30 s", "1 min", "2 min"):
        told = answer("evict", "llama", "node2", "--endpoint", endpoint)
        assert told == f"node 'node2' was evicted from run 'llama' and is kept out for {time}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--for", "soon"),
            "argument --for: 'soon' is not a time: write a number and s, m, h or d behind it, such as 30s",
        ),
        (("--for", "1e3"), "argument --for: '1e3' is not a time"),
        (("--for", "366d"), "argument --for: '366d' is not a time"),
        (("--for=-1s",), "argument --for: '-1s' is not a time"),
        (("--for", "1m", "--lift"), "argument --lift: not allowed with argument --for"),
        (("--why", "x", "--lift"), "--why is the reason of an eviction, and --lift ends one: leave --why out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_arguments_are_refused_in_words(arguments: tuple[str, ...], sentence: str) -> None:
    done = cli("evict", "llama", "node2", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_node_that_is_not_there(node: Process, endpoint: str) -> None:
    assert refused("evict", "llama", "node7", "--endpoint", endpoint) == (
        f"there is no node 'node7' in run 'llama' (it has node1) at {endpoint}"
    )
    assert refused("evict", "llama", "node1", "--lift", "--endpoint", endpoint) == (
        f"node 'node1' is not kept out of run 'llama' by an eviction (nobody is) at {endpoint}"
    )


def test_the_id_of_a_closed_run_is_free_when_its_members_have_exited(
    pair: tuple[Process, Process], endpoint: str, started: Started
) -> None:
    answer("close", "llama", "--why", "the budget is spent", "--endpoint", endpoint)
    for member in pair:
        member.expect("run 'llama' is closed as failed: the budget is spent", "stderr")
        assert member.ends() == 1
    # A node that comes while a member is still counted is told that the run is closed, and ends.
    alone = started.add(start_node(endpoint, "llama", "node3", "1"))
    alone.expect('"placed", "round": 2, .*"size": 1')


def test_the_id_of_a_closed_run_is_free_when_its_members_were_killed(
    pair: tuple[Process, Process], endpoint: str, server: Process, started: Started
) -> None:
    for member in pair:
        member.popen.send_signal(signal.SIGSTOP)  # they cannot say goodbye
    answer("close", "llama", "--endpoint", endpoint)
    for member in pair:
        member.popen.kill()
    server.expect("node1 was lost: its connection ended and did not come back within 0.15 s", "stderr")
    alone = started.add(start_node(endpoint, "llama", "node3", "1"))
    alone.expect('"placed", "round": 2, .*"size": 1')


def test_a_server_that_a_node_hosts_is_administered_on_its_machine(started: Started) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    program = (
        "import rallypoint\n"
        f"with rallypoint.join({endpoint!r}, run='job', nodes='1:2', node_name='host', is_host=True, last_call_timeout=0.1) "
        "as place:\n"
        "    while True:\n"
        "        print('placed', place.world_size, flush=True)\n"
        "        place.changed.wait()\n"
        "        place.again()\n"
    )
    host = started.add(Process("-c", program))
    host.expect("placed 1")
    guest = started.add(start_node(endpoint, "job", "guest", "1:2"))
    guest.expect('"placed"')
    host.expect("placed 2")
    at = ("--endpoint", endpoint)
    assert "round 2 runs with 2 nodes" in answer("runs", *at)
    assert [node["name"] for node in answer_json("status", "job", *at)["nodes"]] == ["host", "guest"]
    answer("evict", "job", "guest", "--for", "1h", *at)
    host.expect("placed 1")
    assert refused("status", "other", *at) == f"there is no run 'other' at {endpoint}"
    answer("close", "job", "--why", "the budget is spent", *at)
    host.expect("RendezvousClosedError: run 'job' is closed as failed: the budget is spent", "stderr")
    guest.expect("run 'job' is closed as failed: the budget is spent", "stderr")
