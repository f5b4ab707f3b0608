"""The one place that decides which server a round's store gets, where this node is the one to host it (rule 12).

Both speak the same wire format, so nodes of one world need not agree.
"""

from __future__ import annotations

from rallypoint.client.round_store import Serve, serve_here
from rallypoint.elastic.options import choice

AUTO, OURS, TORCH, ETCD = "auto", "rallypoint", "torch", "etcd"

STORE = choice(
    "store", (AUTO, TORCH, OURS), AUTO, "whose server a round's store gets: torch's, ours, or torch's under torchrun"
)
STORE_OR_ETCD = choice(
    "store",
    (AUTO, TORCH, OURS, ETCD),
    AUTO,
    "whose server a round's store gets: torch's, ours, or torch's under torchrun; etcd keeps it in etcd, with no server",
)


def store_server(asked: str, *, under_torch: bool) -> Serve:
    """What serves the store of a round."""
    if asked in (OURS, ETCD) or (asked == AUTO and not under_torch):
        return serve_here
    try:
        from rallypoint.torch_bridge.tcp_store import serve
    except ImportError as exc:
        raise ValueError(
            f"store=torch needs torch, which cannot be imported ({exc}): install rallypoint[torch], or leave the option out"
        ) from exc
    return serve
