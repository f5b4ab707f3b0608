"""The options of `rallypoint.join` for type checkers and editors; the tables of the backends say what each one means."""

from __future__ import annotations

from typing import Literal, TypedDict


class JoinOptions(TypedDict, total=False):
    """The options of all backends.  Times are seconds; a backend refuses an option that it does not have."""

    join_timeout: float
    last_call_timeout: float
    regroup_timeout: float
    close_timeout: float
    read_timeout: float
    heartbeat_interval: float
    heartbeat_timeout: float
    keep_alive_interval: float
    keep_alive_max_attempt: int
    outage_grace: float
    admit_delay: float
    rank: int
    topology: str
    role: Literal["member", "spare"]
    on_give_up: Literal["auto", "wait", "close"]
    node_name: str
    store: Literal["auto", "torch", "rallypoint", "etcd"]
    is_host: bool
    # A server at a fixed address
    token_file: str
    # An elected server
    server_port: int | str
    lease_ttl: int
    # etcd v3
    etcd_prefix: str
    username: str
    password_file: str
    # A server at a fixed address, and etcd v3
    cacert: str
    cert: str
    key: str
    # etcd v2
    protocol: Literal["http", "https"]
    ssl_cert: str
    ssl_cert_key: str
    ca_cert: str
