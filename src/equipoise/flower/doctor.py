"""Check that a machine is ready for a deployment, and that the SuperLink is not exposed."""

from __future__ import annotations

import datetime
import importlib.metadata
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from equipoise.flower.project import parse_address
from equipoise.utils.errors import install_hint

TESTED_VERSIONS = ("1.41.", "1.42.")
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
MIN_VALID_DAYS = 14  # of a certificate; with fewer it must be renewed


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        verdict: ``ok``, ``note`` or ``wrong``.
        text: What was found, and what to do.
    """

    verdict: str
    text: str


def _finding(is_ok: bool, ok: str, wrong: str) -> Finding:
    """Return the result of a check that has two outcomes."""
    return Finding("ok", ok) if is_ok else Finding("wrong", wrong)


def run_checks(address: str, certs: Path | None) -> list[Finding]:
    """Check Flower's version and environment, the network, file permissions and certificates.

    Args:
        address: Address of the SuperLink.
        certs: Folder of ``equipoise flower certs``, if there is one.

    Returns:
        All findings.

    Raises:
        UsageError: If the address is none.
    """
    host, port = parse_address(address, "superlink")
    findings = [
        _version(),
        *_environment(),
        *_network(host, port),
        *_open_to_others(sorted(Path().glob("*.db*"))),
    ]
    return findings + (_certificates(certs, host) if certs else [])


def _version() -> Finding:
    """Check that Flower is installed in the tested version."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "wrong",
            f"Flower is not installed; in an environment of its own: {install_hint('flower')}",
        )
    return _finding(
        version.startswith(TESTED_VERSIONS),
        f"Flower {version}",
        f"Flower is {version}, tested are {'x and '.join(TESTED_VERSIONS)}x: its flags change "
        "between minor versions",
    )


def _environment() -> list[Finding]:
    """Check the variables that keep Flower from calling home."""
    return [
        _finding(
            os.environ.get(name) == value,
            f"{name}={value}",
            f"{name} is not {value}: set it, or Flower calls home from this machine",
        )
        for name, value in ENVIRONMENT.items()
    ]


def _network(host: str, port: int) -> list[Finding]:
    """Check that a SuperLink answers, and only on this machine."""
    if not _is_open(host, port):
        return [
            Finding(
                "note",
                f"nothing answers at {host}:{port}: start the SuperLink, or give --superlink",
            )
        ]
    exposed = {address for address in _own_addresses() if _is_open(address, port)}
    if not _is_loopback(host):
        exposed.add(host)
    return [
        Finding("ok", f"a SuperLink answers at {host}:{port}"),
        _finding(
            not exposed,
            f"port {port} is closed to other machines",
            f"port {port} is open to other machines ({', '.join(sorted(exposed))}): whoever "
            "reaches the control API can start code on every node; run the SuperLink on 127.0.0.1 "
            "behind a proxy that lets only /v1/fleet/ through (docs/how-to/deploy-server.md)",
        ),
    ]


def _open_to_others(secrets: list[Path]) -> list[Finding]:
    """Check the permissions of keys, and of databases of the SuperLink, which hold models."""
    return [
        Finding("wrong", f"{path} can be read by others: chmod 600 {path}")
        for path in secrets
        if path.is_file() and path.stat().st_mode & 0o077
    ]


def _certificates(folder: Path, host: str) -> list[Finding]:
    """Check permissions, validity, issuer and names of the certificates."""
    nodes = [path for path in folder.glob("node-*") if path.suffix != ".pub"]
    findings = _open_to_others([folder / "ca.key", folder / "server.key", *nodes])
    ca = folder / "ca.pem"
    server = folder / "server.pem"
    missing = [path for path in (ca, server) if not path.is_file()]
    if missing:
        text = f"{missing[0]} is missing: make it with 'equipoise flower certs'"
        return [*findings, Finding("wrong", text)]
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(server.read_bytes())
    left = (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
    valid = f"the server's certificate is valid for {left} more days"
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.read_bytes()))
        ssl.create_default_context(cafile=str(ca))
        problem = ""
    except Exception as error:  # whatever is wrong with a certificate
        problem = type(error).__name__
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    hosts = f"it is for {', '.join(known)}"
    return [
        *findings,
        _finding(left > MIN_VALID_DAYS, valid, valid),
        _finding(
            not problem,
            "it is signed by the CA",
            f"server.pem is not signed by ca.pem ({problem}): make both anew",
        ),
        _finding(host in known, hosts, f"{hosts}, not for {host}: make one with --host {host}"),
    ]


def _own_addresses() -> list[str]:
    """Return the addresses of this machine that others may reach."""
    addresses = {
        str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    }
    return sorted(address for address in addresses if not _is_loopback(address))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
