"""The names of a run's keys in etcd v3: its record, the lease keys of its claims, and the stores of its rounds."""

from __future__ import annotations

from urllib.parse import quote, unquote

_RECORD = "record"


class RecordKeys:
    """The keys of one run under a prefix.

    `runs` is the beginning of all keys of all runs, `run` that of this run's.  `record` is the record, `claims` the
    folder of the keys that live on the lease of a server, `stores` that of the rounds' stores.  `old_leader`,
    `old_nodes` (the beginning of the keys of its nodes) and `old_board` are keys of version 0.1.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        self.runs = f"{prefix.rstrip('/')}/"
        self.run = f"{self.runs}{quote(run_id, safe='')}/"
        self.record = f"{self.run}{_RECORD}"
        self.claims = f"{self.run}claims/"
        self.stores = f"{self.run}stores/"
        self.old_leader = f"{self.run}leader"
        self.old_nodes = f"{self.run}in/nodes/"
        self.old_board = f"{self.run}out/board"

    def claim(self, epoch: int) -> str:
        """The key on the lease of the server that claimed with this epoch; keys sort by their epoch."""
        return f"{self.claims}{epoch:016d}"

    def store(self, seal_id: str) -> str:
        """The beginning of the keys of the store of one round."""
        return f"{self.stores}{quote(seal_id, safe='')}/"

    def run_id_of(self, key: bytes) -> str | None:
        """The run whose record this key is, under this prefix; None where it is another key."""
        name, ending = key.decode(errors="replace"), f"/{_RECORD}"
        if not name.startswith(self.runs) or not name.endswith(ending):
            return None
        quoted = name[len(self.runs) : -len(ending)]
        run_id = unquote(quoted)
        # A key of another prefix, which begins with this one, has more parts and is not how this run would be written.
        return run_id if run_id and quote(run_id, safe="") == quoted else None
