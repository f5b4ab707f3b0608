"""What is decided without a server: where to ask, what an answer means."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.etcd_client import EtcdMissingError, EtcdRefusedError, Tls, User, compare
from rallypoint.etcd_client.endpoints import parse_endpoints
from rallypoint.etcd_client.errors import EtcdAuthError, EtcdCompactedError, EtcdLeaseLostError, EtcdNoSpaceError
from rallypoint.etcd_client.failures import FailureAction, classify
from rallypoint.etcd_client.transactions import prefix_end, range_of

UNREACHED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("given", "places", "secure"),
    [
        ("a:2379,b:2380", ("a:2379", "b:2380"), None),
        ("etcd://a,b , c", ("a:2379", "b:2379", "c:2379"), None),
        ("https://a:1/,https://b:2", ("a:1", "b:2"), True),
        (["http://10.0.0.5"], ("10.0.0.5:2379",), False),
        ("[::1]:2379,[fe80::1%eth0]", ("[::1]:2379", "[fe80::1%eth0]:2379"), None),
        ("a,a:2379", ("a:2379",), None),
    ],
)
def test_endpoints_are_read(given: str | list[str], places: tuple[str, ...], secure: bool | None) -> None:
    assert parse_endpoints(given) == (places, secure)


@pytest.mark.parametrize(
    "bad", ["", "a:", "a:b", "::1", "ftp://a:1", "a:99999", "http://a,https://b", "a b:1", "u@a:1"]
)
def test_what_is_no_endpoint_is_refused_in_words(bad: str) -> None:
    with pytest.raises(EtcdRefusedError, match=r"endpoint|mixes"):
        parse_endpoints(bad)


@pytest.mark.parametrize(
    ("code", "details", "action", "words"),
    [
        ("UNAVAILABLE", UNREACHED + "Connection refused", FailureAction.ELSEWHERE, "nothing listens there"),
        ("UNAVAILABLE", "errors resolving x: address lookup failed", FailureAction.ELSEWHERE, "name is not known"),
        ("UNAVAILABLE", UNREACHED + "error: CERTIFICATE_VERIFY_FAILED", FailureAction.HOPELESS, "CA file"),
        ("UNAVAILABLE", UNREACHED + "something new", FailureAction.ELSEWHERE, "something new"),
        ("UNAVAILABLE", "Socket closed", FailureAction.MAYBE, "Socket closed"),
        ("UNAVAILABLE", "etcdserver: no leader", FailureAction.ELSEWHERE, "no leader"),
        ("UNAVAILABLE", "etcdserver: leader changed", FailureAction.MAYBE, "leader changed"),
        ("UNAVAILABLE", "etcdserver: request timed out", FailureAction.MAYBE, "request timed out"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", FailureAction.MAYBE, "no answer in time"),
        ("UNIMPLEMENTED", "Method not found!", FailureAction.HOPELESS, "not etcd"),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", FailureAction.LOGIN, "token"),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", FailureAction.LOGIN, "have changed"),
        ("UNKNOWN", "", FailureAction.MAYBE, "no details"),
    ],
)
def test_a_failed_call_is_judged(code: str, details: str, action: FailureAction, words: str) -> None:
    diagnosis = classify(code, details)
    assert diagnosis.action is action
    assert words in diagnosis.words


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", EtcdAuthError),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdAuthError),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdNoSpaceError),
        ("NOT_FOUND", "etcdserver: requested lease not found", EtcdLeaseLostError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", EtcdCompactedError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", EtcdRefusedError),
    ],
)
def test_a_refusal_has_its_error(code: str, details: str, error: type[Exception]) -> None:
    diagnosis = classify(code, details)
    assert (diagnosis.action, diagnosis.error) == (FailureAction.FINAL, error)


def test_a_load_balancer_without_etcd_passes() -> None:
    """With HTTP/1.1, nothing was sent to etcd; with HTTP/2, perhaps only the answer was lost."""
    old = classify("UNAVAILABLE", "failed to connect to all addresses; (Trying … http1.x server (HTTP status 503))")
    new = classify("UNAVAILABLE", "Received http2 header with status: 503")
    assert (old.action, new.action) == (FailureAction.ELSEWHERE, FailureAction.MAYBE)
    for diagnosis in (old, new):
        assert "reaches no etcd at present (HTTP status 503)" in diagnosis.words
    assert classify("UNIMPLEMENTED", "Received http2 header with status: 404").action is FailureAction.HOPELESS


@pytest.mark.parametrize(("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")])
def test_a_prefix_ends_before_the_next_key(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


def test_ranges_and_conditions_that_make_no_sense_are_refused() -> None:
    for refused in (
        lambda: range_of("", False, None),
        lambda: range_of("a", True, "b"),
        lambda: compare("a", "~", value=b"x"),
        lambda: compare("a"),
        lambda: compare("a", value=b"x", lease=1),
    ):
        with pytest.raises(EtcdRefusedError):
            refused()


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(EtcdRefusedError, match="go together"):
        Tls(cert_file="x")
    with pytest.raises(EtcdMissingError, match=r"CA file '/nowhere/ca' cannot be read: No such file"):
        Tls("/nowhere/ca").read()
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(EtcdMissingError, match="PEM"):
        Tls(str(tmp_path / "ca")).read()


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(User("alice", "secret"))
