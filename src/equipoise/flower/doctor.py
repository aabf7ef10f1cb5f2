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

TESTED = "1.41."
SETTINGS = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass(frozen=True)
class Finding:
    verdict: str
    """``ok``, ``note`` or ``wrong``."""
    text: str


def run_checks(address: str, certs: Path | None) -> list[Finding]:
    host, port = parse_address(address, "superlink")
    findings = [
        _version(),
        *_environment(),
        *_network(host, port),
        *_open_to_others(sorted(Path().glob("*.db*"))),
    ]
    return findings + (_certificates(certs, host) if certs else [])


def _version() -> Finding:
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "wrong",
            "Flower is not installed: pip install 'equipoise[flower]' in an environment of its own",
        )
    if not version.startswith(TESTED):
        return Finding(
            "wrong",
            f"Flower is {version}, tested is {TESTED}x: its flags change between minor versions",
        )
    return Finding("ok", f"Flower {version}")


def _environment() -> list[Finding]:
    return [
        Finding("ok", f"{name}={value}")
        if os.environ.get(name) == value
        else Finding(
            "wrong", f"{name} is not {value}: set it, or Flower calls home from this machine"
        )
        for name, value in SETTINGS.items()
    ]


def _network(host: str, port: int) -> list[Finding]:
    if not _open(host, port):
        return [
            Finding(
                "note",
                f"nothing answers at {host}:{port}: start the SuperLink, or give --superlink",
            )
        ]
    findings = [Finding("ok", f"a SuperLink answers at {host}:{port}")]
    exposed = [other for other in _own_addresses() if _open(other, port)]
    if not _loopback(host):
        exposed.append(host)
    if exposed:
        findings.append(
            Finding(
                "wrong",
                f"port {port} is open to other machines ({', '.join(sorted(set(exposed)))}): whoever reaches the "
                "control API can start code on every node; run the SuperLink on 127.0.0.1 behind a proxy that lets "
                "only /v1/fleet/ through (docs/deploy.md)",
            )
        )
    else:
        findings.append(Finding("ok", f"port {port} is closed to other machines"))
    return findings


def _open_to_others(secrets: list[Path]) -> list[Finding]:
    """Keys, and databases of the SuperLink, which hold models."""
    return [
        Finding("wrong", f"{path} can be read by others: chmod 600 {path}")
        for path in secrets
        if path.is_file() and path.stat().st_mode & 0o077
    ]


def _certificates(folder: Path, host: str) -> list[Finding]:
    nodes = [path for path in folder.glob("node-*") if path.suffix != ".pub"]
    findings = _open_to_others([folder / "ca.key", folder / "server.key", *nodes])
    ca, server = folder / "ca.pem", folder / "server.pem"
    missing = [str(path) for path in (ca, server) if not path.is_file()]
    if missing:
        return [
            *findings,
            Finding("wrong", f"{missing[0]} is missing: make it with 'equipoise flower certs'"),
        ]
    from cryptography import x509

    authority, certificate = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (ca, server)
    )
    left = (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
    verdict = "ok" if left > 14 else "wrong"
    findings.append(Finding(verdict, f"the server's certificate is valid for {left} more days"))
    try:
        certificate.verify_directly_issued_by(authority)
        ssl.create_default_context(cafile=str(ca))
        findings.append(Finding("ok", "it is signed by the CA"))
    except Exception as error:  # whatever is wrong with a certificate
        findings.append(
            Finding(
                "wrong",
                f"server.pem is not signed by ca.pem ({type(error).__name__}): make both anew",
            )
        )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    if host in known:
        findings.append(Finding("ok", f"it is for {', '.join(known)}"))
    else:
        findings.append(
            Finding(
                "wrong",
                f"it is for {', '.join(known)}, not for {host}: make one with --host {host}",
            )
        )
    return findings


def _own_addresses() -> list[str]:
    """Addresses of this machine that others may reach."""
    found = {
        str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    }
    return sorted(address for address in found if not _loopback(address))


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
