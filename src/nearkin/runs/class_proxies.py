"""The proxies of a run by their classes' names, for whoever has the run folder and not its images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import DataError
from nearkin.numerics import normalise
from nearkin.runs.folder import RunFolder
from nearkin.training.checkpoint import read_checkpoint


@dataclass(frozen=True)
class ClassProxies:
    """Vectors ``[P, dim]`` as embeddings are compared with them, and the class of each."""

    vectors: NDArray[np.float32]
    names: tuple[str, ...]


def proxies_of(path: Path, dim: int) -> ClassProxies | None:
    """The proxies that the loss of a run owns, beside its best weights; None where there are none to be found.

    Those of an exported file, of a loss on pairs, of a method that has its own, and of another dimension are not.
    """
    try:
        folder = RunFolder.existing(path)
        split, recipe = folder.stored_split, folder.recipe()
        checkpoint = read_checkpoint(folder.last_checkpoint)
        if (best := checkpoint["best"]) is not None and best["step"] != checkpoint["step"]:
            checkpoint = read_checkpoint(folder.best_checkpoint(int(best["step"])))
    except (DataError, OSError):
        return None
    vectors = checkpoint["objective"].get("bank.vectors")
    if split is None or vectors is None or vectors.shape[2] != dim:
        return None
    classes = np.unique(split.labels[split.splits == "train"]).tolist()
    if len(classes) != len(vectors):
        return None
    unit = normalise(vectors.detach().float(), recipe.encoder.normalisation).flatten(0, 1).numpy()
    return ClassProxies(unit, tuple(split.class_names[each] for each in classes for _ in range(vectors.shape[1])))
