"""The nearest valid spelling of a word somebody typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 40
"""Names that are listed beside a near one."""


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A clause for the end of an error message.

    >>> did_you_mean("epoch", ["epochs", "batch_size"])
    "did you mean 'epochs'? Valid: batch_size, epochs"
    >>> did_you_mean("zzz", ["epochs", "batch_size"])
    'valid: batch_size, epochs'

    A near one is not buried under a long list:

    >>> did_you_mean("name42", [f"name{number}" for number in range(99)])
    "did you mean 'name42'?"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near and len(names) > MOST:
        return f"did you mean {near[0]!r}?"
    listing = ", ".join(names)
    return f"did you mean {near[0]!r}? Valid: {listing}" if near else f"valid: {listing}"
