"""A standalone server as a process of its own: `python -m tests.support.server_program --port 0`.  It tells what happens as JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rallypoint import events
from rallypoint.net import listen
from rallypoint.server.coordinator import Coordinator
from rallypoint.server.effects import Effects
from rallypoint.server.service import Service
from rallypoint.server.state_file import StateFile
from rallypoint.tls import TlsContext, TlsFiles
from rallypoint.tokens import read_token


def say(event: str, **details: Any) -> None:
    """One line for the test to read."""
    print(json.dumps({"event": event, **details}), flush=True)


def tell(effects: Effects) -> None:
    """What the runs came to."""
    for each in effects.happenings:
        say("happened", run=each.run_id, why=each.why, phase=each.after.phase.value, live=each.after.live)


async def serve(options: argparse.Namespace) -> None:
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    state = StateFile(Path(options.state)) if options.state else None
    files = TlsFiles(options.cacert, options.cert, options.key)
    service = Service(
        partial(Coordinator, token=read_token(options.token_file)),
        state=state,
        acted=tell,
        tls=TlsContext(files, is_server=True) if files else None,
        raises_file_limit=True,
    )
    service.coordinator.runs.fixed_hold_s = options.hold
    await service.start(listener)
    say("serving", port=port)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", default="")
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--record", default="")
    for name in ("--token-file", "--cacert", "--cert", "--key"):
        parser.add_argument(name, default="")
    options = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(
            events.subscribe(lambda event: say(event.kind, run=event.run_id, why=event.why, **event.details))
        )
        if options.record:
            stack.enter_context(events.write_json_lines(Path(options.record)))
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
