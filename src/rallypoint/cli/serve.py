"""`rallypoint serve`: a server of its own, for many runs; it binds what it is told to bind (rule 16)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import DEFAULT_PORT, listen_address
from rallypoint.cli.exit_codes import ExitCode, UsageError
from rallypoint.cli.output import print_error, printable
from rallypoint.net import written

if TYPE_CHECKING:
    import logging
    import socket

HELP = "serve runs to nodes, until SIGTERM or SIGINT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument(
        "--bind",
        type=listen_address,
        default=("127.0.0.1", DEFAULT_PORT),
        metavar="HOST:PORT",
        help=f"where to listen; port 0 takes a free one (default: 127.0.0.1:{DEFAULT_PORT}, for this machine only)",
    )
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="remember worlds and closed runs there, across restarts"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="bind beyond loopback, though everybody who reaches the port is let in"
    )
    parser.add_argument(
        "--log-json", type=Path, metavar="FILE", help="append every event to this file, a JSON line each"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    import asyncio

    host, port = args.bind
    try:
        listener = _listen(host, port, args.insecure)
    except OSError as exc:
        print_error("serve", _why_not(exc, host, port))
        return ExitCode.REFUSED
    try:
        with listener:
            asyncio.run(_serve(listener, args))
    except OSError as exc:
        print_error("serve", str(exc))
        return ExitCode.REFUSED
    return ExitCode.DONE


def _listen(host: str, port: int, insecure: bool) -> socket.socket:
    import socket
    from ipaddress import ip_address

    from rallypoint.net import listen

    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
    if insecure:
        return listen(host, port)
    if not ip_address(address).is_loopback:
        raise UsageError(
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


async def _serve(listener: socket.socket, args: argparse.Namespace) -> None:
    import asyncio
    import signal
    from contextlib import ExitStack

    from rallypoint import events
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
        if args.log_json is not None:
            stack.enter_context(events.write_json_lines(args.log_json))
        service = Service(state=StateFile(args.state) if args.state is not None else None)
        host, port = listener.getsockname()[:2]
        await service.start(listener)
        if args.insecure:
            log.warning("there are no tokens and no TLS: whoever reaches %s can join, close and evict", args.bind[0])
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
