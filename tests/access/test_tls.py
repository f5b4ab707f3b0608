"""Certificates: made by `rallypoint certs`, read again when they change, warned of before they end (rule 16)."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rallypoint import tls
from rallypoint.cli import serve
from rallypoint.cli.certificates import make_certificates
from rallypoint.location.fixed import FixedLocator
from rallypoint.tls import TlsContext, TlsFiles, expires_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", (), 365)
    return tmp_path / "certs"


def files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(*(str(folder / file) for file in ("ca.pem", f"{name}.pem", f"{name}-key.pem")))


async def greeting(server: TlsContext, client: TlsContext | ssl.SSLContext) -> bytes:
    """What a client hears of a server that says its first word after the handshake."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server.current())
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        context = client.current() if isinstance(client, TlsContext) else client
        return await heard_at(port, context)


async def heard_at(port: int, context: ssl.SSLContext) -> bytes:
    """What a client hears of the server at a port; nothing where its certificate is refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return await reader.read()
    except (ssl.SSLError, ConnectionError):  # with TLS 1.3 the server refuses after the client's handshake
        return b""
    finally:
        writer.close()


def test_server_and_node_believe_each_other(folder: Path) -> None:
    server = TlsContext(files(folder, "server"), is_server=True)
    assert asyncio.run(greeting(server, TlsContext(files(folder, "node"), is_server=False))) == b"welcome"


def test_a_peer_without_a_certificate_is_refused(folder: Path) -> None:
    server = TlsContext(files(folder, "server"), is_server=True)
    bare = TlsContext(TlsFiles(cacert=str(folder / "ca.pem")), is_server=False)
    assert asyncio.run(greeting(server, bare)) == b""


def test_a_server_of_another_authority_is_not_believed(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path / "others", (), 365)
    server = TlsContext(files(tmp_path / "others", "server"), is_server=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(greeting(server, TlsContext(files(folder, "node"), is_server=False)))


def test_a_listener_that_is_open_already_uses_replaced_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    make_certificates(tmp_path / "others", (), 365)
    server = TlsContext(files(folder, "server"), is_server=True)
    old = TlsContext(files(folder, "node"), is_server=False).current()
    new = TlsContext(files(tmp_path / "others", "node"), is_server=False).current()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await writer.drain()
        writer.close()

    async def play() -> list[bytes]:
        heard = []
        listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server.current())
        port = listener.sockets[0].getsockname()[1]
        for context in (old, new):
            heard.append(await heard_at(port, context))
            for file in (tmp_path / "others").iterdir():
                shutil.copy(file, folder / file.name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await heard_at(port, old)
        listener.close()
        return heard

    assert asyncio.run(play()) == [b"welcome", b"welcome"]


def test_files_that_cannot_be_used_leave_the_former_ones_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    server = TlsContext(files(folder, "server"), is_server=True)
    before = server.current()
    (folder / "server.pem").write_text("half a file")
    assert server.current() is before
    assert "the former ones stay in use" in caplog.text


@pytest.mark.parametrize(("days", "expected"), [(13, "expires in 1"), (400, "")])
def test_the_end_of_a_certificate_is_warned_of_two_weeks_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, expected: str
) -> None:
    make_certificates(tmp_path, (), days)
    with caplog.at_level(logging.WARNING):
        TlsContext(files(tmp_path, "server"), is_server=True)
    assert expected in caplog.text
    assert bool(caplog.records) is bool(expected)
    ends = expires_at((tmp_path / "server.pem").read_bytes())
    assert ends is not None
    assert abs(ends - datetime.now(timezone.utc) - timedelta(days=days)) < timedelta(hours=1)


def test_a_day_later_it_is_warned_of_again_although_nobody_connects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path, (), 13)
    context = TlsContext(files(tmp_path, "node"), is_server=False)
    caplog.clear()
    context.keep_watch()
    assert not caplog.records, "not on the same day"
    monkeypatch.setattr(tls, "WARN_AGAIN_S", 0.0)
    locator = FixedLocator("127.0.0.1", 1, "r", is_host=False, tls=files(tmp_path, "node"))
    caplog.clear()
    locator.beat(locator)  # type: ignore[arg-type]  # who asks makes no difference
    assert "expires in 12 days" in caplog.text


def test_a_server_that_nobody_connects_to_warns_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = TlsContext(files(folder, "server"), is_server=True)
    monkeypatch.setattr(tls, "WARN_AGAIN_S", 0.0)
    monkeypatch.setattr(serve, "WATCH_S", 0.001)

    async def play() -> None:
        looked = asyncio.Event()
        monkeypatch.setattr(context, "warn_of_expiry", looked.set)
        watching = asyncio.create_task(serve.keep_watch(context))
        await asyncio.wait_for(looked.wait(), 20.0)
        watching.cancel()

    asyncio.run(play())


def test_a_node_uses_replaced_files_for_its_next_connection(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    make_certificates(tmp_path / "others", (), 365)
    node = TlsContext(files(folder, "node"), is_server=False)
    for server in (
        TlsContext(files(folder, "server"), is_server=True),
        TlsContext(files(tmp_path / "others", "server"), is_server=True),
    ):
        assert asyncio.run(greeting(server, node)) == b"welcome"
        for file in (tmp_path / "others").iterdir():
            shutil.copy(file, folder / file.name)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"cert": ""}, "key is given and cert is not"),
        ({"key": ""}, "cert is given and key is not"),
        ({"cacert": "/nowhere/ca.pem"}, "The CA certificate '/nowhere/ca.pem' cannot be read: No such file"),
        ({"key": "node-key.pem"}, "the key is not that of the certificate"),
        ({"cacert": "garbage"}, "it is not valid PEM"),
    ],
)
def test_files_that_cannot_be_used_get_a_sentence(folder: Path, broken: dict[str, str], sentence: str) -> None:
    (folder / "garbage").write_bytes(b"\x00\x01")
    given = {"cacert": "ca.pem", "cert": "server.pem", "key": "server-key.pem"} | broken
    wrong = TlsFiles(**{name: str(folder / file) if file else "" for name, file in given.items()})
    with pytest.raises(ValueError, match=sentence):
        wrong.make(is_server=True)


def test_the_end_of_what_is_no_certificate_is_not_known() -> None:
    assert expires_at(b"nothing") is None
    assert expires_at(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----") is None
