"""The phases of a run and the ways between them: the table that the transition is held to, and the picture of it."""

from __future__ import annotations

from rallypoint.core.model import Phase

PHASE_CHANGES: dict[tuple[Phase, Phase], str] = {
    (
        Phase.RECOVERING,
        Phase.GATHERING,
    ): "the hold is over, all ranks were heard but not all hold, or max newcomers are here (rule 14)",
    (Phase.RECOVERING, Phase.SEALED): "every rank of the highest world still holds it (rule 14)",
    (Phase.GATHERING, Phase.RECOVERING): "a node was in a world of this incarnation that the record forgot (rule 17f)",
    (Phase.RECOVERING, Phase.CLOSED): "closed, or one node knows that it was (rule 14)",
    (Phase.GATHERING, Phase.SEALED): "max are here, the last call ended, or all are back (rule 4)",
    (Phase.GATHERING, Phase.CLOSED): "closed, or too few are left after some have finished (rule 8)",
    (Phase.SEALED, Phase.GATHERING): "a member was lost, left or joined again (rules 6, 6a, 8)",
    (Phase.SEALED, Phase.CLOSED): "all members have finished, or it was closed (rule 8)",
    (Phase.CLOSED, Phase.GATHERING): "a fresh node founds a new incarnation, or the tombstone is old (rule 1)",
}


def diagram() -> str:
    """The picture of the phases, for docs/rules.md (Mermaid)."""
    lines = [
        "stateDiagram-v2",
        "    [*] --> recovering: a server starts",
        "    [*] --> gathering: it has been up for long",
    ]
    lines += [f"    {a.value} --> {b.value}: {why}" for (a, b), why in PHASE_CHANGES.items()]
    return "\n".join(lines)
