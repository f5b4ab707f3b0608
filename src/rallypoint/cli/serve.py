"""`rallypoint serve`: a server of its own, for many runs; it binds what it is told to bind (rule 16)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import endpoint, written
from rallypoint.cli.output import complain, printable

if TYPE_CHECKING:
    import logging
    import socket

HELP = "serve runs to nodes, until SIGTERM or SIGINT"


def declare(parser: argparse.ArgumentParser) -> None:
    """Say which arguments it takes."""
    parser.add_argument(
        "--bind", type=endpoint, required=True, metavar="HOST:PORT", help="where to listen; port 0 takes a free one"
    )
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="remember worlds and closed runs there, across restarts"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="bind beyond loopback, though whoever reaches the port is let in"
    )
    parser.add_argument(
        "--log-json", type=Path, metavar="FILE", help="append every event to this file, a JSON line each"
    )


def run(given: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    import asyncio

    host, port = given.bind
    try:
        listener = _listen(host, port, given.insecure)
    except OSError as exc:
        return complain("serve", _why_not(exc, host, port))
    try:
        with listener:
            asyncio.run(_serve(listener, given))
    except OSError as exc:
        return complain("serve", str(exc))
    return 0


def _listen(host: str, port: int, insecure: bool) -> socket.socket:
    import socket
    from ipaddress import ip_address

    from rallypoint.errors import RendezvousError
    from rallypoint.server.sockets import listen

    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
    if insecure:
        return listen(host, port)
    if not ip_address(address).is_loopback:
        raise RendezvousError(
            f"{host} is not a loopback address, so other machines may reach it, and whoever does could join, close and "
            f"evict: there are no tokens and no TLS yet; bind 127.0.0.1, or add --insecure where the network is trusted"
        )
    return listen(address, port)  # what was checked, not what a name may stand for by now


def _why_not(exc: OSError, host: str, port: int) -> str:
    from rallypoint.server.sockets import is_taken

    where = written(host, port)
    if is_taken(exc):
        free = written(host, 0)
        return (
            f"{where} is taken by another process: end that one, or bind another port (--bind {free} takes a free one)"
        )
    return f"{where} cannot be bound: {exc.strerror or exc}"


async def _serve(listener: socket.socket, given: argparse.Namespace) -> None:
    import asyncio
    import signal
    from contextlib import ExitStack

    from rallypoint import events
    from rallypoint.server.recording import tell
    from rallypoint.server.service import Service
    from rallypoint.server.state_file import StateFile

    stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(signal_name: str) -> None:
        if not stop.done():
            stop.set_result(signal_name)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number.name)
    log = _log_to_stderr()
    with ExitStack() as stack:
        if given.log_json is not None:
            stack.enter_context(events.write_json_lines(given.log_json))
        service = Service(state=StateFile(given.state) if given.state is not None else None, tell=tell)
        host, port = listener.getsockname()[:2]
        await service.start(listener)
        if given.insecure:
            log.warning("there are no tokens and no TLS: whoever reaches %s can join, close and evict", given.bind[0])
        print(f"rallypoint serve: listening on {written(host, port)}", flush=True)
        why = await stop
        log.info("ended by %s", why)
        await service.stop()


def _log_to_stderr() -> logging.Logger:
    """Let what the server has to say appear as lines for people."""
    import logging

    class Lines(logging.Formatter):
        """A line a message, whatever a node may have called itself."""

        def format(self, record: logging.LogRecord) -> str:
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
            return f"{self.formatTime(record)} {level}{printable(record.getMessage())}{trace}"

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    log = logging.getLogger("rallypoint")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    return log
