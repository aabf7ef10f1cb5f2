"""Addresses as people type them."""

from __future__ import annotations

import ipaddress
import re

from equipoise.core.errors import UsageError

NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")


def host_port(text: str, what: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not is_host(host) or not is_port(port):
        raise UsageError(f"{what} is '{text}': must be host:port, as 127.0.0.1:8000")
    return host, int(port)


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def is_host(text: str) -> bool:
    """A name, or an address (of version 6 in brackets)."""
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return NAME.fullmatch(text) is not None
    return True
