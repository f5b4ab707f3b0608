"""What listens at an address where a server should be, and is none."""

from __future__ import annotations

import asyncio

from rallypoint.client.locator import Target

ASK_S = 1.0


async def what_answers(target: Target) -> str:
    """What it is that took a connection and never spoke, where that can be found out by asking as others do."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(target.hosts[0], target.port), ASK_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return ""
    try:
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        said = await asyncio.wait_for(reader.read(64), ASK_S)
    except (OSError, asyncio.TimeoutError):
        return ""
    finally:
        writer.close()
    return ": an HTTP server is there" if said.startswith(b"HTTP/") else ""
