"""HTTP to a member of etcd: one request at a time, no more of it than etcd's API v2 needs.

A request leaves in one piece, and nothing is ever sent twice: what became of it is for the caller to find out.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit


class HttpResponse(NamedTuple):
    """What a member said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def connect(uri: str, context: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    """A socket to a member; OSError if nothing listens there, ssl.SSLError if one side does not trust the other."""
    url = urlsplit(uri)
    host = url.hostname or "localhost"
    sock = socket.create_connection((host, url.port or 2379), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if context is None else context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def request(method: str, uri: str, path: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """The bytes of a request."""
    text, target, body = urlencode(fields), quote(path), b""
    headers = {"Host": urlsplit(uri).netloc, **headers}
    if method == "PUT":
        body = text.encode("ascii")
        headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    elif text:
        target = f"{target}?{text}"
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def exchange(sock: socket.socket, sent: bytes, timeout_s: float) -> HttpResponse:
    """Send a request and wait for the response; after an OSError the connection is of no more use."""
    sock.settimeout(timeout_s)
    sock.sendall(sent)
    data = b""
    while True:
        more = sock.recv(1 << 18)
        if not more:
            raise ConnectionResetError("the connection was closed before an answer came")
        data += more
        response = read_response(data)
        if response is not None:
            return response


def read_response(data: bytes) -> HttpResponse | None:
    """A whole response; None while some of it is missing."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().title(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        status = int(status_line.split(" ")[1])
        if headers.get("Transfer-Encoding", "").lower() == "chunked":
            whole = _dechunked(body)
        else:
            size = int(headers.get("Content-Length", "0"))
            whole = None if len(body) < size else body[:size]
    except (IndexError, ValueError):
        raise ConnectionError(f"what answers is no etcd: it says {data[:60]!r}") from None
    return None if whole is None else HttpResponse(status, headers, whole)


def _dechunked(body: bytes) -> bytes | None:
    """The content of a body that comes in chunks; None while some are missing."""
    content = b""
    while True:
        size_text, found, rest = body.partition(b"\r\n")
        size = int(size_text.split(b";")[0], 16) if found else 0
        if not found or len(rest) < size + 2:
            return None
        if size == 0:
            return content
        content += rest[:size]
        body = rest[size + 2 :]
