"""Endpoints and this machine's part in them: the one parser of `host:port`, own addresses, listening sockets."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

DEFAULT_PORT = 29400
"""That of a server, and of a c10d store."""
BACKLOG = 8192
"""As many connections as may arrive in one instant; the kernel lowers it to its own limit (net.core.somaxconn)."""

_LABEL = re.compile(r"(?!-)[\w-]{1,63}(?<!-)")
_SCOPE = re.compile(r"[^\s%/\[\]]+")
_LONGEST_NAME = 253

HTTP_PROBE = b"GET /rallypoint HTTP/1.0\r\n\r\n"
"""What our clients ask where they get no answer, to learn whether a web server is there."""


def parse_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[v6]`, `[v6]:port` or `v6:port`; nothing or blank means localhost.

    An IPv6 address may carry a scope, as in [fe80::1%eth0]:29400; the host is returned with it, without the brackets.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    try:
        host, port = _split_endpoint(text)
    except ValueError as exc:
        raise ValueError(
            f"The endpoint {endpoint!r} cannot be read: {exc}. Write host, host:port, [IPv6] or [IPv6]:port, "
            f"for example node1:{default_port} or [2001:db8::1]:{default_port}."
        ) from None
    return host, default_port if port is None else port


def parse_endpoints(text: str | None, default_port: int) -> list[tuple[str, int]]:
    """Host and port of each endpoint in a list with commas; localhost where the list is empty."""
    parts = [part for part in (text or "").split(",") if part.strip()]
    return [parse_endpoint(part, default_port) for part in parts or [""]]


def written(host: str, port: int) -> str:
    """An endpoint as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split_endpoint(text: str) -> tuple[str, int | None]:
    """The parts of an endpoint; the ValueError is half a sentence that says what is wrong with it."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket:
            raise ValueError("the bracket is not closed")
        if rest and not rest.startswith(":"):
            raise ValueError(f"{rest!r} stands after the bracket, where only a colon and a port may stand")
        if not _is_ipv6(host):
            raise ValueError(f"{host!r} stands in brackets, but is no IPv6 address")
    else:
        if "://" in text:
            raise ValueError("it is a URL, and this backend takes no scheme")
        host, colon, port_text = text.rpartition(":") if ":" in text else (text, "", "")
        rest = colon + port_text
        if ":" in host:
            if not _is_ipv6(host):
                raise ValueError(
                    "it has several colons; an IPv6 address stands in brackets, so that its port can be told"
                )
        elif not _is_host(host):
            raise ValueError(f"the host {host!r} is neither a name nor an IPv4 address")
    if not rest:
        return host, None
    port = parse_port(rest[1:])
    if port is None:
        raise ValueError(f"the port {rest[1:]!r} is no number from 0 to 65535")
    return host, port


def parse_port(port_str: str) -> int | None:
    """A port number, or None when the text is none."""
    return int(port_str) if re.fullmatch(r"[0-9]{1,5}", port_str) and int(port_str) <= 65535 else None


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3,}", host):
        return _is_address(socket.AF_INET, host)
    labels = host.removesuffix(".").split(".")
    return len(host) <= _LONGEST_NAME and all(_LABEL.fullmatch(label) for label in labels)


def _is_ipv6(host: str) -> bool:
    address, percent, scope = host.partition("%")
    return _is_address(socket.AF_INET6, address) and (not percent or _SCOPE.fullmatch(scope) is not None)


def _is_address(family: socket.AddressFamily, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def is_this_machine(host: str) -> bool:
    """Whether the host is this machine: its name, loopback, or resolving to an address of one of its interfaces.

    Binding to an address tells whether it is ours: the kernel answers, not a name service, so that aliases, service names,
    further network cards and 127.0.1.1 are right.  (With net.ipv4.ip_nonlocal_bind every address is ours.)
    """
    if host.casefold() in ("localhost", socket.gethostname().casefold()):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in found)


def _is_own_address(family: int, address: tuple[Any, ...]) -> bool:
    ip = str(address[0])
    if ip == "::1" or ip.startswith("127."):
        return True  # also where IPv6 is switched off
    if ip in ("0.0.0.0", "::"):
        return False  # "any address" can be bound everywhere, but is nobody's
    return _can_be_bound(family, address)


def _can_be_bound(family: int, address: tuple[Any, ...]) -> bool:
    """Whether a socket can have this address here, at any port."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address[0], 0, *address[2:]))
        return True
    return False


def is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    with suppress(ValueError):
        ip_address(host)
        return True
    return False


def host_of(address: tuple[Any, ...]) -> str:
    """The host in the address of a socket; with its scope, where it means nothing without one (fe80::1%eth0)."""
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{socket.if_indextoname(scope)}" if scope else str(address[0])


def own_and_foreign(found: Iterable[tuple[Any, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which addresses of a host, as `getaddrinfo` gives them, are this machine's, and which are not."""
    is_own = {host_of(each[4]): _can_be_bound(each[0], each[4]) for each in found}
    return tuple(sorted(a for a in is_own if is_own[a])), tuple(sorted(a for a in is_own if not is_own[a]))


def is_local(host: str) -> bool:
    """Whether a host means each machine itself, and is so written: as localhost, or as a loopback address."""
    if is_address(host):
        return ip_address(host.partition("%")[0]).is_loopback
    return host.casefold().rstrip(".") == "localhost"


def to_serve_at(host: str, own: Sequence[str]) -> tuple[str, ...]:
    """Where a server listens that is to serve at this host, which stands for these addresses of this machine.

    A machine's own name may be a loopback address to itself (127.0.1.1 in Debian's hosts file) and another one to the
    others: there it listens on all addresses.
    """
    if own and not is_address(host) and not is_local(host) and all(ip_address(each).is_loopback for each in own):
        return ("::",) if socket.has_dualstack_ipv6() else ("0.0.0.0",)
    return tuple(own)


def plain(host: str) -> str | bytes:
    """A host as `getaddrinfo` takes it most quickly: for text it loads a codec that only names beyond ASCII need."""
    return host.encode() if host.isascii() else host


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening socket on this address and port; port 0 takes a free one.  OSError where it cannot be had.

    Of a name with several addresses it takes the first that this machine has.  `::` takes IPv4 as well, `0.0.0.0` is IPv4
    alone.
    """
    problem: OSError | None = None
    try:
        found = socket.getaddrinfo(
            plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except UnicodeError as exc:
        raise OSError(str(exc)) from exc
    for family, _, _, _, address in found:
        try:
            return _listen_at(family, address)
        except OSError as exc:  # noqa: PERF203  # a name has few addresses
            problem = exc
            if exc.errno == errno.EADDRINUSE:
                break  # another process serves this name
    assert problem is not None, "a name that is found has an address"
    raise problem


def listen_at_all(addresses: Iterable[str], port: int) -> list[socket.socket]:
    """A listening socket on each of these addresses; OSError, and none at all, where one cannot be had."""
    listeners: list[socket.socket] = []
    try:
        listeners.extend(listen(address, port) for address in addresses)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listen_at(family: int, address: Any) -> socket.socket:
    """A listening socket on an address as `getaddrinfo` gives it."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these: that of a machine which lost its power is not kept for ever, and a second message
        # does not wait for the peer to confirm the first, which peers put off for 40 ms.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
