"""Certificates of a small authority; importing this needs the package cryptography."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rallypoint.cli.exit_codes import UsageError

LOCAL = ("localhost", "127.0.0.1", "::1")


def make_certificates(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Write ca.pem, server.pem, node.pem and their keys; nothing that is there is overwritten."""
    try:
        there = [name for name in ("ca.pem", "server.pem", "node.pem") if (folder / name).exists()]
    except OSError as exc:
        raise UsageError(f"{folder} cannot be looked into: {exc.strerror or exc}") from exc
    if there:
        raise UsageError(f"{folder} has {' and '.join(there)} already, and nothing is overwritten: name another folder")
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*LOCAL, *hosts))])
    # A node serves too, where its run has no server of its own.
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    ca_key = ec.generate_private_key(ec.SECP256R1())
    certificates = {"ca": (_certificate("CA", ca_key, ca_key, days), ca_key)}
    for name in ("server", "node"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificates[name] = (_certificate(name, key, ca_key, days, names, uses), key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (certificate, key) in certificates.items():
            private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            _write(folder / f"{name}-key.pem", private, 0o600)
            _write(folder / f"{name}.pem", certificate, 0o644)
    except OSError as exc:
        raise UsageError(f"{exc.filename or folder} cannot be written: {exc.strerror or exc}") from exc


def _certificate(name: str, key: Any, ca_key: Any, days: int, *extensions: Any) -> bytes:
    """A certificate signed by the authority; its own is the one whose key is the authority's."""
    is_ca = key is ca_key
    now = datetime.now(timezone.utc)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("CA"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of other machines may be behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    pem: bytes = builder.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return pem


def _name(name: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"rallypoint {name}")])


def _host(text: str) -> Any:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither an address nor the name of a host") from None


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
