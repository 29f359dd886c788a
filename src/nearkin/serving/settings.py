"""The settings of a server: its address, its key, and the limits of a request."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from nearkin.errors import RecipeError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """The defaults are for a server that only this machine can reach."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 for any free port."""
    key: str | None = None
    """What requests must carry as ``Authorization: Bearer KEY``; None only on loopback."""
    allow_hosts: tuple[str, ...] = ()
    """Other names of the server, such as that of a proxy."""
    read_only: bool = False
    hide_paths: bool = False
    """Whether the paths of images are hidden from clients."""
    max_bytes: int = 32 << 20
    """Of a request."""
    max_pixels: int = 64_000_000
    """Of an upload, by its header."""
    max_k: int = 1000
    max_offset: int = 100_000
    max_ids: int = 2000
    """Of values in a list, such as ids or the labels of a filter."""
    decoders: int = 2
    """Processes that decode uploads."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise RecipeError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_bytes", "max_pixels", "max_k", "max_ids", "decoders"):
            if getattr(self, name) <= 0:
                raise RecipeError(f"{name} must be more than 0, got {getattr(self, name)}")
        if self.key is not None and (len(self.key) < 12 or not self.key.isascii() or not self.key.isprintable()):
            raise RecipeError("a key must have at least 12 characters, all of them plain ASCII")
        if not is_loopback(self.host) and self.key is None:
            raise RecipeError(f"to be reached at {self.host} a server needs a key: set NEARKIN_API_KEY")


def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text spells; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only the same machine can reach ``host``.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    numeric = address(host)
    return host == "localhost" if numeric is None else numeric.is_loopback
