"""Endpoints that say by their scheme how the server of a run is found; the ways to take part that are not handlers use them.

10.0.0.5:29400                      a server at a fixed address
etcd://a:2379,b:2379,c:2379         elected through etcd v3 (etcds:// with TLS)
etcd-v2://a:2379                    elected through etcd's API v2
c10d://10.0.0.5:29400               elected through a c10d TCP store, which the process at that address serves
file:///shared/folder/run           elected through a file that all nodes share

What an endpoint needs is imported when it is used: nodes need a backend, administrators only the records in a register.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from rallypoint.backends.options import did_you_mean

if TYPE_CHECKING:
    from rallypoint.backends.membership import MemberBackend
    from rallypoint.location.register_admin import Records

# Where to import from: the backend for nodes, and what opens the records for administrators.
_BY_SCHEME = {
    "etcd": ("etcd_v3:ETCD_V3", "etcd_v3_records:open_records"),
    "etcds": ("etcd_v3:ETCD_V3", "etcd_v3_records:open_records"),
    "etcd-v2": ("etcd_v2:ETCD_V2", "etcd_v2_records:open_records"),
    "c10d": ("c10d:C10D", "c10d_records:open_tcp"),
    "file": ("c10d:FILE", "c10d_records:open_file"),
}


def scheme_of(endpoint: str | None) -> str:
    """The scheme of an endpoint, in small letters; empty where it has none.  ValueError for one that nobody knows."""
    scheme, mark, _ = (endpoint or "").strip().partition("://")
    if not mark:
        return ""
    scheme = scheme.lower()
    if scheme not in _BY_SCHEME:
        known = ", ".join(f"{name}://" for name in _BY_SCHEME)
        raise ValueError(
            f"The endpoint {endpoint!r} begins with {scheme}://, which is unknown here.{did_you_mean(scheme, _BY_SCHEME)} "
            f"Write host:port for a server, or one of {known}."
        )
    return scheme


def check_endpoint(endpoint: str | None, *, or_empty: bool = False) -> None:
    """Refuse an endpoint at which nothing can be reached: an empty one, unless it has a meaning, and one with port 0."""
    text = (endpoint or "").strip()
    if not or_empty and not without_scheme(text):
        raise ValueError(f"The endpoint {endpoint!r} is empty: write HOST:PORT, or a URL such as etcd://HOST:PORT.")
    ports = [member.strip().rpartition(":")[2] for member in text.split(",") if ":" in member]
    if not text.lower().startswith("file:") and any(port and not port.strip("0") for port in ports):
        raise ValueError(f"The endpoint {endpoint!r} has port 0, on which nothing can be reached: write the real port.")


def without_scheme(endpoint: str | None) -> str:
    """What stands behind the scheme, or all of it where there is none."""
    text = (endpoint or "").strip()
    return text.partition("://")[2] if "://" in text else text


def path_of(endpoint: str) -> str:
    """The file that an endpoint names."""
    path = without_scheme(endpoint)
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"The endpoint {endpoint!r} names no file: write file:///folder/file, with three slashes.")
    return path


def backend_at(endpoint: str | None) -> MemberBackend:
    """The backend that an endpoint asks for; what it needs is imported now."""
    scheme = scheme_of(endpoint)
    backend = _BY_SCHEME[scheme][0] if scheme else "fixed:RALLYPOINT"
    return cast("MemberBackend", resolve_name(f"{__package__}.{backend}"))


def records_at(endpoint: str, config: Mapping[str, object], timeout_s: float) -> Records:
    """The records of the runs at an endpoint that has a scheme; each call of the register may take `timeout_s`.

    `config` are the options for etcd.  ValueError for what cannot be read, RendezvousError where nothing can be reached.
    """
    opener = resolve_name(f"{__package__}.{_BY_SCHEME[scheme_of(endpoint)][1]}")
    return cast("Records", opener(endpoint, config, timeout_s))
