"""What a person should know though nothing is wrong enough to stop, such as images that changed since a run began.

A notice is a warning of its own kind: the command line prints it as one line, and from Python it can be caught,
filtered or turned into an error like any other.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any


class Notice(UserWarning):
    """The text is for a person."""


def notice(text: str) -> None:
    """Say ``text`` to whoever listens.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     notice("2 new images are left out")
    >>> str(said[0].message)
    '2 new images are left out'
    """
    warnings.warn(text, Notice, stacklevel=2)


@contextlib.contextmanager
def notices_told_to(say: Callable[[str], None]) -> Iterator[None]:
    """While active, every notice is handed to ``say``, once for each text."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        others: Any = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, Notice):
                others(message, category, *place, **more)
            elif str(message) not in said:
                said.add(str(message))
                say(str(message))

        warnings.showwarning = show
        yield
