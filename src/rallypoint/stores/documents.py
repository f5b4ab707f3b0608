"""Where PyTorch's backends keep the document of a run, and how it is written there: in base64, under one key."""

from __future__ import annotations

import binascii
from base64 import b64decode

from rallypoint.errors import RendezvousStateError

C10D_PREFIX = "torch.rendezvous."
ETCD_V2_FOLDER = "/torch/elastic/rendezvous"

# A store's `get` waits for a key that is missing, so the key is never missing: this stands there before anything does.
# It is the value that torch's nodes put there, so that they and ours see an empty place alike.
C10D_NOTHING = b"Y2FuaW1hZGFt"


def decode_document(stored: bytes, key: str) -> bytes:
    """The document in a value; RendezvousStateError where that is something else."""
    try:
        return b64decode(stored, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise RendezvousStateError(
            f"the document of the run is damaged: {key} should hold base64, and begins with {stored[:40]!r}; something "
            f"else writes to it: use another run id"
        ) from exc
