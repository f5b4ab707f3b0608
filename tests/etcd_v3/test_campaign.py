"""Seeded schedules on the stage: nodes come, go and die, leaders are killed between any two writes; nothing goes wrong."""

from __future__ import annotations

import pytest

from rallypoint.core.model import Phase, Reason
from rallypoint.core.node import State
from rallypoint.etcd.board import Board
from tests.etcd_v3.stage import BOUNDS, Actor, Stage

SEEDS = 1000
STEPS = 70


def play(stage: Stage, steps: int) -> None:
    """So many steps by the dice."""
    dice = stage.dice
    for _ in range(steps):
        stage.now += dice.choice((0.0, 0.01, 0.3, 2.0))
        alive = [actor for actor in stage.actors.values() if actor.alive]
        dead = [actor for actor in stage.actors.values() if not actor.alive]
        what = dice.random()
        if what < 0.12 and len(alive) < 7:
            stage.arrive()
        elif what < 0.17 and alive:
            stage.die(dice.choice(alive))
        elif what < 0.25 and dead:
            stage.expire(dice.choice(dead))
        elif what < 0.27 and alive:
            actor = dice.choice(alive)
            if actor.view.state is State.HOLDS:
                actor.leave(dice.choice((Reason.WITHDREW, Reason.GAVE_UP)))
                bury(stage, actor)
        elif what < 0.28 and alive:
            lose_lease(stage, dice.choice(alive))
        elif what < 0.60:
            if stage.leading is None:
                stage.elect()
            else:
                stage.lead(stops_after=dice.randrange(8) if dice.random() < 0.15 else None)
        elif what < 0.65 and stage.leading is not None:
            stage.adopt()  # an answer was lost: it starts over
        elif alive:
            dice.choice(alive).listen()
        for actor in [actor for actor in stage.actors.values() if actor.alive]:
            go_on(stage, actor, eager=dice.random() < 0.5)


def go_on(stage: Stage, actor: Actor, *, eager: bool) -> None:
    """What an agent does: join again when its world is over, come anew when it was given up."""
    over = actor.view.state is State.BROKEN or (actor.view.state is State.HOLDS and actor.view.waiting > 0)
    if over and eager:
        actor.join()
    elif actor.view.state in (State.FENCED, State.CLOSED):
        bury(stage, actor)
        if actor.view.state is State.FENCED:
            stage.arrive()


def bury(stage: Stage, actor: Actor) -> None:
    """The process ends, its lease is revoked."""
    if actor.alive:
        stage.die(actor)
    word = stage.etcd.keys.get(f"in/{actor.id}")
    if actor.view.state in (State.FINISHED, State.IDLE) and word is not None:
        # Its last word stays, on the run's lease.
        del stage.actors[actor.id]
        if stage.leader_name == actor.id:
            stage.leading, stage.leader_name = None, ""
    else:
        stage.expire(actor)


def lose_lease(stage: Stage, actor: Actor) -> None:
    actor.lose_lease()
    if stage.leader_name == actor.id:
        stage.leading, stage.leader_name = None, ""
    if actor.view.state is not State.FENCED:
        del stage.actors[actor.id]
        stage.arrive()


def calm_down(stage: Stage) -> None:
    """No more faults: enough nodes, and everybody gets on with it."""
    while sum(actor.alive for actor in stage.actors.values()) < BOUNDS.min:
        stage.arrive()
    for _ in range(60):
        for actor in list(stage.actors.values()):
            if not actor.alive:
                stage.expire(actor)
        if stage.leading is None:
            stage.elect()
        stage.lead()
        stage.now += 1.0
        for actor in list(stage.actors.values()):
            actor.listen()
            go_on(stage, actor, eager=True)
        while sum(actor.alive for actor in stage.actors.values()) < BOUNDS.min:
            stage.arrive()


def check_boards(boards: list[Board]) -> None:
    """Rounds only grow, and a world has one name (rule 3)."""
    sealed: dict[str, int] = {}
    highest = 0
    for board in boards:
        assert board.round >= highest
        if board.world is not None:
            known = sealed.setdefault(board.world.seal_id, board.world.round)
            assert known == board.world.round
            if board.phase is Phase.SEALED and board.world.round > highest:
                highest = board.world.round
            assert board.world.round >= highest, "no world comes back"
    rounds = list(sealed.values())
    assert len(set(rounds)) == len(rounds), "one world a round"


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS // 10))
def test_nothing_goes_wrong(first: int) -> None:
    for seed in range(first, first + SEEDS // 10):
        stage = Stage(seed)
        everybody: list[Actor] = []
        arrive = stage.arrive

        def remember(arrive=arrive, everybody=everybody) -> Actor:  # type: ignore[no-untyped-def]
            actor = arrive()
            everybody.append(actor)
            return actor  # type: ignore[no-any-return]

        stage.arrive = remember  # type: ignore[method-assign]
        play(stage, STEPS)
        calm_down(stage)
        check_boards(stage.boards)
        named = {board.world.seal_id for board in stage.boards if board.world is not None}
        ranks: set[tuple[str, int]] = set()
        for actor in everybody:
            for placed in actor.held:
                assert placed.seal_id in named, f"seed {seed}: a world that no board named"
                assert (placed.seal_id, placed.rank) not in ranks, f"seed {seed}: a rank given twice"
                ranks.add((placed.seal_id, placed.rank))
        alive = [actor for actor in stage.actors.values() if actor.alive]
        holders = [actor for actor in alive if actor.view.state is State.HOLDS]
        worlds = {actor.view.world.seal_id for actor in holders if actor.view.world is not None}
        said = [(actor.id, actor.view.state.name, actor.view.why) for actor in alive]
        assert len(worlds) == 1, f"seed {seed}: {said}"
        assert len(holders) == min(len(alive), BOUNDS.max), f"seed {seed}: {said}"
        current = stage.boards[-1].world
        assert current is not None
        assert {current.seal_id} == worlds
