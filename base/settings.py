"""Defaults that more than one part of the package, and its help texts, must agree on."""

from __future__ import annotations

#: Baseline error, in percent, beyond which results are marked.
DEFAULT_LIMIT_PCT = 5.0

#: How many places an explanation lists.
DEFAULT_PLACES = 10
