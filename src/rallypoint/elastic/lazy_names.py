"""Names that PyTorch's modules have from other packages, found here when they are first used.

So `import rallypoint.elastic.…` imports neither torch nor python-etcd.  A store is torch's where torch is installed, and
ours where it is not, as in the backends.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

ETCD_STORE = "rallypoint.elastic.etcd_store:EtcdStore"

_TARGETS = {
    "FileStore": ("torch.distributed:FileStore", "rallypoint.stores:FileStore"),
    "NodeState": ("torch.distributed.elastic.events:NodeState",),
    "PrefixStore": ("torch.distributed:PrefixStore", "rallypoint.stores:PrefixStore"),
    "Store": ("torch.distributed:Store", "rallypoint.stores:Store"),
    "TCPStore": ("torch.distributed:TCPStore", "rallypoint.stores:TcpStore"),
    "construct_and_record_rdzv_event": ("torch.distributed.elastic.events:construct_and_record_rdzv_event",),
    "dist": ("torch.distributed",),
    "etcd": ("etcd",),
    "urllib3": ("urllib3",),
}


def lazy_names(module: str, *names: str, **targets: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has these names; `targets` are names of its own, each as "module:attribute"."""
    known = {name: _TARGETS[name] for name in names} | {name: (target,) for name, target in targets.items()}

    def find(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = _found(module, name, known[name])
        vars(sys.modules[module])[name] = found
        return found

    return find


def _found(module: str, name: str, targets: tuple[str, ...]) -> Any:
    failure: ImportError | None = None
    for target in targets:
        source, _, attribute = target.partition(":")
        try:
            imported: ModuleType = importlib.import_module(source)
        except ImportError as exc:
            failure = failure or exc
            continue
        return getattr(imported, attribute) if attribute else imported
    raise AttributeError(f"module {module!r} has no attribute {name!r} here: {failure}") from failure
