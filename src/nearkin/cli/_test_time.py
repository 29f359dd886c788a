"""Options of what is done with a trained encoder's embeddings and rankings, which several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.errors import RecipeError

__all__ = ["Alpha", "Expand", "Flip", "Rerank", "Shrinkage", "TestSize", "Whiten", "WhitenDim", "With", "whitening_of"]

Flip = Annotated[
    bool | None,
    typer.Option("--flip/--no-flip", help="Average each embedding with the mirror image's. Default: as in the run."),
]
TestSize = Annotated[
    int | None,
    typer.Option("--test-size", help="Side of the crops in pixels, such as 288. Default: as in the run."),
]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="Embeddings of this run beside the first's, counting the same. Repeat."),
]
Whiten = Annotated[
    bool, typer.Option("--whiten", help="PCA-whitening, learned from the run's training images and no others.")
]
WhitenDim = Annotated[
    int | None, typer.Option("--whiten-dim", metavar="DIM", min=1, help="Whiten to so many dimensions. Default: all.")
]
Shrinkage = Annotated[
    float, typer.Option("--shrinkage", help="Of the variances in whitening: 0 is plain, 1 leaves their proportions.")
]
Expand = Annotated[
    int | None,
    typer.Option("--expand", metavar="K", min=1, help="Search with the query and its K nearest together (αQE)."),
]
Alpha = Annotated[float, typer.Option("--alpha", help="With --expand: the nearest count by cosine to this power.")]
Rerank = Annotated[
    int | None,
    typer.Option("--rerank", metavar="K", min=1, help="Order hits by common k-reciprocal neighbours, such as 20."),
]


def whitening_of(whiten: bool, dim: int | None, shrinkage: float) -> bool | int:
    """What ``whiten`` is in :func:`nearkin.load`; a dimension asks for it by itself.

    >>> whitening_of(False, None, 0.0), whitening_of(True, None, 0.1), whitening_of(False, 64, 0.0)
    (False, True, 64)
    """
    if shrinkage and not whiten and dim is None:
        raise RecipeError("--shrinkage goes with --whiten or --whiten-dim")
    return whiten if dim is None else dim
