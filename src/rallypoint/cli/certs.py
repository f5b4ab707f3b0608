"""`rallypoint certs`: a small certificate authority with a certificate for the server and one for the nodes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.cli.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    from datetime import datetime

HELP = "make a small CA with certificates for server and nodes, where there is none"
LOCAL = ("localhost", "127.0.0.1", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that it takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go; it is made if it is not there")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or an address by which nodes reach the server; may be given again (localhost is always one)",
    )
    parser.add_argument("--days", type=int, default=365, metavar="N", help="how long they are valid (default: 365)")


def run(args: argparse.Namespace) -> int:
    """Make them, and say how to use them."""
    if not 1 <= args.days <= 3650:
        raise UsageError(f"--days is {args.days}: certificates are valid for 1 to 3650 days")
    make_certificates(args.folder, tuple(args.host), args.days)
    folder = args.folder
    print(
        f"made ca.pem, server.pem and node.pem with their keys in {folder}; keep ca-key.pem to yourself\n"
        f"  server: rallypoint serve --cacert {folder}/ca.pem --cert {folder}/server.pem --key {folder}/server-key.pem\n"
        f"  nodes:  cacert={folder}/ca.pem,cert={folder}/node.pem,key={folder}/node-key.pem"
    )
    return ExitCode.DONE


def make_certificates(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Write ca.pem, server.pem, node.pem and their keys; nothing that is there is overwritten."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError as exc:
        raise UsageError(
            f"certificates are made by the package cryptography ({exc}): install the extra certs, or `pip install cryptography`"
        ) from exc
    from datetime import datetime, timedelta, timezone

    try:
        there = [name for name in ("ca.pem", "server.pem", "node.pem") if (folder / name).exists()]
    except OSError as exc:
        raise UsageError(f"{folder} cannot be looked into: {exc.strerror or exc}") from exc
    if there:
        raise UsageError(f"{folder} has {' and '.join(there)} already, and nothing is overwritten: name another folder")
    start = datetime.now(timezone.utc) - timedelta(hours=1)  # clocks of other machines may be behind
    end = start + timedelta(days=days, hours=1)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("rallypoint CA")
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    ca = (
        _builder(ca_name, ca_name, ca_key, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
    )
    certificates = {"ca": (_signed(ca, ca_key), ca_key)}
    for name in ("server", "node"):
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(f"rallypoint {name}"), ca_name, key, start, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            # A node serves too, where its run has no server of its own.
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(_names((*LOCAL, *hosts))), critical=False)
        )
        certificates[name] = (_signed(builder, ca_key), key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (certificate, key) in certificates.items():
            _write(folder / f"{name}-key.pem", _pem_of_key(key), 0o600)
            _write(folder / f"{name}.pem", certificate, 0o644)
    except OSError as exc:
        raise UsageError(f"{exc.filename or folder} cannot be written: {exc.strerror or exc}") from exc


def _builder(subject: Any, issuer: Any, key: Any, start: datetime, end: datetime) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _signed(builder: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    pem: bytes = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return pem


def _pem_of_key(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def _name(text: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _names(hosts: tuple[str, ...]) -> list[Any]:
    return [_host(host) for host in dict.fromkeys(hosts)]


def _host(text: str) -> Any:
    from ipaddress import ip_address

    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither an address nor the name of a host") from None


def _key_usage(*, signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
