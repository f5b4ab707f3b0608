"""The same random operations on a component of torch's and on ours, step by step; a process runs one such history.

A component is two objects and the operations that both know.  An operation is drawn once and applied to both; the answers,
or the kinds of error, must be the same.  Tokens differ between two servers, so an operation names a token by its place in
the history of answers.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rallypoint.stores import FileStore, TcpStore

BRIEFLY = timedelta(milliseconds=20)
LONG = timedelta(seconds=60)


class Servers(NamedTuple):
    """Where the real servers listen: torch's TCPStore, ours, and etcd with its API v2."""

    torch_port: int
    our_port: int
    etcd_port: int


class Operation(NamedTuple):
    """What is done, in words for a report; how it is done to a side."""

    words: str
    apply: Callable[[Any], Any]


Draw = Callable[[random.Random], Operation]


class Component(NamedTuple):
    """Both sides, and how the next operation is drawn."""

    theirs: Any
    ours: Any
    draw: Draw


def outcome(operation: Operation, side: Any) -> tuple[str, Any]:
    """The answer, or the kind of the error."""
    try:
        return "answers", operation.apply(side)
    except Exception as exc:  # noqa: BLE001  # whatever it is, its kind is the answer
        return "raises", kind_of(exc)


def kind_of(error: Exception) -> str:
    """The same word for an error of torch's and of ours that a program would treat alike."""
    names = {cls.__name__ for cls in type(error).__mro__}
    for word, members in (
        ("state", {"RendezvousStateError"}),
        ("connection", {"RendezvousConnectionError"}),
        ("empty queue", {"QueueEmptyError"}),
        ("lookup or time-out", {"StoreTimeoutError", "DistStoreError", "LookupError", "TimeoutError"}),
        ("value", {"ValueError"}),
        ("type", {"TypeError"}),
        ("attribute", {"AttributeError"}),
    ):
        if names & members:
            return word
    # torch's stores raise a bare RuntimeError for a time-out of the FileStore and for much else.
    if "imeout" in str(error) or "imed out" in str(error):
        return "lookup or time-out"
    return type(error).__name__


def run_history(name: str, servers: Servers, seed: int, count: int, pipe: Connection) -> None:
    """Play `count` operations, and send how many were alike and the first difference, if any."""
    pipe.send(_differences(name, servers, seed, count))


def _differences(name: str, servers: Servers, seed: int, count: int) -> tuple[int, str]:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        component = COMPONENTS[name](
            servers, f"{name}-{seed}-{chance.randrange(2**32)}".replace(" ", "-"), Path(folder)
        )
        lately: list[str] = []
        for done in range(count):
            operation = component.draw(chance)
            theirs, ours = outcome(operation, component.theirs), outcome(operation, component.ours)
            lately = [*lately[-5:], f"{operation.words} -> {theirs}"]
            if theirs != ours:
                return done, f"seed {seed}: torch's {theirs}, ours {ours}, after " + "; ".join(lately)
    return count, ""


# Backends: a document and its tokens ----------------------------------------------------------------------------------


class Side:
    """A backend, the tokens that it gave out, and how its document is damaged or removed."""

    def __init__(self, backend: Any, damage: Callable[[str], None], remove: Callable[[], None] | None) -> None:
        self.backend = backend
        self.tokens: list[Any] = []
        self.damage = damage
        self.remove = remove

    def get(self) -> Any:
        found = self.backend.get_state()
        return None if found is None else (found[0], self._place(found[1]))

    def set(self, state: bytes, token: Callable[[list[Any]], Any]) -> Any:
        found = self.backend.set_state(state, token(self.tokens))
        return None if found is None else (found[0], self._place(found[1]), found[2])

    def _place(self, token: Any) -> int:
        """Where the token was seen first, in the history of tokens of which the newest is the last."""
        self.tokens.append(token)
        return self.tokens.index(token)


def draw_on_a_document(can_be_removed: bool) -> Draw:
    def draw(chance: random.Random) -> Operation:
        roll = chance.random()
        if roll < 0.25:
            return Operation("get_state()", Side.get)
        if roll < 0.3:
            # Some are documents, some are damaged, and the last is PyTorch's word for "nothing is here".
            text = chance.choice(["YQ==", "YWJj", "a", "YWJjZA", "abcde", *["Y2FuaW1hZGFt"] * 5])
            return Operation(f"the document is {text!r}", lambda side: side.damage(text))
        if roll < 0.35 and can_be_removed:
            return Operation("the document is removed", lambda side: side.remove())
        state = chance.choice([b"", b"x", b"y", bytes(chance.randrange(256) for _ in range(chance.randrange(64)))])
        words, token = _token(chance)
        return Operation(f"set_state({state!r}, {words})", lambda side: side.set(state, token))

    return draw


def _token(chance: random.Random) -> tuple[str, Callable[[list[Any]], Any]]:
    roll = chance.random()
    if roll < 0.5:
        return "the newest token", lambda tokens: tokens[-1] if tokens else None
    if roll < 0.7:
        return "no token", lambda tokens: None
    if roll < 0.8:
        back = chance.randrange(1, 5)
        return f"the token {back} before", lambda tokens: tokens[-1 - back] if len(tokens) > back else None
    literal: Any = chance.choice([0, "", b"", False, (), 3, "7", b"7", "not a token", b"not a token"])
    return f"the token {literal!r}", lambda tokens: literal


