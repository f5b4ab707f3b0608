"""torch's errors as ours, for backends that were written for torch; torch itself is never imported for it."""

from __future__ import annotations

import sys

from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError


def as_ours(error: Exception) -> Exception:
    """The same error in our family, where it is of torch's; any other as it is."""
    theirs = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    if theirs is None or isinstance(error, RendezvousError):
        return error
    for ours in (RendezvousConnectionError, RendezvousStateError):
        kind = getattr(theirs, ours.__name__, None)
        if isinstance(kind, type) and isinstance(error, kind):
            return ours(str(error) or type(error).__name__)
    return error
