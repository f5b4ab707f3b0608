"""The names of a run's keys in etcd: `in/` is what nodes say, `out/` what the leader says."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, unquote

from rallypoint.client.identity import stem_of


class Keys:
    """The keys of one run."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.runs = f"{prefix.rstrip('/')}/"
        self.run = f"{self.runs}{quote(run_id, safe='')}/"
        self.said = f"{self.run}in/"
        self.leader = f"{self.run}leader"
        self.board = f"{self.run}out/board"
        self._nodes = f"{self.said}nodes/"
        self._wishes = f"{self.said}wishes/"
        self._worlds = f"{self.run}out/worlds/"
        self._told = f"{self.run}out/told/"
        self._stores = f"{self.run}stores/"

    def node(self, node_id: str) -> str:
        """What one node says, on its own lease: the roll of those who are here."""
        return self._nodes + quote(node_id, safe="")

    def node_id(self, key: bytes) -> str | None:
        """Whose key it is; None where it is not a node's."""
        return _rest(key, self._nodes)

    def wish(self, token: str) -> str:
        """Somebody's wish to close the run."""
        return self._wishes + token

    def wish_token(self, key: bytes) -> str | None:
        """Which wish it is; None where it is none."""
        return _rest(key, self._wishes)

    def told(self, node_id: str) -> str:
        """What concerns one node alone."""
        return self._told + quote(node_id, safe="")

    def told_near(self, node_id: str) -> str | None:
        """What the names of all that concerns the nodes of its process begin with; None where that cannot be said."""
        stem = stem_of(node_id)
        return None if stem is None else self._told + quote(stem, safe="")

    def world(self, seal_id: str) -> str:
        """The beginning of the names of a roster's parts."""
        return f"{self._worlds}{quote(seal_id, safe='')}/"

    def part(self, seal_id: str, number: int) -> str:
        """One part of a roster; parts sort by their number."""
        return f"{self.world(seal_id)}{number:06d}"

    def store(self, seal_id: str) -> str:
        """Where the store of a round lies, for those who keep it in etcd."""
        return f"{self._stores}{quote(seal_id, safe='')}/"

    def besides(self, seal_id: str) -> Iterator[tuple[str, str]]:
        """Where the rosters and stores of all other worlds lie, as ranges: before those of this one, and after them."""
        for family, mine in ((self._worlds, self.world(seal_id)), (self._stores, self.store(seal_id))):
            yield family, mine
            yield mine[:-1] + "0", family[:-1] + "0"  # "0" comes next after "/"

    def run_id_of_board(self, key: bytes) -> str | None:
        """The run whose board this key is; None where it is another key."""
        name = key.decode(errors="replace")
        if not name.startswith(self.runs) or not name.endswith("/out/board"):
            return None
        quoted = name[len(self.runs) : -len("/out/board")]
        return None if "/" in quoted else unquote(quoted)  # those of another prefix, which begins with this one


def _rest(key: bytes, beginning: str) -> str | None:
    name = key.decode(errors="replace")
    return unquote(name[len(beginning) :]) if name.startswith(beginning) else None
