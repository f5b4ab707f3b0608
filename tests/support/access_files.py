"""Files by which a server and its callers believe each other: those of a token, or of a small authority."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rallypoint.tokens import AccessRole, Token, new_token

TOKEN, CERTIFICATES = "a token", "certificates"


class AccessFiles(NamedTuple):
    """The options of a server, of the nodes of one run, of a caller whose files are another's, and of one that has none."""

    server: dict[str, str]
    node: dict[str, str]
    stranger: dict[str, str]
    bare: dict[str, None]


def of_a_token(folder: Path, run: str) -> AccessFiles:
    """The server has a master token, and nodes have one of their run."""

    def written(name: str, text: str) -> dict[str, str]:
        file = folder / name
        file.write_text(text, encoding="ascii")
        return {"token_file": str(file)}

    def of_the_run(master: str) -> str:
        return Token.parse(master).for_run(run, AccessRole.NODE).written()

    master = new_token()
    node, stranger = written("node", of_the_run(master)), written("stranger", of_the_run(new_token()))
    return AccessFiles(written("master", master), node, stranger, {"token_file": None})


def of_certificates(folder: Path, run: str) -> AccessFiles:
    """Each side has a certificate of one authority, and the stranger one of another."""
    from rallypoint.cli.certificates import make_certificates

    def shown(authority: str, name: str) -> dict[str, str]:
        files = folder / authority
        return {"cacert": f"{files}/ca.pem", "cert": f"{files}/{name}.pem", "key": f"{files}/{name}-key.pem"}

    for authority in ("ours", "theirs"):
        make_certificates(folder / authority, HOSTS, 30)
    return AccessFiles(
        shown("ours", "server"),
        shown("ours", "node"),
        shown("theirs", "node"),
        {"cacert": None, "cert": None, "key": None},
    )


HOSTS = ("10.77.0.1", "10.77.0.2", "10.88.0.1", "10.88.0.2", "fd77::1", "fd77::2", "server.late")
"""What hosts of tests are called, beside loopback."""

WAYS: dict[str, Callable[[Path, str], AccessFiles]] = {TOKEN: of_a_token, CERTIFICATES: of_certificates}


def flags(options: Mapping[str, str]) -> list[str]:
    """The same options on a command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
