"""Training methods, one file each: they change the one loop through its hooks."""

from __future__ import annotations

import functools

from nearkin.catalogue import parts_of
from nearkin.training.methods.plain import Plain
from nearkin.training.state import Method

__all__ = ["Method", "Plain", "catalogue"]


@functools.cache
def catalogue() -> dict[str, type[Method]]:
    """Every method by its file name.

    >>> "plain" in catalogue()
    True
    """
    return parts_of(__name__, __path__)
