"""`rallypoint certs`: a small certificate authority with a certificate for the server and one for the nodes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rallypoint.cli.exit_codes import ExitCode, UsageError

HELP = "make a small CA with certificates for server and nodes, where there is none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go; it is made if it is not there")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or an address by which nodes reach the server; may be given again (localhost is always one)",
    )
    parser.add_argument("--days", type=int, default=365, metavar="N", help="how long they are valid (default: 365)")


def run(args: argparse.Namespace) -> int:
    """Make them, and say how to use them."""
    if not 1 <= args.days <= 3650:
        raise UsageError(f"--days is {args.days}: certificates are valid for 1 to 3650 days")
    try:
        from rallypoint.cli.certificates import make_certificates
    except ImportError as exc:
        raise UsageError(
            f"certificates are made by the package cryptography ({exc}): install the extra certs, or `pip install cryptography`"
        ) from exc
    make_certificates(args.folder, tuple(args.host), args.days)
    folder = args.folder
    print(
        f"made ca.pem, server.pem and node.pem with their keys in {folder}; keep ca-key.pem to yourself\n"
        f"  server: rallypoint serve --cacert {folder}/ca.pem --cert {folder}/server.pem --key {folder}/server-key.pem\n"
        f"  nodes:  cacert={folder}/ca.pem,cert={folder}/node.pem,key={folder}/node-key.pem"
    )
    return ExitCode.DONE
