"""Where `rallypoint.elastic` differs from `torch.distributed.elastic.rendezvous`, and why: each line has a test."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """What is done, what torch 2.13 does then, what ours does, and the reason."""

    what: str
    torch: str
    ours: str
    why: str


DIFFERENCES: dict[str, Difference] = {
    "document": Difference(
        "the document in a backend",
        "a pickle",
        "versioned JSON; a pickle is a `RendezvousStateError`",
        "loading a pickle runs whatever is in it; so nodes of the two cannot share a run here",
    ),
    "loss": Difference(
        "`num_nodes_waiting()` after a member died",
        "0: nobody is told; the workers find out by failing",
        "1 on every survivor: within 0.2 s where its process ended, after the heartbeat time-out where it is silent",
        "a loss is an event (rule 6)",
    ),
    "surplus of a failed run": Difference(
        "a surplus node, when the run is closed by `set_closed()`",
        "`RendezvousGracefulExitError`",
        "`RendezvousClosedError`; the other only where the run ended well",
        "a spare of a job that failed has not succeeded (rule 7)",
    ),
    "shutdown": Difference(
        "`shutdown()` of one of several nodes",
        "closes the run for all of them",
        "leaves: as finished, or as withdrawn with an exception under way; the run closes when all have finished",
        "leaving is not closing (rule 8)",
    ),
    "stranger's shutdown": Difference(
        "`shutdown()` of a handler that never joined",
        "closes the run",
        "does nothing",
        "it took no part in it (rule 8)",
    ),
    "reuse": Difference(
        "a fresh node at a run that was closed and left by all",
        "`RendezvousClosedError` for ever",
        "a new incarnation of the run starts; while a node of the old one lives, `RendezvousClosedError`",
        "a job id may be used again (rule 1)",
    ),
    "bounds": Difference(
        "a node that asks for other `min_nodes` or `max_nodes`",
        "joins by its own numbers",
        "`RendezvousError` with both shown",
        "a run has one size (rule 1)",
    ),
    "away": Difference(
        "`next_rendezvous()` while the backend is out of reach",
        "`RendezvousConnectionError` at once",
        "waits for it until `join_timeout`, then `RendezvousTimeoutError` with the cause in words",
        "a server that starts late is waited for (rule 13)",
    ),
    "away at the end": Difference(
        "`set_closed()` while the backend is out of reach",
        "`RendezvousConnectionError` at once",
        "tries again until `close_timeout`, then `RendezvousConnectionError` with the cause in words",
        "as above",
    ),
    "slow at the end": Difference(
        "`set_closed()` on a backend that does not answer within `close_timeout`",
        "`RendezvousTimeoutError`",
        "`RendezvousConnectionError`",
        "no server was found, and the sentence says what was tried",
    ),
    "away in between": Difference(
        "`is_closed()` and `num_nodes_waiting()` while the backend is out of reach",
        "`RendezvousConnectionError`",
        "what the node knows, from memory",
        "an outage of the medium is no reason to end workers (rule 14)",
    ),
    "waiting unjoined": Difference(
        "`num_nodes_waiting()` of a handler that never joined",
        "reads the backend",
        "0, from memory",
        "it never blocks (rule 6b)",
    ),
    "prefix": Difference(
        "the prefix of a round's store",
        "`torch.rendezvous.<run_id>.<round>`",
        "`torch.rendezvous.<run_id>.<incarnation>.<round>`",
        "a run that is started again must not see old keys (rule 3)",
    ),
    "keep-alive": Difference(
        "`keep_alive_interval` or `keep_alive_max_attempt` of 0",
        "accepted",
        "`ValueError`",
        "every node would be lost between two beats",
    ),
    "fractions": Difference(
        "a time-out of `1.5` as text",
        "`ValueError`",
        "a second and a half",
        "seconds are not always whole",
    ),
    "bare IPv6": Difference(
        "an endpoint that is an IPv6 address with neither brackets nor a port, such as `2001:db8::1`",
        "host `2001:db8:`, port 1",
        "`ValueError`: brackets tell the address from its port",
        "no such host exists, and the job would look for it until its time-out",
    ),
    "blank path": Difference(
        "`store_type=file` with a blank endpoint",
        "a file whose name is blanks, in the working directory",
        "a private temporary file, as without one",
        "nobody means that",
    ),
    "missing folder": Difference(
        "`store_type=file` with a path whose folder does not exist",
        "waits for the folder; after 300 s `RendezvousConnectionError`",
        "`RendezvousError` at once, which names the folder",
        "it is nearly always a typing error, and a job should not stand still for five minutes over one",
    ),
    "nameless machine": Difference(
        "`c10d` where this machine's own name cannot be looked up",
        "`socket.gaierror`",
        "goes on: whether the endpoint is this machine is asked of the kernel",
        "a missing line in `/etc/hosts` is no reason to stay away",
    ),
    "empty prefix": Difference(
        "the option `etcd_prefix` of the backend `etcd`, given as an empty text",
        "runs lie in etcd's root directory",
        "as not given: `/torchelastic/p2p`; `/` is the root directory",
        "an empty value means that nothing was given, as with the certificates",
    ),
    "static rank": Difference(
        "`static` with a rank outside the world",
        "accepted",
        "`ValueError`",
        "the workers would wait for each other for ever",
    ),
}

START = "<!-- differences: written by tests/interop, from differences.py -->"
END = "<!-- end of differences -->"


def table() -> str:
    """The differences as the page shows them."""
    lines = ["| what | torch 2.13 | rallypoint | why |", "|---|---|---|---|"]
    lines += [f"| {d.what} | {d.torch} | {d.ours} | {d.why} |" for d in DIFFERENCES.values()]
    return "\n".join([START, *lines, END])
