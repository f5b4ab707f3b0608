"""Tokens: which peer may do what in which run (rule 16), and how it shows that without telling the token.

A server has a *master token*.  Every run has three keys that follow from it, one a role, each from the one before:

    admin key = HMAC(master token, run id)      node key = HMAC(admin key, "node")      viewer key = HMAC(node key, "viewer")

So a token of a run says nothing of other runs and of higher roles, and a peer with a higher role can take a lower one.  A
connection is opened by a challenge: both sides send a fresh nonce, and each proves that it has the key of the role by a MAC
of both nonces, the run, the node, the connection's number and the role.  Nothing of that can be used a second time.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["AccessRole", "Side", "Token", "client_token", "new_token", "nonce", "read_token", "token_of"]

VARIABLE = "RALLYPOINT_TOKEN"
"""The environment variable with a token, where no file is named."""
SHORTEST = 16
LONGEST = 1024
_PREFIX = "rallypoint1"


class AccessRole(enum.Enum):
    """What a peer may do: an admin closes and evicts, a node joins, a viewer looks."""

    ADMIN = "admin"
    NODE = "node"
    VIEWER = "viewer"


_ORDER = tuple(AccessRole)


class Side(enum.Enum):
    """What a MAC is for: which end of a connection it proves, or a place that a server gave out; one fits no other."""

    CLIENT = "client"
    SERVER = "server"
    PLACE = "place"


class Token(msgspec.Struct, frozen=True, eq=False):
    """A master token, or, with a `run_id`, the key of one run and role."""

    secret: bytes
    run_id: str = ""
    role: AccessRole = AccessRole.ADMIN

    def __repr__(self) -> str:
        # A token must not get into a log.
        return f"Token({f'run {self.run_id!r}, role {self.role.value}' if self.run_id else 'master'})"

    @classmethod
    def parse(cls, text: str) -> Token:
        """A token as it was written down; ValueError, without showing it, for what cannot be one."""
        text = text.strip()
        if not SHORTEST <= len(text) <= LONGEST or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError(
                f"it should be {SHORTEST} to {LONGEST} printable ASCII characters without blanks, and has {len(text)} "
                f"characters: `rallypoint token --new` makes a good one"
            )
        if not text.startswith(f"{_PREFIX}."):
            return cls(text.encode())
        try:
            _, role, run_id, key = text.split(".")
            token = cls(_from_text(key), _from_text(run_id).decode(), AccessRole(role))
        except (ValueError, binascii.Error):
            raise ValueError(
                "it begins as the token of a run and does not end as one: it may have been cut off; `rallypoint token RUN` "
                "prints it again"
            ) from None
        if len(token.secret) != hashlib.sha256().digest_size or not token.run_id:
            raise ValueError("it is the token of a run, and was cut off; `rallypoint token RUN` prints it again")
        return token

    def for_run(self, run_id: str, role: AccessRole) -> Token:
        """The token of one run and role; ValueError with a sentence where this one does not reach so far."""
        if not self.run_id:
            key, at = _hmac(self.secret, run_id.encode()), 0
        elif self.run_id != run_id:
            raise ValueError(f"the token is for the run {self.run_id!r}, not for {run_id!r}")
        else:
            key, at = self.secret, _ORDER.index(self.role)
        wanted = _ORDER.index(role)
        if wanted < at:
            raise ValueError(f"the token is for the role {self.role.value}, which may not do what {_article(role)} may")
        for lower in _ORDER[at + 1 : wanted + 1]:
            key = _hmac(key, lower.value.encode())
        return Token(key, run_id, role)

    def written(self) -> str:
        """The token of a run as text for a file or an environment variable."""
        return ".".join((_PREFIX, self.role.value, _to_text(self.run_id.encode()), _to_text(self.secret)))

    def prove(self, side: Side, *named: str | int) -> str:
        """A MAC of everything that names this connection, by one side of it."""
        return _hmac(self.secret, msgspec.json.encode((side.value, self.run_id, self.role.value, *named))).hex()

    def is_proof(self, given: str, side: Side, *named: str | int) -> bool:
        """Whether the other side has the same token, in a time that does not tell where a wrong proof differs."""
        return hmac.compare_digest(given.encode(), self.prove(side, *named).encode())


def token_of(secret: str) -> Token | None:
    """The secret of a claim as a master token (rule 17j); None where there is none."""
    return Token(secret.encode()) if secret else None


def new_token() -> str:
    """A master token that nobody can guess."""
    return secrets.token_urlsafe(32)


def nonce() -> str:
    """A text that was never sent before."""
    return secrets.token_hex(16)


def read_token(file: str | None = None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """The token in a file, or else in RALLYPOINT_TOKEN, or None; ValueError that says where it is wrong, not how it reads."""
    where, text = (f"The token file {file!r}", _read(file)) if file else (VARIABLE, environment.get(VARIABLE, ""))
    if not file and not text:
        return None
    try:
        return Token.parse(text)
    except ValueError as exc:
        raise ValueError(f"{where} has no token: {exc}.") from None


def client_token(token: Token, run_id: str, role: AccessRole) -> Token:
    """What a peer connects with; ValueError with advice where its token is for something else."""
    try:
        return token.for_run(run_id, role)
    except ValueError as exc:
        wanted = f"rallypoint token {run_id} --role {role.value}"
        raise ValueError(
            f"Access to the run {run_id!r} as {role.value}: {exc}; `{wanted}` prints one that fits."
        ) from None


def _read(file: str) -> str:
    path = Path(file)
    try:
        with path.open("rb") as opened:
            if stat.S_ISDIR(os.fstat(opened.fileno()).st_mode):
                raise IsADirectoryError(21, "it is a folder")
            data = opened.read(LONGEST + 2)
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"The token file {file!r} is not plain text.") from None
    except OSError as exc:
        raise ValueError(f"The token file {file!r} cannot be read: {exc.strerror or exc}.") from None


def _article(role: AccessRole) -> str:
    return f"{'an' if role is AccessRole.ADMIN else 'a'} {role.value}"


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
