"""The words in which a virtual world is told what to do: one line a command, the same in scenario files and schedules.

start NAME [spare] [rank=N] [topology=PATH] [address=A] [stop=S] [timeout=S] [rate=R] [bounds=MIN:MAX]
kill NAME | vanish NAME          its process dies, and the connection's end is seen, or is not
pause NAME | resume NAME         SIGSTOP, SIGCONT; NAME may be `server`
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

from rallypoint.core.model import Bounds, Reason, Role
from rallypoint.errors import RendezvousStateError
from simulation.agent import Agent
from simulation.elected import ElectedWorld
from simulation.peer import Peer
from simulation.world import World

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
    "rest": "unequal settings",
}


def perform(world: World, line: str) -> None:
    """Carry out one command; a word that is not known is a ValueError."""
    verb, *words = line.split()
    if verb not in _VERBS:
        raise ValueError(f"there is no command {verb!r} in {line!r}; there are {', '.join(sorted(_VERBS))}")
    if verb not in ("advance", "show", "restart", "start", "resend"):
        world.invariants.disturbed()
    if verb in FAULTS:
        world.faults["stall" if verb == "pause" and words == ["server"] else verb] += 1
    _VERBS[verb](world, words)


def parse_bounds(text: str) -> Bounds:
    """`2:4`, or `4` for `4:4`."""
    low, _, high = text.partition(":")
    return Bounds(int(low), int(high or low))


def _agent(world: World, words: list[str]) -> Agent:
    if not words or words[0] not in world.agents:
        raise ValueError(f"there is no node {' '.join(words)!r}; there are {', '.join(world.agents) or 'none'}")
    return world.agents[words[0]]


def _start(world: World, words: list[str]) -> None:
    name, *options = words
    given = dict(option.partition("=")[::2] for option in options)
    if float(given.get("rate", 1)) != 1:
        world.faults["rate"] += 1
    elected: dict[str, Any] = {}
    if isinstance(world, ElectedWorld):
        elected = {"rest_s": float(given["rest"]) if "rest" in given else None, "may_claim": "guest" not in given}
        world.faults["rest"] += "rest" in given
    world.start(
        name,
        role=Role.SPARE if "spare" in given else Role.MEMBER,
        wanted_rank=int(given["rank"]) if "rank" in given else None,
        topology=given.get("topology", ""),
        address=given.get("address", ""),
        stop_s=float(given.get("stop", 0.05)),
        timeout_s=float(given.get("timeout", 600)),
        rate=float(given.get("rate", 1)),
        bounds=parse_bounds(given["bounds"]) if "bounds" in given else None,
        **elected,
    )


def _kill(world: World, words: list[str]) -> None:
    world.end_process(_agent(world, words), seen=True)


def _vanish(world: World, words: list[str]) -> None:
    world.end_process(_agent(world, words), seen=False)


def _pause(world: World, words: list[str]) -> None:
    (world.coordinator if words == ["server"] and world.coordinator else _agent(world, words)).stop()


def _resume(world: World, words: list[str]) -> None:
    (world.coordinator if words == ["server"] and world.coordinator else _agent(world, words)).resume()


def _cut(world: World, words: list[str]) -> None:
    world.network.cut.add(_agent(world, words).name)


def _mute(world: World, words: list[str]) -> None:
    world.network.deaf.add(_agent(world, words).name)


def _heal(world: World, words: list[str]) -> None:
    name = _agent(world, words).name
    world.network.cut.discard(name)
    world.network.deaf.discard(name)
    if isinstance(world, ElectedWorld):
        for trouble in (world.hidden, world.refusing, world.register.cut):
            trouble.discard(name)
        world.parted = {pair for pair in world.parted if name not in pair}


def _freeze(world: World, words: list[str]) -> None:
    peer = _peer(world, words)
    peer.frozen = True
    peer.stop()


def _hide(world: World, words: list[str]) -> None:
    _elected(world).hidden.add(_peer(world, words).name)


def _refuse(world: World, words: list[str]) -> None:
    peer = _peer(world, words)
    _elected(world).refusing.add(peer.name)
    world.flap(peer, 0.01)


def _part(world: World, words: list[str]) -> None:
    peer, others = _peer(world, words), [_peer(world, [name]) for name in words[1:]]
    _elected(world).judge.parted(peer, others)
    _elected(world).parted |= {frozenset((peer.name, other.name)) for other in others}


def _doom(world: World, words: list[str]) -> None:
    _elected(world).doomed[_peer(world, words).name] = words[1]


def _evict(world: World, words: list[str]) -> None:
    _elected(world).evict(_peer(world, words).name, float(words[1]) if len(words) > 1 else 0.0)


def _unplug(world: World, words: list[str]) -> None:
    _elected(world).register.cut.add(_peer(world, words).name)


def _register(world: World, words: list[str]) -> None:
    register = _elected(world).register
    given = dict(word.partition("=")[::2] for word in words)
    if words[0] == "empty":
        world.faults["empty"] += 1
        register.empty()
        _elected(world).judge.register_emptied()
    elif words[0] == "touch":
        world.faults["touch"] += 1
        register.touch()
    elif words[0] in ("away", "back"):
        register.is_away = words[0] == "away"
        if not register.is_away:
            _elected(world).doomed.clear()
        world.faults["away"] += register.is_away
    for word, name in (("loss", "lost answer"), ("stale", "stale read"), ("late", "late write")):
        world.faults[name] += float(given.get(word, 0)) > 0
    register.loss = float(given.get("loss", register.loss))
    register.stale = float(given.get("stale", register.stale))
    register.late_s = float(given.get("late", register.late_s))
    if "delay" in given:
        low, _, high = given["delay"].partition(":")
        register.delay_s = (float(low), float(high or low))
        world.faults["slow register"] += register.delay_s[1] >= 1.0


def _elected(world: World) -> ElectedWorld:
    if not isinstance(world, ElectedWorld):
        raise ValueError("only a world that elects its server has a register: `world elected …`")
    return world


def _peer(world: World, words: list[str]) -> Peer:
    agent = _agent(world, words)
    if not isinstance(agent, Peer):
        raise ValueError("only a world that elects its server has processes that may serve: `world elected …`")
    return agent


def _flap(world: World, words: list[str]) -> None:
    world.flap(_agent(world, words), float(words[1]))


def _fail(world: World, words: list[str]) -> None:
    agent = _agent(world, words)
    agent.when_running(agent.fail_workers)


def _resend(world: World, words: list[str]) -> None:
    agent = _agent(world, words)
    agent.when_running(agent.resend_join)


def _leaves(reason: Reason) -> Callable[[World, list[str]], None]:
    def leave(world: World, words: list[str]) -> None:
        agent = _agent(world, words)
        agent.when_running(lambda: agent.leave(reason))

    return leave


def _crash(world: World, words: list[str]) -> None:
    world.crash_server()


def _restart(world: World, words: list[str]) -> None:
    try:
        world.start_server()
    except RendezvousStateError as exc:
        world.note("server", f"cannot start: {exc}")


def _damage(world: World, words: list[str]) -> None:
    world.record = (world.record or b"")[: int(words[0])]


def _close(world: World, words: list[str]) -> None:
    world.close("somebody")


def _network(world: World, words: list[str]) -> None:
    given = dict(word.partition("=")[::2] for word in words)
    for what in ("loss", "twice"):
        if float(given.get(what, 0)):
            world.faults[what] += 1
    world.network.loss = float(given.get("loss", world.network.loss))
    world.network.twice = float(given.get("twice", world.network.twice))
    if "delay" in given:
        low, _, high = given["delay"].partition(":")
        world.network.delay_s = (float(low), float(high or low))
        if high:
            world.faults["delay"] += 1


def _advance(world: World, words: list[str]) -> None:
    world.advance(float(words[0]))


def _show(world: World, words: list[str]) -> None:
    world.note("run", world.situation())


_VERBS: dict[str, Callable[[World, list[str]], None]] = {
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
