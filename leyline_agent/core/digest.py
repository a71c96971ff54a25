"""Names for token sequences."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def digest(tokens: Sequence[int]) -> str:
    """SHA-256 of the ids as little-endian 64-bit words: 32 hex digits (128 bits)."""
    words = tokens if isinstance(tokens, array) and tokens.typecode == "q" else array("q", tokens)
    return hashlib.sha256(words.tobytes()).hexdigest()[:32]
