"""The words in which a virtual world is told what to do: one line a command, the same in scenario files and schedules.

start NAME [spare] [rank=N] [topology=PATH] [address=A] [stop=S] [timeout=S] [rate=R] [bounds=MIN:MAX]
kill NAME | vanish NAME          its process dies, and the connection's end is seen, or is not
pause NAME | resume NAME         SIGSTOP, SIGCONT; NAME may be `authority`
cut NAME | mute NAME | heal NAME nothing passes, or nothing reaches the node, until healed
flap NAME LATE_S                 a new connection; the end of the old one is seen so much later
fail NAME                        its workers crash, it rejoins at once
resend NAME                      its join is sent once more
finish NAME | withdraw NAME | give-up NAME
crash | restart                  the authority dies, or starts without its memory
close                            somebody closes the run
network [loss=P] [twice=P] [delay=LOW:HIGH]
advance S                        let time pass
show                             where the run stands
"""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.core.model import Bounds, Reason, Role
from rallypoint.errors import RendezvousStateError
from rallypoint.simulation.agent import Agent
from rallypoint.simulation.world import World

FAULTS = {
    "kill": "crash of a node",
    "vanish": "crash of a machine",
    "pause": "pause",
    "cut": "partition",
    "mute": "one-way partition",
    "flap": "broken connection",
    "fail": "crash of workers",
    "resend": "repeated join",
    "crash": "crash of the authority",
    "stall": "stall of the authority",
    "loss": "message loss",
    "twice": "duplication",
    "delay": "delay and reordering",
    "rate": "clock skew",
    "withdraw": "early leave",
    "give-up": "giving up",
}


def perform(world: World, line: str) -> None:
    """Carry out one command; a word that is not known is a ValueError."""
    verb, *words = line.split()
    if verb not in _VERBS:
        raise ValueError(f"there is no command {verb!r} in {line!r}; there are {', '.join(sorted(_VERBS))}")
    if verb not in ("advance", "show", "restart", "start", "resend"):
        world.invariants.disturbed()
    if verb in FAULTS:
        world.faults["stall" if verb == "pause" and words == ["authority"] else verb] += 1
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
    )


def _kill(world: World, words: list[str]) -> None:
    world.end_process(_agent(world, words), seen=True)


def _vanish(world: World, words: list[str]) -> None:
    world.end_process(_agent(world, words), seen=False)


def _pause(world: World, words: list[str]) -> None:
    (world.coordinator if words == ["authority"] and world.coordinator else _agent(world, words)).stop()


def _resume(world: World, words: list[str]) -> None:
    (world.coordinator if words == ["authority"] and world.coordinator else _agent(world, words)).resume()


def _cut(world: World, words: list[str]) -> None:
    world.network.cut.add(_agent(world, words).name)


def _mute(world: World, words: list[str]) -> None:
    world.network.deaf.add(_agent(world, words).name)


def _heal(world: World, words: list[str]) -> None:
    name = _agent(world, words).name
    world.network.cut.discard(name)
    world.network.deaf.discard(name)


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
    world.crash_authority()


def _restart(world: World, words: list[str]) -> None:
    try:
        world.start_authority()
    except RendezvousStateError as exc:
        world.note("authority", f"cannot start: {exc}")


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
