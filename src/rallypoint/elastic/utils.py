"""What the backends share: reading endpoints and configuration strings, telling one's own address, a periodic timer."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["parse_rendezvous_endpoint"]

log = logging.getLogger(__name__)

# Configuration --------------------------------------------------------------------------------------------------------


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """Options from "name=value,name2=value2"; a value may contain "=". Blanks around names and values do not count."""
    config: dict[str, str] = {}
    if not config_str.strip():
        return config
    for part in config_str.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name:
            raise ValueError(
                f"The configuration {config_str!r} has {part.strip()!r} where an option should be: write name=value, "
                "with a comma between two options and none at the end."
            )
        if not value:
            raise ValueError(
                f"The option {name!r} has no value in the configuration {config_str!r}: write {name}=value, or leave "
                "it out."
            )
        config[name] = value
    return config


# Endpoints ------------------------------------------------------------------------------------------------------------

_LABEL = re.compile(r"(?!-)[\w-]{1,63}(?<!-)")
_SCOPE = re.compile(r"[^\s%/\[\]]+")
_LONGEST_NAME = 253


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
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
    port = _try_parse_port(rest[1:])
    if port is None:
        raise ValueError(f"the port {rest[1:]!r} is no number from 0 to 65535")
    return host, port


def _try_parse_port(port_str: str) -> int | None:
    """A port number, or None when the text is none."""
    if re.fullmatch(r"[0-9]{1,5}", port_str) and int(port_str) <= 65535:
        return int(port_str)
    return None


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


# This machine ---------------------------------------------------------------------------------------------------------


def _matches_machine_hostname(host: str) -> bool:
    """Whether the host is this machine: its name, loopback, or resolving to an address of one of its interfaces.

    Whether an address is ours is learnt by binding to it, which asks the kernel instead of a name service, and so is
    right for aliases, service names, further network cards and 127.0.1.1 alike. (A kernel that was told to let any
    address be bound, by net.ipv4.ip_nonlocal_bind, calls every address ours.)
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
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


# Time -----------------------------------------------------------------------------------------------------------------


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep for a time, or for a random time between two bounds."""
    if isinstance(seconds, tuple):
        import random

        seconds = random.uniform(*seconds)
    if seconds > 0:
        time.sleep(seconds)


class _PeriodicTimer:
    """Calls a function in a thread of its own, again and again, with a pause of `interval` before each call.

    An error in the function is logged, and the calls go on. The thread ends by `cancel()`, or when nobody holds the
    timer any more.
    """

    # How long a dropped timer waits for a call that is under way; it must not hold up the collector for ever.
    _PARTING_S = 5.0

    def __init__(self, interval: timedelta, function: Callable[..., object], *args: object, **kwargs: object) -> None:
        interval_s = interval.total_seconds()
        if interval_s <= 0:
            raise ValueError(f"The interval of a timer is {interval_s} s, but should be above 0.")
        self._stop = threading.Event()
        # The thread must not hold the timer, or it would never be dropped.
        self._thread = threading.Thread(
            target=_call_periodically,
            args=(self._stop, min(interval_s, threading.TIMEOUT_MAX), function, args, kwargs),
            name="PeriodicTimer",
            daemon=True,
        )
        self._farewell: weakref.finalize[..., _PeriodicTimer] | None = None

    @property
    def name(self) -> str:
        return self._thread.name

    def set_name(self, name: str) -> None:
        """Name the thread; only before it has started."""
        if self._farewell is not None:
            raise RuntimeError("The timer has started: name it before.")
        self._thread.name = name

    def start(self) -> None:
        """Start calling; a timer starts once."""
        if self._farewell is not None:
            raise RuntimeError("The timer was started before: make another one.")
        self._thread.start()
        self._farewell = weakref.finalize(self, _end, self._stop, self._thread, self._PARTING_S)
        self._farewell.atexit = False  # the thread is a daemon, and an exit need not wait for it

    def cancel(self) -> None:
        """Stop calling, and wait for a call that is under way, unless this is it."""
        if self._farewell is not None:
            self._farewell.detach()
            _end(self._stop, self._thread, None)


def _call_periodically(
    stop: threading.Event,
    interval_s: float,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    while not stop.wait(interval_s):
        with _errors_logged(interval_s):
            function(*args, **kwargs)


@contextmanager
def _errors_logged(interval_s: float) -> Iterator[None]:
    try:
        yield
    except Exception:
        name = threading.current_thread().name
        log.exception("A call of the timer %s failed; the next one follows in %g s.", name, interval_s)


def _end(stop: threading.Event, thread: threading.Thread, patience_s: float | None) -> None:
    stop.set()
    if thread is not threading.current_thread():
        thread.join(patience_s)
