"""Endpoints and configuration strings are read or refused in words; a machine knows itself; a timer keeps its pace."""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
import threading
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.elastic.utils import (
    _delay,
    _matches_machine_hostname,
    _parse_rendezvous_config,
    _PeriodicTimer,
    parse_rendezvous_endpoint,
)
from rallypoint.net import parse_port

# Configuration --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " ", "\t "])
def test_a_blank_configuration_has_no_options(blank: str) -> None:
    assert _parse_rendezvous_config(blank) == {}


def test_a_configuration_is_read_without_the_blanks_around_names_and_values() -> None:
    assert _parse_rendezvous_config("  rank = 3,role=spare ,\ttopology= rack1/node 2") == {
        "rank": "3",
        "role": "spare",
        "topology": "rack1/node 2",
    }


def test_a_value_may_contain_an_equals_sign() -> None:
    assert _parse_rendezvous_config("token=a=b==") == {"token": "a=b=="}


@pytest.mark.parametrize("config", ["rank=1,", ",rank=1", "rank=1,,role=spare", "=1", "rank=1, = ", " , "])
def test_a_configuration_that_lacks_a_name_is_refused_and_shown(config: str) -> None:
    with pytest.raises(ValueError, match="where an option should be: write name=value") as refusal:
        _parse_rendezvous_config(config)
    assert repr(config) in str(refusal.value)


@pytest.mark.parametrize("config", ["rank", "rank=", "role=spare,rank", "role=spare, rank = ,is_host=1"])
def test_a_configuration_that_lacks_a_value_is_refused_with_the_name(config: str) -> None:
    with pytest.raises(ValueError, match="The option 'rank' has no value") as refusal:
        _parse_rendezvous_config(config)
    assert repr(config) in str(refusal.value)


# Endpoints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", [None, "", "  ", "\t"])
def test_no_endpoint_means_this_machine_and_the_default_port(endpoint: str | None) -> None:
    assert parse_rendezvous_endpoint(endpoint, 29400) == ("localhost", 29400)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("node1", "node1", 29400),
        ("node1:0", "node1", 0),
        ("node1:65535", "node1", 65535),
        (" node1:80 ", "node1", 80),
        ("node-1.rack_2.example.com:80", "node-1.rack_2.example.com", 80),
        ("_service.example.com.:80", "_service.example.com.", 80),
        ("bücher.example:80", "bücher.example", 80),
        ("123456789012:80", "123456789012", 80),
        ("10.0.0.1", "10.0.0.1", 29400),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("10.0.1:80", "10.0.1", 80),
        ("1.2.3", "1.2.3", 29400),
        ("::1:29400", "::1", 29400),
        ("2001:db8::1:80", "2001:db8::1", 80),
        ("[::1]", "::1", 29400),
        ("[::1]:80", "::1", 80),
        ("[2001:db8::1]:80", "2001:db8::1", 80),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80),
        ("[fe80::1%eth0]", "fe80::1%eth0", 29400),
        ("[fe80::1%eth0]:29401", "fe80::1%eth0", 29401),
        ("[fe80::1%2]:80", "fe80::1%2", 80),
        ("[fe80::1%br-lan.100]:80", "fe80::1%br-lan.100", 80),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(endpoint: str, host: str, port: int) -> None:
    assert parse_rendezvous_endpoint(endpoint, 29400) == (host, port)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        (":80", "the host '' is neither"),
        ("~", "the host '~' is neither"),
        ("node1 :80", "the host 'node1 ' is neither"),
        ("node 1", "the host 'node 1' is neither"),
        ("node..1", "the host 'node..1' is neither"),
        (".", "the host '.' is neither"),
        ("-node:80", "the host '-node' is neither"),
        ("a" * 64, "is neither a name nor an IPv4 address"),
        (".".join(["a" * 63] * 5), "is neither a name nor an IPv4 address"),
        ("10.0.0.256:80", "the host '10.0.0.256' is neither"),
        ("10.0.0.0.1:80", "the host '10.0.0.0.1' is neither"),
        ("user@node1:80", "the host 'user@node1' is neither"),
        ("node1,node2:80", "the host 'node1,node2' is neither"),
        ("node1:", "the port '' is no number"),
        ("node1:-1", "the port '-1' is no number"),
        ("node1:+1", "the port '+1' is no number"),
        ("node1: 80", "the port ' 80' is no number"),
        ("node1:http", "the port 'http' is no number"),
        ("node1:8_0", "the port '8_0' is no number"),
        ("node1:65536", "the port '65536' is no number from 0 to 65535"),
        ("node1:١", "is no number from 0 to 65535"),
        ("[::1]:", "the port '' is no number"),
        ("[::1]:65536", "the port '65536' is no number"),
        ("[::1", "the bracket is not closed"),
        ("[::1]80", "'80' stands after the bracket"),
        ("[::1] :80", "' :80' stands after the bracket"),
        ("[]:80", "'' stands in brackets, but is no IPv6 address"),
        ("[node1]:80", "'node1' stands in brackets"),
        ("[10.0.0.1]:80", "'10.0.0.1' stands in brackets"),
        ("[::1::2]:80", "'::1::2' stands in brackets"),
        ("[fe80::1%]:80", "'fe80::1%' stands in brackets"),
        ("[fe80::1%eth 0]:80", "'fe80::1%eth 0' stands in brackets"),
        ("[fe80::1%eth0%eth1]:80", "stands in brackets"),
        ("[\0::1]:80", "stands in brackets"),
        ("fe80::1", "an IPv6 address stands in brackets"),
        ("node1:80:81", "an IPv6 address stands in brackets"),
        ("::1", "an IPv6 address stands in brackets"),
        ("tcp://node1:80", "it is a URL"),
    ],
)
def test_an_endpoint_that_cannot_be_read_is_refused_with_the_reason_and_the_way_out(endpoint: str, reason: str) -> None:
    with pytest.raises(ValueError, match="cannot be read") as refusal:
        parse_rendezvous_endpoint(endpoint, 29400)
    sentence = str(refusal.value)
    assert repr(endpoint) in sentence
    assert reason in sentence
    assert "Write host, host:port, [IPv6] or [IPv6]:port, for example node1:29400" in sentence


LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join).filter(lambda name: not name.replace(".", "").isdigit())
IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(str)
SCOPES = st.one_of(st.just(""), st.from_regex(r"%[a-z][a-z0-9.@_-]{0,14}", fullmatch=True))
BRACKETED = st.tuples(IPV6, SCOPES).map("".join)
PORTS = st.integers(0, 65535)


@given(NAMES | IPV4, st.none() | PORTS)
def test_what_is_written_as_host_and_port_is_read_as_host_and_port(host: str, port: int | None) -> None:
    endpoint = host if port is None else f"{host}:{port}"
    assert parse_rendezvous_endpoint(endpoint, 29400) == (host, 29400 if port is None else port)


@given(BRACKETED, st.none() | PORTS)
def test_what_is_written_in_brackets_is_read_without_them(host: str, port: int | None) -> None:
    endpoint = f"[{host}]" if port is None else f"[{host}]:{port}"
    assert parse_rendezvous_endpoint(endpoint, 29400) == (host, 29400 if port is None else port)


@given(st.text() | st.text("[]:%.-1af "))
def test_any_text_is_read_or_refused_by_a_value_error_that_shows_it(endpoint: str) -> None:
    try:
        host, port = parse_rendezvous_endpoint(endpoint, 29400)
    except ValueError as refusal:
        sentence = str(refusal)
    else:
        assert host.strip() == host != ""
        assert 0 <= port <= 65535
        return
    assert repr(endpoint) in sentence


@pytest.mark.parametrize(("port_str", "port"), [("0", 0), ("80", 80), ("00080", 80), ("65535", 65535)])
def test_a_port_is_read(port_str: str, port: int) -> None:
    assert parse_port(port_str) == port


@pytest.mark.parametrize(
    "port_str", ["", " ", " 1", "1 ", "1\n", "-1", "+1", "1.0", "0x1", "65536", "000080", "a", "²"]
)
def test_what_is_no_port_is_none(port_str: str) -> None:
    assert parse_port(port_str) is None


# This machine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "127.0.0.1", "127.0.1.1", "127.3.2.1", "::1", "0000:0000:0000:0000:0000:0000:0000:0001"],
)
def test_loopback_is_this_machine(host: str) -> None:
    assert _matches_machine_hostname(host)


def test_the_name_of_this_machine_is_this_machine() -> None:
    assert _matches_machine_hostname(socket.gethostname())
    assert _matches_machine_hostname(socket.gethostname().upper())


