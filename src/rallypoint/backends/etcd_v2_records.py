"""The records of runs in etcd by its API v2, for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rallypoint.backends.endpoints import without_scheme
from rallypoint.backends.etcd_v2_client import DEFAULT_PORT, certificates, connect, make_client
from rallypoint.backends.options import read_options
from rallypoint.errors import RendezvousConnectionError
from rallypoint.location.registers.backend import checked
from rallypoint.net import parse_endpoints, written
from rallypoint.stores.documents import ETCD_V2_FOLDER, decode_document
from rallypoint.stores.errors import StoreError
from rallypoint.stores.etcd_v2.keys import EtcdNode, Keys
from rallypoint.waiting import Deadline

CERT, KEY, CACERT = certificates("cert", "key", "cacert")
OPTIONS = (CERT, KEY, CACERT)


class EtcdV2Records(NamedTuple):
    """The records below one folder, where PyTorch's backend has its documents."""

    where: str
    keys: Keys
    timeout_s: float

    def names(self) -> list[str]:
        """The ids of the runs that have a document."""
        root = self._read(ETCD_V2_FOLDER, recursive=True)
        return [] if root is None else [node.key.removeprefix(f"{ETCD_V2_FOLDER}/") for node in _leaves(root)]

    def read(self, run_id: str) -> bytes | None:
        """A run's record; None where it has none."""
        path = f"{ETCD_V2_FOLDER}/{run_id}"
        node = self._read(path)
        if node is None or node.is_directory:
            return None
        return checked(decode_document(node.value.encode(errors="replace"), path))

    def close(self) -> None:
        """Nothing more is read; the connections end when they are forgotten."""

    def _read(self, path: str, *, recursive: bool = False) -> EtcdNode | None:
        try:
            return self.keys.read(path, Deadline.after(self.timeout_s), recursive=recursive).node
        except StoreError as exc:
            raise RendezvousConnectionError(f"{self.where} cannot be read: {exc}") from exc


def open_records(endpoint: str, config: Mapping[str, object], timeout_s: float) -> EtcdV2Records:
    """The records in the cluster at an endpoint; with any option for certificates by https.  ValueError as for nodes."""
    options = read_options("etcd-v2", config, OPTIONS)
    if options[KEY] and not options[CERT]:
        raise ValueError("The option 'key' is given and 'cert' is not: a certificate and its key go together.")
    for option in OPTIONS:
        _refuse_unreadable(option.name, options[option])
    members = parse_endpoints(without_scheme(endpoint), DEFAULT_PORT)
    where = f"etcd-v2://{','.join(written(*member) for member in members)}"
    protocol, cert, key, ca = "https" if config else "http", options[CERT], options[KEY], options[CACERT]
    client = make_client(members, protocol=protocol, read_timeout_s=timeout_s, cert=cert, key=key, ca=ca)
    return EtcdV2Records(where, connect(client, timeout_s, f"etcd at {where}"), timeout_s)


def _refuse_unreadable(name: str, path: str | None) -> None:
    try:
        if path is not None:
            Path(path).read_bytes()
    except OSError as exc:
        raise ValueError(f"The {name} {path!r} cannot be read: {exc.strerror}.") from exc


def _leaves(node: EtcdNode) -> Iterator[EtcdNode]:
    """A run id may have slashes in it, which are folders to etcd."""
    if not node.is_directory:
        yield node
    for below in node.nodes:
        yield from _leaves(below)
