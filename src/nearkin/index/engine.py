"""What an engine of an index does: from many vectors it picks the few that could be among the nearest.

The vectors of an index and its table of items are the truth. An engine only proposes: what it proposes is scored again
from the stored vectors, and what is filtered out or removed is settled before it is asked. So its own files can be
thrown away and built anew, and an engine that is approximate can miss a neighbour but never show a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import RecipeError
from nearkin.index.exact import ExactEngine
from nearkin.index.segments import Segments
from nearkin.suggest import did_you_mean

Distance = Literal["cosine", "euclidean"]


class Engine(Protocol):
    """Rows of vectors are numbered as they were added; a number is never used twice."""

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        """Take in rows ``first`` and following; they are on the disk, or wherever they belong, on return."""

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Forget rows, if that saves anything: they are not among those allowed any more."""

    def show(self, rows: int) -> None:
        """Search the first ``rows`` from now on, which another process may have added."""

    def rebuild(self, rows: int) -> None:
        """Bring the engine's own files up to the first ``rows`` of the stored vectors; only a writer calls this."""

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        """For each query ``[Q, dim]`` the rows that may be among its ``k`` nearest, in any order, more than k or not.

        ``allowed`` are the rows to choose from, ascending; None for all.
        """

    def status(self) -> Mapping[str, Any]:
        """What there is to say of it, for people."""


ENGINES = {"exact": ExactEngine}


def check_engine(name: str) -> None:
    """Refuse a name that no engine has."""
    if name not in ENGINES:
        raise RecipeError(f"unknown engine {name!r}; {did_you_mean(name, ENGINES)}")


def open_engine(name: str, folder: Path, vectors: Segments, distance: Distance) -> Engine:
    """The engine of that name, with its own files in ``folder``."""
    check_engine(name)
    return ENGINES[name](folder, vectors, distance)
