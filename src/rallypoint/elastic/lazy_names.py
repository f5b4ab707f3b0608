"""Names that PyTorch's modules have from elsewhere, found here when they are first used.

So `import rallypoint.elastic.…` imports neither torch nor python-etcd.  A store is torch's where torch is installed, and
ours where it is not, as in the backends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

# By name, where it comes from; of two places, the first that can be imported.  What is not listed is a name of `api`.
_SOURCES = {
    "EtcdStore": ("rallypoint.elastic.etcd_store:EtcdStore",),
    "FileStore": ("torch.distributed:FileStore", "rallypoint.stores:FileStore"),
    "NodeState": ("torch.distributed.elastic.events:NodeState",),
    "PrefixStore": ("torch.distributed:PrefixStore", "rallypoint.stores:PrefixStore"),
    "Store": ("torch.distributed:Store", "rallypoint.stores:Store"),
    "TCPStore": ("torch.distributed:TCPStore", "rallypoint.stores:TcpStore"),
    "Token": ("rallypoint.elastic.dynamic_rendezvous:Token",),
    "cas_delay": ("rallypoint.elastic.etcd_store:cas_delay",),
    "construct_and_record_rdzv_event": ("torch.distributed.elastic.events:construct_and_record_rdzv_event",),
    "create_handler": ("rallypoint.elastic.dynamic_rendezvous:create_handler",),
    "dist": ("torch.distributed",),
    "dynamic_rendezvous": ("rallypoint.elastic.dynamic_rendezvous",),
    "etcd": ("etcd",),
    "parse_rendezvous_endpoint": ("rallypoint.elastic.utils:parse_rendezvous_endpoint",),
    "urllib3": ("urllib3",),
    "utils": ("rallypoint.elastic.utils",),
}


def lazy_names(module: str, *names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has these names."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        failure: ImportError | None = None
        for source in _SOURCES.get(name, (f"rallypoint.elastic.api:{name}",)):
            try:
                found = vars(sys.modules[module])[name] = resolve_name(source)
            except ImportError as exc:  # noqa: PERF203  # two places at most
                failure = failure or exc
            else:
                return found
        raise AttributeError(f"module {module!r} has no attribute {name!r} here: {failure}") from failure

    return find