def own_ipv4_addresses() -> list[str]:
    """One address of each interface, from the kernel."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                answer = b""  # the interface has no IPv4 address
            if answer:
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return addresses


def test_the_address_of_each_interface_is_this_machine() -> None:
    addresses = own_ipv4_addresses()
    assert addresses
    assert all(_matches_machine_hostname(address) for address in addresses)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "::2",
        "2001:db8::1",
        "fe80::1%no-such-card",
        "name.invalid",
        "",
        "no name",
        "a" * 99,
    ],
)
def test_what_is_elsewhere_nowhere_or_everywhere_is_not_this_machine(host: str) -> None:
    assert not _matches_machine_hostname(host)


# Delays ---------------------------------------------------------------------------------------------------------------


def test_a_delay_lasts_as_long_as_it_says() -> None:
    start = time.monotonic()
    _delay(0.02)
    assert time.monotonic() - start >= 0.02


def test_a_random_delay_lasts_at_least_its_lower_bound() -> None:
    start = time.monotonic()
    _delay((0.02, 0.03))
    assert time.monotonic() - start >= 0.02


@pytest.mark.parametrize("nothing", [0, -1, (0, 0), (-2, -1)])
def test_no_delay_returns(nothing: float | tuple[float, float]) -> None:
    _delay(nothing)


# The timer ------------------------------------------------------------------------------------------------------------

PATIENCE_S = 30.0
SOON = timedelta(milliseconds=5)
NEVER = timedelta.max


def test_a_timer_calls_its_function_again_and_again_with_what_it_was_given() -> None:
    calls: list[tuple[int, str]] = []
    enough = threading.Event()

    def note(number: int, *, word: str) -> None:
        calls.append((number, word))
        if len(calls) == 3:
            enough.set()

    timer = _PeriodicTimer(SOON, note, 1, word="beat")
    timer.start()
    assert enough.wait(PATIENCE_S)
    timer.cancel()
    assert set(calls) == {(1, "beat")}


def test_a_timer_pauses_for_its_interval_before_each_call() -> None:
    interval_s = 0.03
    moments = [time.monotonic()]
    enough = threading.Event()

    def note() -> None:
        moments.append(time.monotonic())
        if len(moments) == 4:
            enough.set()

    timer = _PeriodicTimer(timedelta(seconds=interval_s), note)
    timer.start()
    assert enough.wait(PATIENCE_S)
    timer.cancel()
    assert all(later - earlier >= interval_s for earlier, later in pairwise(moments))


def test_a_cancelled_timer_has_ended_and_calls_no_more() -> None:
    called = threading.Event()
    timer = _PeriodicTimer(NEVER, called.set)
    timer.start()
    assert timer._thread.is_alive()
    timer.cancel()
    assert not timer._thread.is_alive()
    assert not called.is_set()


def test_a_timer_may_be_cancelled_twice_and_without_a_start() -> None:
    timer = _PeriodicTimer(NEVER, print)
    timer.cancel()
    timer.start()
    timer.cancel()
    timer.cancel()


def test_a_timer_starts_once() -> None:
    timer = _PeriodicTimer(NEVER, print)
    timer.start()
    with pytest.raises(RuntimeError, match="started before"):
        timer.start()
    timer.cancel()
    with pytest.raises(RuntimeError, match="started before"):
        timer.start()


def test_cancelling_waits_for_the_call_that_is_under_way() -> None:
    under_way, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        under_way.set()
        assert go_on.wait(PATIENCE_S)
        done.set()

    timer = _PeriodicTimer(SOON, work)
    timer.start()
    assert under_way.wait(PATIENCE_S)
    cancelling = threading.Thread(target=timer.cancel)
    cancelling.start()
    go_on.set()
    cancelling.join(PATIENCE_S)
    assert not cancelling.is_alive()
    assert done.is_set()


def test_a_timer_may_be_cancelled_by_its_own_function() -> None:
    cancelled = threading.Event()

    def stop() -> None:
        timer.cancel()
        cancelled.set()

    timer = _PeriodicTimer(SOON, stop)
    timer.start()
    assert cancelled.wait(PATIENCE_S)
    timer._thread.join(PATIENCE_S)
    assert not timer._thread.is_alive()


def test_a_timer_that_nobody_holds_ends() -> None:
    timer = _PeriodicTimer(NEVER, print)
    timer.start()
    thread = timer._thread
    assert thread.is_alive()
    del timer
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_error_is_logged_and_the_calls_go_on(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0
    enough = threading.Event()

    def fail_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("the line is dead")
        enough.set()

    with caplog.at_level(logging.ERROR, "rallypoint"):
        timer = _PeriodicTimer(SOON, fail_once)
        timer.set_name("Beats")
        timer.start()
        assert enough.wait(PATIENCE_S)
        timer.cancel()
    (record,) = caplog.records
    assert record.name.startswith("rallypoint.")
    assert "A call of the timer Beats failed" in record.getMessage()
    assert "the line is dead" in caplog.text


def test_the_thread_of_a_timer_has_a_name_that_can_be_changed_before_it_starts() -> None:
    timer = _PeriodicTimer(NEVER, print)
    assert timer.name == "PeriodicTimer"
    timer.set_name("Beats")
    timer.start()
    assert "Beats" in {thread.name for thread in threading.enumerate()}
    with pytest.raises(RuntimeError, match="name it before"):
        timer.set_name("Other")
    timer.cancel()
    assert timer.name == "Beats"


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(seconds=-1)])
def test_a_timer_without_a_pause_is_refused(interval: timedelta) -> None:
    with pytest.raises(ValueError, match="should be above 0"):
        _PeriodicTimer(interval, print)