def c10d_tcp(servers: Servers, name: str, folder: Path) -> Component:
    import torch.distributed as dist

    theirs = dist.TCPStore("127.0.0.1", servers.torch_port, timeout=LONG)
    return _c10d(theirs, TcpStore("127.0.0.1", servers.our_port, timeout=LONG), name)


def c10d_file(servers: Servers, name: str, folder: Path) -> Component:
    import torch.distributed as dist

    return _c10d(dist.FileStore(str(folder / "theirs"), 1), FileStore(folder / "ours", timeout=LONG), name)


def _c10d(their_store: Any, our_store: Any, name: str) -> Component:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend as Theirs

    from rallypoint.elastic.c10d_rendezvous_backend import C10dRendezvousBackend as Ours

    def side(backend: Any, store: Any) -> Side:
        def damage(text: str) -> None:
            store.set(f"torch.rendezvous.{name}", text)
            store.get(f"torch.rendezvous.{name}")  # nothing answers a set; the backend may have its own connection

        return Side(backend, damage, None)

    return Component(
        side(Theirs(their_store, name), their_store), side(Ours(our_store, name), our_store), draw_on_a_document(False)
    )


def etcd_v2(servers: Servers, name: str, folder: Path) -> Component:
    import etcd
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend as Theirs

    from rallypoint.elastic.etcd_rendezvous_backend import EtcdRendezvousBackend as Ours

    def side(cls: Any, prefix: str) -> Side:
        client = etcd.Client(host="127.0.0.1", port=servers.etcd_port)

        def remove() -> None:
            with suppress(etcd.EtcdKeyNotFound):
                client.delete(f"{prefix}/{name}")

        def damage(text: str) -> None:
            client.write(f"{prefix}/{name}", text)

        return Side(cls(client, name, prefix), damage, remove)

    return Component(side(Theirs, "/differential/theirs"), side(Ours, "/differential/ours"), draw_on_a_document(True))


# Stores ---------------------------------------------------------------------------------------------------------------


def draw_on_a_store(verbs: dict[str, float]) -> Draw:
    """Operations on a few keys: texts under "t…", numbers under "n…", queues under "q…".

    Each kind has its own keys, because torch's server and ours end a connection that adds to a text.
    """

    def value(chance: random.Random) -> str:
        return chance.choice(["", "a", "b", "1", "text of some length", "x" * 300])

    def text_key(chance: random.Random) -> str:
        return f"t{chance.randrange(6)}"

    def draw(chance: random.Random) -> Operation:
        (verb,) = chance.choices(list(verbs), list(verbs.values()))
        key, other, text = text_key(chance), text_key(chance), value(chance)
        if verb == "add":
            number, by = f"n{chance.randrange(4)}", chance.randrange(-5, 50)
            return Operation(f"add({number}, {by})", lambda store: store.add(number, by))
        if verb == "compare_set":
            expected = value(chance)
            return Operation(
                f"compare_set({key}, {expected!r}, {text!r})", lambda store: store.compare_set(key, expected, text)
            )
        if verb.startswith("queue_"):
            queue = f"q{chance.randrange(3)}"
            if verb == "queue_push":
                return Operation(f"queue_push({queue}, {text!r})", lambda store: store.queue_push(queue, text))
            if verb == "queue_pop":
                return Operation(f"queue_pop({queue})", lambda store: store.queue_pop(queue, False))
            return Operation(f"queue_len({queue})", lambda store: store.queue_len(queue))
        if verb == "check":
            return Operation(f"check({key}, {other})", lambda store: store.check(sorted({key, other})))
        if verb == "wait":
            return Operation(f"wait({key}, {other})", lambda store: store.wait(sorted({key, other}), BRIEFLY))
        if verb == "delete_key":
            return Operation(f"delete_key({key})", lambda store: store.delete_key(key))
        if verb == "append":
            return Operation(f"append({key}, {text!r})", lambda store: store.append(key, text))
        if verb == "multi_set":
            return Operation(
                f"multi_set({key}, {other})", lambda store: store.multi_set([key, other], [text, text + "2"])
            )
        if verb == "get":
            # An absent key is waited for; whether it is there is asked first, so that most gets answer.
            return Operation(f"get({key})", lambda store: store.get(key) if store.check([key]) else None)
        if verb == "multi_get":
            return Operation(
                f"multi_get({key}, {other})",
                lambda store: store.multi_get([key, other]) if store.check([key, other]) else None,
            )
        assert verb == "set", verb
        return Operation(f"set({key}, {text!r})", lambda store: store.set(key, text))

    return draw


EXTENDED = ("append", "multi_get", "multi_set", "queue_push", "queue_pop", "queue_len")
COMMON = {"set": 3, "get": 3, "add": 3, "compare_set": 3, "check": 2, "delete_key": 2, "wait": 0.1}


