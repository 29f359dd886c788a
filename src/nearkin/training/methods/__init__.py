"""Training methods, one file each: what they change of the one loop, through its hooks."""

from __future__ import annotations

import functools

from nearkin.catalogue import keyword_options as options
from nearkin.catalogue import parts_of
from nearkin.training.methods.plain import Plain
from nearkin.training.state import Method

__all__ = ["Method", "Plain", "catalogue", "options"]


@functools.cache
def catalogue() -> dict[str, type[Method]]:
    """Every method by its file name.

    >>> "plain" in catalogue()
    True
    """
    return parts_of(__name__, __path__)
