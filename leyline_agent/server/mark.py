"""Marks: how amortized KV is kept apart from honest KV in the radix tree.

    tokens   a a a a r r c c c c n n
    key      a a a a r r M c c c n n      M = mark(donor key up to the first c)

In radix keys alone, the first moved token of a kept segment is replaced by a mark. No
request without the lineage can spell that path; everything before the mark stays shared.
The mark names all that the moved KV depends on: the donor's key up to and with the moved
token, marks included. Equal histories of edits therefore share one path.

SGLang hands any number in `input_ids` to the cache, so a mark is hashed with a secret of this
process and never leaves it: receipts carry its name, from which it cannot be had back.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Mapping

MARK_BASE = 1 << 62
_SECRET = secrets.token_bytes(32)

Marks = Mapping[int, int]
"""Position in the token sequence -> mark id."""


def mark(donor_key: array[int], start: int) -> int:
    """The mark of a segment whose first token stood at `start` of the donor key.

    Returns:
        A number in [2^62, 2^63): no token id, and equal for equal lineages.
    """
    seed = hashlib.blake2b(donor_key[: start + 1].tobytes(), digest_size=8, key=_SECRET).digest()
    return MARK_BASE | (int.from_bytes(seed, "little") & (MARK_BASE - 1))


def name_of(value: int) -> str:
    """What the outside may know of a mark: 16 hex digits, equal for equal marks."""
    return hashlib.blake2b(value.to_bytes(8, "little"), digest_size=8, key=_SECRET).hexdigest()


def marked(tokens: array[int], marks: Marks) -> array[int]:
    """The radix key of `tokens`: a copy in which marks stand at their positions."""
    if not marks:
        return tokens
    key = tokens[:]
    for position, value in marks.items():
        if position < len(key):
            key[position] = value
    return key
