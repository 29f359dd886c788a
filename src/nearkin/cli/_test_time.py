"""Options of what is done with a trained encoder's embeddings and rankings, which several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Flip", "Rerank", "TestSize", "With"]

Flip = Annotated[
    bool | None,
    typer.Option("--flip/--no-flip", help="Average each embedding with the mirror image's. Default: as in the run."),
]
TestSize = Annotated[
    int | None,
    typer.Option("--eval-size", help="Side of the crops in pixels, such as 288. Default: as in the run."),
]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="Embeddings of this run beside the first's, counting the same. Repeat."),
]
Rerank = Annotated[
    int | None,
    typer.Option("--rerank", metavar="K", min=1, help="Order hits by common k-reciprocal neighbours, such as 20."),
]
