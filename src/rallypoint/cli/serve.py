"""`rallypoint serve`: a server of its own, for many runs; it binds what it is told to bind (rule 16)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.cli.arguments import access, add_access_arguments, listen_address
from rallypoint.cli.exit_codes import UsageError
from rallypoint.errors import RendezvousError
from rallypoint.net import DEFAULT_PORT, written

if TYPE_CHECKING:
    import socket

    from rallypoint.tls import TlsContext, TlsFiles
    from rallypoint.tokens import Token

WATCH_S = 3600.0
TLS_BUFFER = 16 * 1024
"""As much as TLS says in one piece."""
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
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep worlds and closed runs there across restarts")
    parser.add_argument("--log-json", type=Path, metavar="FILE", help="append each event to this file as a JSON line")
    parser.add_argument(
        "--insecure", action="store_true", help="bind beyond loopback, though everybody who reaches the port is let in"
    )
    add_access_arguments(parser, "the server's own certificate")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    import asyncio

    try:
        token, tls = access(args, is_server=True)
        is_closed = token is not None or bool(tls.cacert)
        with _listen(*args.bind, insecure=args.insecure or is_closed) as listener:
            asyncio.run(_serve(listener, args, token, tls))
    except OSError as exc:
        raise RendezvousError(str(exc)) from exc
    return 0


def _listen(host: str, port: int, *, insecure: bool) -> socket.socket:
    import socket
    from ipaddress import ip_address

    from rallypoint.net import listen
    from rallypoint.server.sockets import is_taken

    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
        if insecure:
            return listen(host, port)
        if ip_address(address).is_loopback:
            return listen(address, port)  # the address that was checked; the name may mean another by now
    except OSError as exc:
        if is_taken(exc):
            advice = f"end that one, or bind another port (--bind {written(host, 0)} takes a free one)"
            raise RendezvousError(f"{written(host, port)} is taken by another process: {advice}") from exc
        raise RendezvousError(f"{written(host, port)} cannot be bound: {exc.strerror or exc}") from exc
    raise UsageError(
        f"{host} is not a loopback address, so other machines may reach it, and whoever does could join, close and "
        f"evict: give it a token (--token-file, made by `rallypoint token --new`) or certificates with a CA (--cacert, "
        f"--cert, --key, made by `rallypoint certs DIR`); or bind 127.0.0.1, or add --insecure where the network is trusted"
    )


def use_small_tls_buffers() -> None:
    """asyncio reads 256 KiB at a time for each encrypted connection, and keeps as much: no message of ours needs it."""
    from asyncio import sslproto

    sslproto.SSLProtocol.max_size = TLS_BUFFER  # type: ignore[attr-defined]  # Python 3.10 has no such buffer


async def keep_watch(context: TlsContext) -> None:
    """Warn of the end of the certificate also where nobody connects for weeks."""
    import asyncio

    while True:
        await asyncio.sleep(WATCH_S)
        context.keep_watch()


async def _serve(listener: socket.socket, args: argparse.Namespace, token: Token | None, tls: TlsFiles) -> None:
    import asyncio
    import logging
    import signal
    from contextlib import ExitStack
    from functools import partial

    from rallypoint import events
    from rallypoint.cli.server_log import StderrLog
    from rallypoint.net import is_local
    from rallypoint.server.coordinator import Coordinator
    from rallypoint.server.service import Service
    from rallypoint.server.state_file import StateFile
    from rallypoint.tls import TlsContext

    signals: asyncio.Queue[str] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number.name)
    log, lines = logging.getLogger("rallypoint"), StderrLog()
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    with ExitStack() as stack:
        stack.callback(lines.finish)
        if args.log_json is not None:
            stack.enter_context(events.write_json_lines(args.log_json))
        context = TlsContext(tls, is_server=True) if tls else None
        service = Service(
            partial(Coordinator, token=token),
            state=StateFile(args.state) if args.state is not None else None,
            tls=context,
            raises_file_limit=True,
        )
        if context is not None:
            use_small_tls_buffers()
            stack.callback(asyncio.create_task(keep_watch(context)).cancel)
        host, port = listener.getsockname()[:2]
        await service.start(listener)
        if args.insecure and token is None and not tls.cacert:
            log.warning("there is no token and no CA: whoever reaches %s can join, close and evict", args.bind[0])
        if is_local(host) and not is_local(args.bind[0]):
            advice = "bind an address of an interface, or 0.0.0.0"
            log.warning("%s is %s on this machine, which no other machine reaches: %s", args.bind[0], host, advice)
        print(f"rallypoint serve: listening on {written(host, port)}", flush=True)
        log.info("ended by %s", await signals.get())
        await service.stop()