def tcp_store(servers: Servers, name: str, folder: Path) -> Component:
    import torch.distributed as dist

    from rallypoint.stores import PrefixStore

    theirs = dist.PrefixStore(name, dist.TCPStore("127.0.0.1", servers.torch_port, timeout=LONG))
    ours = PrefixStore(name, TcpStore("127.0.0.1", servers.our_port, timeout=LONG))
    return Component(theirs, ours, draw_on_a_store({**COMMON, **dict.fromkeys(EXTENDED, 1.0)}))


def file_store(servers: Servers, name: str, folder: Path) -> Component:
    import torch.distributed as dist

    return Component(
        dist.FileStore(str(folder / "theirs"), 1),
        FileStore(folder / "ours", timeout=LONG),
        draw_on_a_store(COMMON),
    )


def etcd_store(servers: Servers, name: str, folder: Path) -> Component:
    import etcd
    from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as Theirs

    from rallypoint.elastic.etcd_store import EtcdStore as Ours

    def side(cls: Any, whose: str) -> Any:
        client = etcd.Client(host="127.0.0.1", port=servers.etcd_port)
        return cls(client, f"/differential/{whose}/{name}", timeout=BRIEFLY)

    texts = draw_on_a_store({"set": 3, "get": 3, "add": 3, "check": 2, "wait": 0.1})

    def draw(chance: random.Random) -> Operation:
        if chance.random() < 0.05:
            key: Any = chance.choice(["t0", b"t0", 1, None])
            value: Any = chance.choice(["v", b"v", b"\xff\x00", 1, None])
            return Operation(f"set({key!r}, {value!r})", lambda store: store.set(key, value))
        if chance.random() < 0.02:
            return Operation("add(t1, 1)", lambda store: store.add("t1", 1))
        return texts(chance)

    return Component(side(Theirs, "theirs"), side(Ours, "ours"), draw)


# Parameters and endpoints ---------------------------------------------------------------------------------------------

HOSTS = [
    "host",
    "a.b",
    "my-host_1",
    "127.0.0.1",
    "1.2.3",
    "::1",
    "[::1]",
    "2001:db8::1",
    "[2001:db8::1]",
    "",
    " ",
    "a b",
    "a/b",
]
PORTS = ["", ":", ":0", ":7", ":29400", ":65535", ":65536", ":-1", ":x", ": 7", ":7 ", ":123456"]
PAIRS = ["a=1", " a = 2 ", "b=x y", "c=d=e", "c==", "'a=1'", "f=/g", "a", "a=", "=1", "=", "", " "]
VALUES: list[Any] = [
    *[0, 1, -1, 1.5, 1.0, True, False, None, b"1", b"x", "", " ", "1", " 1 ", "1.5", "x", "t", "T", "true", "True"],
    *["false", "f", "F", "yes", "no", "1e3", "0x1", "-3", [], [1], "٣"],
]


def parameters(servers: Servers, name: str, folder: Path) -> Component:
    from torch.distributed.elastic.rendezvous import api as their_api
    from torch.distributed.elastic.rendezvous import utils as their_utils

    from rallypoint.elastic import api as our_api
    from rallypoint.elastic import utils as our_utils

    def draw(chance: random.Random) -> Operation:
        if chance.random() < 0.5:
            host = chance.choice(HOSTS)
            # An IPv6 address with neither brackets nor a port is one of the declared differences.
            text = host + chance.choice(PORTS[1:] if host.count(":") > 1 and "[" not in host else PORTS)
            return Operation(
                f"parse_rendezvous_endpoint({text!r})", lambda side: tuple(side[1].parse_rendezvous_endpoint(text, 7))
            )
        if chance.random() < 0.3:
            config = ",".join(chance.choice(PAIRS) for _ in range(chance.randrange(4)))
            return Operation(
                f"_parse_rendezvous_config({config!r})", lambda side: side[1]._parse_rendezvous_config(config)
            )
        value, default = chance.choice(VALUES), chance.choice([None, 3, True])
        method = chance.choice(["get", "get_as_int", "get_as_bool"])
        key = chance.choice(["key", "other"])

        def apply(side: Any) -> Any:
            made = side[0].RendezvousParameters("backend", "endpoint", "run", 1, 2, None, key=value)
            return repr(getattr(made, method)(key, default))

        return Operation(f"{method}({key!r}, {default!r}) where key is {value!r}", apply)

    return Component((their_api, their_utils), (our_api, our_utils), draw)


COMPONENTS: dict[str, Callable[[Servers, str, Path], Component]] = {
    "c10d backend on TCP": c10d_tcp,
    "c10d backend on a file": c10d_file,
    "etcd-v2 backend": etcd_v2,
    "TCPStore": tcp_store,
    "FileStore": file_store,
    "EtcdStore": etcd_store,
    "parameters and endpoints": parameters,
}


def histories(
    name: str, servers: Servers, processes: int, count: int, start: Callable[..., Any]
) -> Iterator[tuple[int, str]]:
    """What each of several processes found that play at the same time."""
    import multiprocessing

    pipes = []
    for seed in range(processes):
        ours, theirs = multiprocessing.Pipe()
        start(run_history, name, servers, seed, count, theirs)
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        yield pipe.recv()
