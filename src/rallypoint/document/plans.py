"""What an editor decided, and what it was told beside the document."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rallypoint.core.events import Message
from rallypoint.document.page import Page


class Plan(msgspec.Struct, frozen=True):
    """What to do: say this beside the document; or write these bytes; or else wait for so long."""

    say: Message | None = None
    write: bytes | None = None
    page: Page | None = None
    wait_s: float = 0.0
    rings: bool = False
    why: str = ""


class Heard(msgspec.Struct, frozen=True):
    """Announcements that stood beside the document: the messages, the last number, and which were not there yet."""

    messages: Sequence[Message] = ()
    last: int = 0
    gaps: tuple[int, ...] = ()
