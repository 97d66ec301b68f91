"""Conversions at the borders: everything inside is integer nanoseconds, bytes and GB/s.

1 GB/s is 1e9 bytes per second per direction, which is 1 byte per nanosecond; no other unit of
bandwidth exists inside the package.
"""

from __future__ import annotations


def format_ns(ns: float) -> str:
    """Write a duration with the unit that keeps three or four significant digits."""
    size = abs(ns)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if size >= scale:
            return f"{ns / scale:.4g} {unit}"
    return f"{ns:.0f} ns"


def format_bytes(size: float) -> str:
    """Write a size in decimal units (1 MB is 1e6 bytes)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} B"
