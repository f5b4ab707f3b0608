"""Arguments that several commands take: names, times, and the endpoint, which is a server or a register that names servers."""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.cli.exit_codes import UsageError
from rallypoint.errors import RendezvousConnectionError
from rallypoint.net import DEFAULT_PORT, parse_endpoint, written

if TYPE_CHECKING:
    from rallypoint.client.admin_client import AdminClient
    from rallypoint.location.register_admin import RegisterAdminClient
    from rallypoint.tls import TlsFiles
    from rallypoint.tokens import Token

ENDPOINT_VARIABLE = "RALLYPOINT_ENDPOINT"  # replaces --endpoint where that is not given
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PROBE_S = 1.0  # how long something that is no server is asked whether it is a c10d store

# Written out here, so that `--help` need not import the code that uses them.
_ACCESS = {
    "token_file": ("FILE", "the file with a server's token (default: $RALLYPOINT_TOKEN)"),
    "cacert": ("FILE", "the certificates that the other side's own is signed by; implies TLS"),
    "cert": ("FILE", "{whose}; implies TLS"),
    "key": ("FILE", "the key of that certificate"),
}
_FOR_ETCD = {
    "etcd_prefix": ("TEXT", "where in etcd the keys of all runs lie (default: /rallypoint)"),
    "username": ("NAME", "the name of etcd's user, where it has users"),
    "password_file": ("FILE", "the file with that user's password"),
}
_ETCD_V3 = (*_FOR_ETCD, "cacert", "cert", "key")
_TAKEN_BY = {"etcd": _ETCD_V3, "etcds": _ETCD_V3, "etcd-v2": ("cacert", "cert", "key")}  # by the endpoint's scheme


def listen_address(text: str) -> tuple[str, int]:
    """Host and port to listen on; port 0 means a free one."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"it is empty: write HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
    try:
        return parse_endpoint(text, DEFAULT_PORT)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def server_or_register(text: str) -> tuple[str, int] | str:
    """Host and port of a server, or the URL of a register as it was given."""
    from rallypoint.backends.endpoints import check_endpoint, scheme_of

    try:
        scheme = scheme_of(text)
        check_endpoint(text)
        return text.strip() if scheme else parse_endpoint(text, DEFAULT_PORT)
    except ValueError as exc:
        is_from_environment = text == os.environ.get(ENDPOINT_VARIABLE)
        source = f"from the environment variable {ENDPOINT_VARIABLE}: " if is_from_environment else ""
        raise argparse.ArgumentTypeError(f"{source}{exc}") from None


def _checked(text: str, what: str, longest: int, may_be_empty: bool = False) -> str:
    if not text and not may_be_empty:
        raise argparse.ArgumentTypeError(f"it is empty, and {what} is not")
    if len(text) > longest:
        raise argparse.ArgumentTypeError(f"it has {len(text)} characters, and {what} has at most {longest}")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8, and {what} is")
    return text


run_name = partial(_checked, what="a run's name", longest=128)
node_name = partial(_checked, what="a node's name", longest=256)


def duration(text: str) -> float:
    """A time such as 30s, 10m or 2h, in seconds, as argparse wants its types."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match is not None else -1.0
    if not 0 <= seconds <= 365 * 86400:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write a number and s, m, h or d behind it, such as 30s, 10m or 2h, 365d at most"
        )
    return seconds


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where to ask."""
    parser.add_argument(
        "--endpoint",
        type=server_or_register,
        default=os.environ.get(ENDPOINT_VARIABLE) or f"localhost:{DEFAULT_PORT}",
        metavar="ENDPOINT",
        help=f"as the nodes have it: HOST:PORT of a server, etcd://HOST:PORT,HOST:PORT (etcds:// with TLS), "
        f"etcd-v2://HOST:PORT,HOST:PORT, c10d://HOST:PORT or file:///PATH (default: ${ENDPOINT_VARIABLE}, or "
        f"localhost:{DEFAULT_PORT})",
    )
    add_access_arguments(parser, "this client's certificate, where the other side wants one")
    for_etcd = parser.add_argument_group("where the endpoint is etcd", "etcd:// and etcds:// take these.")
    for name, (metavar, help_text) in _FOR_ETCD.items():
        for_etcd.add_argument(_as_flag(name), metavar=metavar, help=help_text)


def add_access_arguments(parser: argparse.ArgumentParser, whose: str) -> None:
    """Declare how the two sides believe each other."""
    group = parser.add_argument_group(
        "access", "a server takes all of these; etcd:// and etcd-v2:// take certificates."
    )
    for name, (metavar, help_text) in _ACCESS.items():
        group.add_argument(_as_flag(name), metavar=metavar, help=help_text.format(whose=whose))


def access(args: argparse.Namespace, *, is_server: bool = False) -> tuple[Token | None, TlsFiles]:
    """The token and the certificates that were named; UsageError for what cannot be used."""
    from rallypoint.tls import TlsFiles
    from rallypoint.tokens import read_token

    tls = TlsFiles(args.cacert or "", args.cert or "", args.key or "")
    try:
        if tls:
            tls.make(is_server=is_server)
        return read_token(args.token_file), tls
    except ValueError as exc:
        raise UsageError(str(exc)) from exc


def add_why_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the reason that nodes are told; it may be empty."""
    reason = partial(_checked, what="a reason", longest=1024, may_be_empty=True)
    parser.add_argument("--why", type=reason, default="", metavar="TEXT", help="the reason that the nodes are told")


def connect(args: argparse.Namespace) -> AdminClient | RegisterAdminClient:
    """A connection to the server that was named, or to those that the register names."""
    given = {name: getattr(args, name) for name in (*_FOR_ETCD, *_ACCESS)}
    config = {name: value for name, value in given.items() if value is not None}
    if isinstance(args.endpoint, str):
        return _connect_to_register(args.endpoint, config)
    host, port = args.endpoint
    where = written(host, port)
    if only_etcd := [name for name in config if name in _FOR_ETCD]:
        raise UsageError(
            f"{_as_flag(only_etcd[0])} is for etcd, and {where} would be a server: write the endpoint as "
            f"etcd://{where}, or leave the option out"
        )
    from rallypoint.client.admin_client import AdminClient
    from rallypoint.stores.store_probe import is_store

    try:
        token, tls = access(args)
        return AdminClient(host, port, token=token, tls=tls)
    except RendezvousConnectionError as exc:
        if not is_store(host, port, _PROBE_S):
            raise
        raise RendezvousConnectionError(
            f"a c10d store is at {where}, and no rallypoint server: write the endpoint as c10d://{where}"
        ) from exc


def _connect_to_register(url: str, config: dict[str, str]) -> RegisterAdminClient:
    from rallypoint.backends.endpoints import records_at, scheme_of
    from rallypoint.client.admin_client import ANSWER_TIMEOUT_S
    from rallypoint.location.register_admin import RegisterAdminClient

    scheme = scheme_of(url)
    taken = _TAKEN_BY.get(scheme, ())
    for name in config:
        if name not in taken:
            known = f"only {', '.join(map(_as_flag, taken))}" if taken else "none of these options"
            raise UsageError(f"{_as_flag(name)} is for etcd://, and {scheme}:// takes {known}: leave it out")
    try:
        return RegisterAdminClient(records_at(url, config, ANSWER_TIMEOUT_S))
    except ValueError as exc:
        raise UsageError(str(exc)) from exc


def _as_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
