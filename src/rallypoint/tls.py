"""TLS for server and nodes: contexts from files, made anew when the files change, with a warning before they expire.

A server shows `cert` and `key`.  With `cacert` it wants a certificate of each peer too (mutual TLS), and a peer believes only
servers whose certificate was signed by one of those.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

__all__ = ["NO_TLS", "TlsContext", "TlsFiles", "expires_at"]

log = logging.getLogger("rallypoint.tls")

WARN_BEFORE = timedelta(days=14)
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _SHORT_TIME = 0xA0, 0x17
WARN_AGAIN_S = 86400.0
LOOK_S = 1.0
"""How often the files are looked at, at most."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Where the certificates and the key are; empty: there is none."""

    cacert: str = ""
    cert: str = ""
    key: str = ""

    def __bool__(self) -> bool:
        return bool(self.cacert or self.cert or self.key)

    def check(self) -> None:
        """ValueError for what cannot be used together."""
        if bool(self.cert) != bool(self.key):
            given, missing = ("cert", "key") if self.cert else ("key", "cert")
            raise ValueError(f"{given} is given and {missing} is not: a certificate and its key go together.")

    def make(self, *, is_server: bool) -> ssl.SSLContext:
        """A context of these files; ValueError with a sentence where they cannot be used."""
        self.check()
        if is_server and not self.cert:
            raise ValueError("A server with TLS needs a certificate and its key: give cert and key.")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if is_server:
            context.num_tickets = 0  # a connection that is taken up again would not be held to a replaced CA
        if self.cert:
            what = f"The certificate {self.cert!r} with the key {self.key!r}"
            _load(what, context.load_cert_chain, self.cert, self.key, _no_password)
        if self.cacert:
            _load(f"The CA certificate {self.cacert!r}", context.load_verify_locations, self.cacert)
            context.verify_mode = ssl.CERT_REQUIRED
        elif not is_server:
            context.load_default_certs()
        return context

    def signature(self) -> tuple[object, ...]:
        """What changes when a file is replaced."""
        return tuple(_stamp(name) for name in (self.cacert, self.cert, self.key))


NO_TLS = TlsFiles()


class TlsContext:
    """The context of some files, as they are now."""

    def __init__(self, files: TlsFiles, *, is_server: bool) -> None:
        self._files = files
        self._is_server = is_server
        self._looked = self._warned = time.monotonic()
        self._signature = files.signature()
        self._context = self._make()
        self.warn_of_expiry()

    def current(self) -> ssl.SSLContext:
        """The context to use for the next connection.  Files that cannot be used change nothing, and are said."""
        self.keep_watch()
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            signature = self._files.signature()
            if signature != self._signature:
                self._signature = signature
                self._reload()
        return self._context

    def keep_watch(self) -> None:
        """Warn where a day has passed since the last look at the certificate: a connection may last for months."""
        if time.monotonic() - self._warned >= WARN_AGAIN_S:
            self.warn_of_expiry()

    def warn_of_expiry(self) -> None:
        """Say when this side's certificate has expired, or will within two weeks."""
        if not self._files.cert:
            return
        self._warned = time.monotonic()
        try:
            ends = expires_at(Path(self._files.cert).read_bytes())
        except OSError:
            return  # it is just being replaced
        left = ends - datetime.now(timezone.utc) if ends is not None else WARN_BEFORE * 2
        if ends is not None and left < WARN_BEFORE:
            state = f"expires in {left.days} days" if left > timedelta(0) else "has expired"
            log.warning(
                "the certificate %s %s (%s): replace the file, it is read again by itself",
                self._files.cert,
                state,
                ends,
            )

    def _reload(self) -> None:
        try:
            self._context = self._make()
        except ValueError as exc:
            log.warning("the certificates have changed and cannot be used, the former ones stay in use: %s", exc)
        else:
            log.info("the certificates have changed and are used from now on")
            self.warn_of_expiry()

    def _make(self) -> ssl.SSLContext:
        context = self._files.make(is_server=self._is_server)
        if self._is_server:
            # asyncio keeps the context that a listener was opened with: this replaces it for each connection.
            context.sni_callback = self._renew
        return context

    def _renew(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        current = self.current()
        if current is not context:
            connection.context = current


def expires_at(pem: bytes) -> datetime | None:
    """When the first certificate of a PEM file ends; None where that cannot be read."""
    try:
        text = pem.decode("ascii")
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        certificate = _elements(ssl.PEM_cert_to_DER_cert(first))[0][1]
        fields = _elements(_elements(certificate)[0][1])
        # Serial number, algorithm and issuer come first, and before them the version, which may be left out.
        validity = fields[4 if fields[0][0] == _VERSION else 3][1]
        kind, moment = _elements(validity)[1]
        form = "%y%m%d%H%M%SZ" if kind == _SHORT_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(moment.decode("ascii"), form).replace(tzinfo=timezone.utc)
    except (ValueError, IndexError):
        return None


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The elements that stand side by side in DER, each with its tag; the standard library decodes only what it has verified."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length >= 0x80:
            size = length - 0x80
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _no_password() -> str:
    raise ValueError("The key is encrypted, and nobody is there to type a pass phrase: give one that is not.")


def _load(what: str, load: Callable[..., None], *files: object) -> None:
    try:
        load(*files)
    except ssl.SSLError as exc:
        why = (
            "the key is not that of the certificate"
            if exc.reason == "KEY_VALUES_MISMATCH"
            else f"it is not valid PEM ({exc.reason})"
        )
        raise ValueError(f"{what} cannot be used: {why}.") from exc
    except OSError as exc:
        raise ValueError(f"{what} cannot be read: {exc.strerror or exc}.") from exc


def _stamp(name: str) -> tuple[int, int, int] | None:
    if not name:
        return None
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
