"""Vectors on the disk with an engine that is a server, beside the exact one."""

from __future__ import annotations

import numpy as np

from nearkin.index.engine import nearest, new_identity, open_engine
from nearkin.index.segments import Segments


def clusters(rng, rows, dim):
    """Vectors of length 1 as encoders give them: around a few hundred centres."""
    x = rng.normal(size=(max(2, rows // 20), dim))[rng.integers(0, max(2, rows // 20), rows)]
    x += 0.5 * rng.normal(size=x.shape)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


class Stored:
    """Written as an index does it."""

    def __init__(self, address, folder, vectors, distance="cosine"):
        self.identity, self.distance = new_identity(), distance
        self.vectors = Segments(folder / "vectors", vectors.shape[1], np.float32)
        self.vectors.append(0, vectors)
        self.vectors.show(len(vectors))
        self.engine = open_engine(address, folder / "engine", self.vectors, distance, self.identity)
        self.truth = open_engine("exact", folder / "exact", self.vectors, distance)
        for each in (self.engine, self.truth):
            each.rebuild(len(vectors))
            each.show(len(vectors))

    def recall(self, queries, k=10, allowed=None):
        """The share of the exact result that is found, of which there must be as many rows."""
        found, true = (
            nearest(each, self.vectors, self.distance, queries, k, allowed) for each in (self.engine, self.truth)
        )
        assert [len(ids) for ids, _ in found] == [len(ids) for ids, _ in true]
        pairs = zip(found, true, strict=True)
        return np.mean([len(np.intersect1d(mine, theirs)) / len(theirs) for (mine, _), (theirs, _) in pairs])
