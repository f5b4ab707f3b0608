"""The commands of a virtual cluster: one line each, the same in scenario files and schedules.

start NAME [spare] [rank=N] [topology=PATH] [address=A] [stop=S] [timeout=S] [rate=R] [bounds=MIN:MAX]
           [heartbeat=INTERVAL:TIMEOUT]
kill NAME | vanish NAME          its process dies, and the connection's end is seen, or is not
pause NAMES… | resume NAMES…     SIGSTOP, SIGCONT, of all of them at once; a name may be `server`
cut NAME | mute NAME | heal NAME nothing passes, or nothing reaches the node, until healed
flap NAME LATE_S                 a new connection; the end of the old one is seen so much later
fail NAME                        its workers crash, it rejoins at once
resend NAME                      its join is sent once more
finish NAME | withdraw NAME | give-up NAME
crash | restart                  the server dies, or starts without its memory
close                            somebody closes the run
freeze NAME                      its loop stands still, the thread that renews its lease runs on
hide NAME | refuse NAME          nobody reaches its server; its connections to others are refused
part NAME OTHERS…                nothing passes between it and these others, until it is healed
evict NAME [S]                   an administrator gives it up, and keeps it out for so long (default: 0)
doom NAME record | tell          it dies when its next write is in the register, or right after that was told
unplug NAME                      it cannot reach the register
register away | back | empty | touch | [loss=P] [stale=P] [late=S] [delay=LOW:HIGH]
network [loss=P] [twice=P] [delay=LOW:HIGH]
advance S                        let time pass
show                             where the run stands
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rallypoint.errors import RendezvousStateError
from rallypoint.messages.types import Bounds, Reason, Role
from simulation.agent import Agent
from simulation.cluster import Cluster
from simulation.elected_cluster import ElectedCluster
from simulation.virtual_process import VirtualProcess
from simulation.virtual_time import Process

FAULTS = {
    "kill": "crash of a node",
    "vanish": "crash of a machine",
    "pause": "pause",
    "cut": "partition",
    "mute": "one-way partition",
    "flap": "broken connection",
    "fail": "crash of workers",
    "resend": "repeated join",
    "crash": "crash of the server",
    "stall": "stall of the server",
    "loss": "message loss",
    "twice": "duplication",
    "delay": "delay and reordering",
    "rate": "clock skew",
    "withdraw": "early leave",
    "give-up": "giving up",
    "freeze": "frozen loop, living lease",
    "hide": "wrong address",
    "refuse": "connections refused",
    "unplug": "cut off from the register",
    "part": "server cut off from most",
    "evict": "eviction",
    "doom": "crash around record and tell",
    "away": "register away",
    "empty": "register emptied",
    "touch": "token bumped by others",
    "lost answer": "register's answers lost",
    "stale read": "stale reads",
    "late write": "late writes",
    "slow register": "register calls of seconds",
    "rivals": "two servers alive at once",
    "rest": "unequal rests of claims",
    "heartbeat": "unequal heartbeats",
    "together": "server and node paused",
}


def perform(cluster: Cluster, line: str) -> None:
    """Carry out one command; a word that is not known is a ValueError."""
    verb, *words = line.split()
    if verb not in _VERBS:
        raise ValueError(f"there is no command {verb!r} in {line!r}; there are {', '.join(sorted(_VERBS))}")
    if verb not in ("advance", "show", "restart", "start", "resend"):
        cluster.invariants.disturbed(words[0] if verb in ("kill", "vanish") else "")
    if verb in FAULTS:
        cluster.faults["stall" if verb == "pause" and "server" in words else verb] += 1
    _VERBS[verb](cluster, words)


def parse_bounds(text: str) -> Bounds:
    """`2:4`, or `4` for `4:4`."""
    low, _, high = text.partition(":")
    return Bounds(int(low), int(high or low))


def _range(text: str) -> tuple[float, float]:
    """`0.1:0.5`, or `0.5` for twice the same."""
    low, _, high = text.partition(":")
    return float(low), float(high or low)


def _agent(cluster: Cluster, words: list[str]) -> Agent:
    if not words or words[0] not in cluster.agents:
        raise ValueError(f"there is no node {' '.join(words)!r}; there are {', '.join(cluster.agents) or 'none'}")
    return cluster.agents[words[0]]


def _start(cluster: Cluster, words: list[str]) -> None:
    name, *options = words
    given = dict(option.partition("=")[::2] for option in options)
    if float(given.get("rate", 1)) != 1:
        cluster.faults["rate"] += 1
    cluster.faults["heartbeat"] += "heartbeat" in given
    elected: dict[str, Any] = {}
    if isinstance(cluster, ElectedCluster):
        elected = {"rest_s": float(given["rest"]) if "rest" in given else None, "may_claim": "guest" not in given}
        cluster.faults["rest"] += "rest" in given
    cluster.start(
        name,
        role=Role.SPARE if "spare" in given else Role.MEMBER,
        wanted_rank=int(given["rank"]) if "rank" in given else None,
        topology=given.get("topology", ""),
        address=given.get("address", ""),
        stop_s=float(given.get("stop", 0.05)),
        timeout_s=float(given.get("timeout", 600)),
        rate=float(given.get("rate", 1)),
        bounds=parse_bounds(given["bounds"]) if "bounds" in given else None,
        heartbeat_s=_range(given["heartbeat"]) if "heartbeat" in given else None,
        **elected,
    )


def _kill(cluster: Cluster, words: list[str]) -> None:
    cluster.end_process(_agent(cluster, words), seen=True)


def _vanish(cluster: Cluster, words: list[str]) -> None:
    cluster.end_process(_agent(cluster, words), seen=False)


def _pause(cluster: Cluster, words: list[str]) -> None:
    cluster.faults["together"] += len(words) > 1
    for process in [_process(cluster, name) for name in words]:
        process.stop()


def _resume(cluster: Cluster, words: list[str]) -> None:
    for process in [_process(cluster, name) for name in words]:
        process.resume()


def _process(cluster: Cluster, name: str) -> Process:
    return cluster.coordinator if name == "server" and cluster.coordinator else _agent(cluster, [name])


def _cut(cluster: Cluster, words: list[str]) -> None:
    cluster.network.cut.add(_agent(cluster, words).name)


def _mute(cluster: Cluster, words: list[str]) -> None:
    cluster.network.deaf.add(_agent(cluster, words).name)


def _heal(cluster: Cluster, words: list[str]) -> None:
    name = _agent(cluster, words).name
    cluster.network.cut.discard(name)
    cluster.network.deaf.discard(name)
    if isinstance(cluster, ElectedCluster):
        for trouble in (cluster.hidden, cluster.refusing, cluster.register.cut):
            trouble.discard(name)
        cluster.parted = {pair for pair in cluster.parted if name not in pair}


def _freeze(cluster: Cluster, words: list[str]) -> None:
    peer = _peer(cluster, words)
    peer.frozen = True
    peer.stop()


def _hide(cluster: Cluster, words: list[str]) -> None:
    _elected(cluster).hidden.add(_peer(cluster, words).name)


def _refuse(cluster: Cluster, words: list[str]) -> None:
    peer = _peer(cluster, words)
    _elected(cluster).refusing.add(peer.name)
    cluster.flap(peer, 0.01)


def _part(cluster: Cluster, words: list[str]) -> None:
    peer, others = _peer(cluster, words), [_peer(cluster, [name]) for name in words[1:]]
    _elected(cluster).elected_invariants.parted(peer, others)
    _elected(cluster).parted |= {frozenset((peer.name, other.name)) for other in others}


def _doom(cluster: Cluster, words: list[str]) -> None:
    _elected(cluster).doomed[_peer(cluster, words).name] = words[1]


def _evict(cluster: Cluster, words: list[str]) -> None:
    _elected(cluster).evict(_peer(cluster, words).name, float(words[1]) if len(words) > 1 else 0.0)


def _unplug(cluster: Cluster, words: list[str]) -> None:
    _elected(cluster).register.cut.add(_peer(cluster, words).name)


def _register(cluster: Cluster, words: list[str]) -> None:
    register = _elected(cluster).register
    given = dict(word.partition("=")[::2] for word in words)
    if words[0] == "empty":
        cluster.faults["empty"] += 1
        register.empty()
        _elected(cluster).elected_invariants.register_emptied()
    elif words[0] == "touch":
        cluster.faults["touch"] += 1
        register.touch()
    elif words[0] in ("away", "back"):
        register.is_away = words[0] == "away"
        if not register.is_away:
            _elected(cluster).doomed.clear()
        cluster.faults["away"] += register.is_away
    for word, name in (("loss", "lost answer"), ("stale", "stale read"), ("late", "late write")):
        cluster.faults[name] += float(given.get(word, 0)) > 0
    register.loss = float(given.get("loss", register.loss))
    register.stale = float(given.get("stale", register.stale))
    register.late_s = float(given.get("late", register.late_s))
    if "delay" in given:
        register.delay_s = _range(given["delay"])
        cluster.faults["slow register"] += register.delay_s[1] >= 1.0


def _elected(cluster: Cluster) -> ElectedCluster:
    if not isinstance(cluster, ElectedCluster):
        raise ValueError("only a cluster that elects its server has a register: `cluster elected …`")
    return cluster


def _peer(cluster: Cluster, words: list[str]) -> VirtualProcess:
    agent = _agent(cluster, words)
    if not isinstance(agent, VirtualProcess):
        raise ValueError("only a cluster that elects its server has processes that may serve: `cluster elected …`")
    return agent


def _flap(cluster: Cluster, words: list[str]) -> None:
    cluster.flap(_agent(cluster, words), float(words[1]))


def _fail(cluster: Cluster, words: list[str]) -> None:
    agent = _agent(cluster, words)
    agent.when_running(agent.fail_workers)


def _resend(cluster: Cluster, words: list[str]) -> None:
    agent = _agent(cluster, words)
    agent.when_running(agent.resend_join)


def _leaves(reason: Reason) -> Callable[[Cluster, list[str]], None]:
    def leave(cluster: Cluster, words: list[str]) -> None:
        agent = _agent(cluster, words)
        agent.when_running(lambda: agent.leave(reason))

    return leave


def _crash(cluster: Cluster, words: list[str]) -> None:
    cluster.crash_server()


def _restart(cluster: Cluster, words: list[str]) -> None:
    try:
        cluster.start_server()
    except RendezvousStateError as exc:
        cluster.note("server", f"cannot start: {exc}")


def _damage(cluster: Cluster, words: list[str]) -> None:
    cluster.record = (cluster.record or b"")[: int(words[0])]


def _close(cluster: Cluster, words: list[str]) -> None:
    cluster.close("somebody")


def _network(cluster: Cluster, words: list[str]) -> None:
    given = dict(word.partition("=")[::2] for word in words)
    for what in ("loss", "twice"):
        if float(given.get(what, 0)):
            cluster.faults[what] += 1
    cluster.network.loss = float(given.get("loss", cluster.network.loss))
    cluster.network.twice = float(given.get("twice", cluster.network.twice))
    if "delay" in given:
        cluster.network.delay_s = _range(given["delay"])
        cluster.faults["delay"] += ":" in given["delay"]


def _advance(cluster: Cluster, words: list[str]) -> None:
    cluster.advance(float(words[0]))


def _show(cluster: Cluster, words: list[str]) -> None:
    cluster.note("run", cluster.situation())


_VERBS: dict[str, Callable[[Cluster, list[str]], None]] = {
    "start": _start,
    "kill": _kill,
    "vanish": _vanish,
    "pause": _pause,
    "resume": _resume,
    "cut": _cut,
    "mute": _mute,
    "heal": _heal,
    "freeze": _freeze,
    "hide": _hide,
    "refuse": _refuse,
    "part": _part,
    "unplug": _unplug,
    "evict": _evict,
    "doom": _doom,
    "register": _register,
    "flap": _flap,
    "fail": _fail,
    "resend": _resend,
    "finish": _leaves(Reason.FINISHED),
    "withdraw": _leaves(Reason.WITHDREW),
    "give-up": _leaves(Reason.GAVE_UP),
    "crash": _crash,
    "restart": _restart,
    "damage": _damage,
    "close": _close,
    "network": _network,
    "advance": _advance,
    "show": _show,
}
