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
    """Write a CA, the server's certificate and a key for each node.

    Args:
        folder: New folder for the files.
        hosts: Names and addresses of the server.
        nodes: Number of node keys.
        days: Days for which the certificates are valid.

    Returns:
        One line for each file: what it is, and who gets it.

    Raises:
        UsageError: If the folder exists, or a number or host is wrong.
    """
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
    server_key, server = _server(ca_key, ca, hosts, days)
    for name, key, certificate in (("ca", ca_key, ca), ("server", server_key, server)):
        _write_key(folder / f"{name}.key", key, PrivateFormat.PKCS8)
        io.write_bytes(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM))
    lines = [
        "ca.key      the CA's key: keep it off the network",
        "ca.pem      its certificate: for the server and every node",
        f"server.key  the server's key: for the server alone ({', '.join(hosts)})",
        "server.pem  the server's certificate",
    ]
    for number in range(nodes):
        name = f"node-{number}"
        key = _new_key()
        _write_key(folder / name, key, PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        io.write_bytes(folder / f"{name}.pub", public + b"\n")
        lines.append(
            f"{name}      key of client {number}: for its machine alone; {name}.pub is registered"
        )
    return lines


def _new_key() -> ec.EllipticCurvePrivateKey:
    """Generate a private key."""
    return ec.generate_private_key(ec.SECP384R1())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, format: PrivateFormat) -> None:
    """Write a private key for its owner alone."""
    data = key.private_bytes(Encoding.PEM, format, NoEncryption())
    io.write_bytes(path, data, private=True)


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make the CA's key and its self-signed certificate."""
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Equipoise private CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = (
        _builder(days, name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA384())


def _server(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, hosts: list[str], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make the server's key and its certificate, signed by the CA."""
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder(days, name, ca.subject, key)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA384())


def _builder(
    days: int, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Return a certificate without extensions, valid from now on."""
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


def _general_name(host: str) -> x509.GeneralName:
    """Return a host as an address or a name of a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
