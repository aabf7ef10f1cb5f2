"""A private CA, the server's certificate and node keys, in one folder."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from equipoise.flower.project import is_host
from equipoise.utils import io
from equipoise.utils.errors import UsageError


def write_certificates(folder: Path, hosts: list[str], nodes: int, days: int) -> list[str]:
    """Gives one line for each file: what it is and who gets it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"'{folder}' exists already: choose another folder, keys are never overwritten"
        )
    if not 1 <= days <= 36500 or not 0 <= nodes <= 10000:
        raise UsageError(
            f"days is {days} and nodes {nodes}: must be 1 to 36500 days and 0 to 10000 nodes"
        )
    wrong = [host for host in hosts if not is_host(host)]
    if wrong:
        raise UsageError(f"host is '{wrong[0]}': must be a name or an address")
    io.make_folder(folder, private=True)
    ca_key, ca = _authority(days)
    key, certificate = _server(ca_key, ca, hosts, days)
    _private(
        folder / "ca.key", ca_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    io.write_bytes(folder / "ca.pem", ca.public_bytes(Encoding.PEM))
    _private(
        folder / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    io.write_bytes(folder / "server.pem", certificate.public_bytes(Encoding.PEM))
    lines = [
        "ca.key      the CA's key: keep it off the network",
        "ca.pem      its certificate: for the server and every node",
        f"server.key  the server's key: for the server alone ({', '.join(hosts)})",
        "server.pem  the server's certificate",
    ]
    for number in range(nodes):
        node = ec.generate_private_key(ec.SECP384R1())
        _private(
            folder / f"node-{number}",
            node.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        )
        public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        io.write_bytes(folder / f"node-{number}.pub", public + b"\n")
        lines.append(
            f"node-{number}      key of client {number}: for its machine alone; node-{number}.pub is registered"
        )
    return lines


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Equipoise private CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = (
        _dated(days, name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA384())


def _server(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, hosts: list[str], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _dated(days, name, ca.subject, key)
        .add_extension(
            x509.SubjectAlternativeName([_named(host) for host in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA384())


def _dated(
    days: int, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(path: Path, data: bytes) -> None:
    io.write_bytes(path, data, private=True)
