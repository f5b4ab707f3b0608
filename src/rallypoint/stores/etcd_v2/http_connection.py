"""A connection to a member of etcd: HTTP of one request at a time, no more of it than etcd's API v2 needs.

A request leaves in one piece, and nothing is ever sent twice: what became of it is for the caller to find out.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

FORM = "application/x-www-form-urlencoded"


class HttpResponse(NamedTuple):
    """What a member said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def connect(uri: str, context: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    """A socket to a member; OSError where there is nobody, ssl.SSLError where one does not trust the other."""
    url = urlsplit(uri)
    host = url.hostname or "localhost"
    sock = socket.create_connection((host, url.port or 2379), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if context is None else context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def tls_context(given: Mapping[str, Any]) -> ssl.SSLContext:
    """What python-etcd was told about certificates, by the names of urllib3."""
    context = ssl.create_default_context(cafile=given.get("ca_certs"))
    if given.get("cert_file"):
        context.load_cert_chain(given["cert_file"], given.get("key_file"))
    return context


def request(
    method: str, uri: str, path: str, fields: Mapping[str, str], headers: Mapping[str, str], *, last: bool = False
) -> bytes:
    """The bytes of a request; `last` lets the member end the connection after it."""
    text = urlencode(fields)
    lines = [f"Host: {urlsplit(uri).netloc}", *(f"{name}: {value}" for name, value in headers.items())]
    if last:
        lines.append("Connection: close")
    target, body = quote(path), b""
    if method in ("PUT", "POST"):
        body = text.encode("ascii")
        lines += [f"Content-Type: {FORM}", f"Content-Length: {len(body)}"]
    elif text:
        target = f"{target}?{text}"
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def read_response(data: bytes) -> HttpResponse | None:
    """A whole response; None while some of it is missing."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().title(): value.strip() for name, _, value in pairs}
    try:
        status = int(status_line.split(" ")[1])
        if headers.get("Transfer-Encoding", "").lower() == "chunked":
            whole = _dechunked(body)
            return None if whole is None else HttpResponse(status, headers, whole)
        size = int(headers.get("Content-Length", "0"))
    except (IndexError, ValueError):
        raise ConnectionError(f"what answers is no etcd: it says {data[:60]!r}") from None
    return None if len(body) < size else HttpResponse(status, headers, body[:size])


class HttpConnection:
    """A connection that is used again and again, by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self, sent: bytes, timeout_s: float) -> HttpResponse:
        """Ask, and wait for the answer; after an OSError the connection is of no more use."""
        self._sock.settimeout(timeout_s)
        self._sock.sendall(sent)
        data = b""
        while True:
            more = self._sock.recv(1 << 18)
            if not more:
                raise ConnectionResetError("the connection was closed before an answer came")
            data += more
            response = read_response(data)
            if response is not None:
                return response

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def _dechunked(body: bytes) -> bytes | None:
    """The content of a body that comes in pieces; None while some are missing."""
    content = b""
    while True:
        size_text, found, rest = body.partition(b"\r\n")
        if not found:
            return None
        size = int(size_text.split(b";")[0], 16)
        if size == 0:
            return content if rest.startswith(b"\r\n") else None
        if len(rest) < size + 2:
            return None
        content += rest[:size]
        body = rest[size + 2 :]
