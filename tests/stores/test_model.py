"""Long random histories: every store does what a dictionary would."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rallypoint.stores import (
    EtcdV3Store,
    FileStore,
    MemoryStore,
    QueueEmptyError,
    Store,
    StoreServer,
    StoreTimeoutError,
    TcpStore,
    listen,
)
from tests.support.etcd_tools import fresh
from tests.support.store_kinds import etcd_v3_client

KEYS = st.sampled_from(["a", "b", "c", "a/b", ""])
VALUES = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"1", b"-20", b"abc"]))
NOW = timedelta(milliseconds=1)


class Histories(RuleBasedStateMachine):
    """Two handles on a store, and beside them the dictionary that it should equal."""

    deletes_anything = False
    """Whether the store says of an absent key too that it deleted it."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = self.open()
        self.values: dict[str, bytes] = {}
        self.queues: defaultdict[str, list[bytes]] = defaultdict(list)
        self.turn = 0

    def open(self) -> list[Store]:
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return self.stores[0]

    def holds(self, key: str) -> bool:
        return key in self.values or bool(self.queues[key])

    @rule(key=KEYS, value=VALUES)
    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)
        self.values[key] = value

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        if self.holds(key):
            assert self.store.get(key) == self.values.get(key, b"")
        else:
            self.store.set_timeout(NOW)
            with pytest.raises(StoreTimeoutError):
                self.store.get(key)

    @rule(key=KEYS, amount=st.integers(-100, 100))
    def add(self, key: str, amount: int) -> None:
        try:
            total = int(self.values.get(key, b"0")) + amount
        except ValueError:
            return  # an error that ends connections; the contract has it
        if not self.values.get(key, b"0").strip().lstrip(b"+-").isdigit():
            return
        if self.values.get(key, b"0").strip() != self.values.get(key, b"0"):
            return
        assert self.store.add(key, amount) == total
        self.values[key] = b"%d" % total

    @rule(key=KEYS, expected=VALUES, desired=VALUES)
    def compare_set(self, key: str, expected: bytes, desired: bytes) -> None:
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        assert self.store.compare_set(key, expected, desired) == self.values.get(key, expected)

    @rule(key=KEYS, value=VALUES)
    def append(self, key: str, value: bytes) -> None:
        self.store.append(key, value)
        self.values[key] = self.values.get(key, b"") + value

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete_key(key) == (self.values.pop(key, None) is not None or self.deletes_anything)

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), max_size=4))
    def multi_set(self, pairs: list[tuple[str, bytes]]) -> None:
        self.store.multi_set([key for key, _ in pairs], [value for _, value in pairs])
        self.values.update(pairs)

    @rule(keys=st.lists(KEYS, max_size=4))
    def check_and_wait(self, keys: list[str]) -> None:
        expected = all(map(self.holds, keys))
        assert self.store.check(keys) == expected
        if expected:
            self.store.wait(keys)
            assert self.store.multi_get(keys) == [self.values.get(key, b"") for key in keys]
        else:
            with pytest.raises(StoreTimeoutError):
                self.store.wait(keys, NOW)

    @rule(key=KEYS, value=VALUES)
    def push(self, key: str, value: bytes) -> None:
        self.store.queue_push(key, value)
        self.queues[key].append(value)

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        assert self.store.queue_len(key) == len(self.queues[key])
        if self.queues[key]:
            assert self.store.queue_pop(key) == self.queues[key].pop(0)
        else:
            with pytest.raises(QueueEmptyError):
                self.store.queue_pop(key, block=False)

    @rule()
    def other_handle(self) -> None:
        # A set is not acknowledged: only a question on the same connection comes after it for certain.
        self.store.num_keys()
        self.stores.reverse()

    @invariant()
    def keys_are_the_same(self) -> None:
        assert self.store.num_keys() == len(self.values)
        assert sorted(self.store.list_keys()) == sorted(self.values)


class MemoryHistories(Histories):
    def open(self) -> list[Store]:
        store = MemoryStore()
        return [store, store.clone()]


class FileHistories(Histories):
    deletes_anything = True

    def open(self) -> list[Store]:
        self.folder = TemporaryDirectory()
        self.files = [FileStore(Path(self.folder.name) / "store") for _ in range(2)]
        return list(self.files)

    def teardown(self) -> None:
        for store in self.files:
            store.close()
        self.folder.cleanup()


class TcpHistories(Histories):
    def open(self) -> list[Store]:
        self.server = StoreServer()
        self.server.start_in_thread(listen("127.0.0.1"))
        self.clients = [TcpStore("127.0.0.1", self.server.port) for _ in range(2)]
        return list(self.clients)

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.server.stop()


class EtcdV3Histories(Histories):
    def open(self) -> list[Store]:
        client, prefix = etcd_v3_client("3.5", 3), f"model/{fresh()}"
        return [EtcdV3Store(client, prefix) for _ in range(2)]


TestMemoryHistories = MemoryHistories.TestCase
TestMemoryHistories.settings = settings(max_examples=100, stateful_step_count=40)
TestFileHistories = FileHistories.TestCase
TestFileHistories.settings = settings(max_examples=50, stateful_step_count=40)
TestTcpHistories = TcpHistories.TestCase
TestTcpHistories.settings = settings(max_examples=25, stateful_step_count=40)
TestEtcdV3Histories = EtcdV3Histories.TestCase
TestEtcdV3Histories.settings = settings(max_examples=12, stateful_step_count=40)
