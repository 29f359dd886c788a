"""The encoder of a run as a :class:`~nearkin.runs.model.Model`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np

from nearkin.errors import DataError, notices_to
from nearkin.exports.runtime import RunEmbedding
from nearkin.runs.data import open_own_data, split_as_stored
from nearkin.runs.model import HeldOut, Model
from nearkin.runs.trained import TrainedRun
from nearkin.training.build import data_of

MOST_HELD_OUT = 2_000
"""Images of held-out classes that are embedded at most: a curve of two parameters needs no more."""


def model_of_run(run: TrainedRun, runtime: str = "auto") -> Model:
    """A run's encoder as a model; images are treated as the run was scored."""
    identity = identity_of(run)
    embed = RunEmbedding(run, identity, runtime)
    return Model(
        path=run.folder.path.absolute(),
        identity=identity,
        dim=run.encoder.dim,
        distance=run.encoder.distance,
        shorter_side=data_of(run.recipe).shorter_side,
        embed=embed,
        prepare=embed.prepare,
        held_out=lambda: _held_out(run),
    )


def identity_of(run: TrainedRun) -> str:
    """A hash of all that decides which vector an image gets: weights, architecture, crops, normalisation, dimension.

    The device and its precision are left out: they move a vector by rounding alone.
    """
    encoder, section, transform = run.encoder, run.recipe.encoder, run.transform
    said = {
        "architecture": [section.backbone, section.pooling, section.last_stride, dict(section.options)],
        "preprocessing": repr(encoder.preprocessing),
        "crop": [transform.resize, transform.size, transform.squash, data_of(run.recipe).shorter_side],
        "flip": run.recipe.protocol.flip,
        "dim": encoder.dim,
        "normalisation": encoder.normalisation,
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        array = np.ascontiguousarray(weight.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _held_out(run: TrainedRun) -> HeldOut | None:
    """The run's test images, or some of them; None where it has none or they cannot be found any more."""
    section = replace(data_of(run.recipe), unreadable_tolerance=1.0)
    try:
        with notices_to(lambda _: None):  # what has become of the run's images is nothing to whoever searches
            data = split_as_stored(run.folder, run.recipe, open_own_data(run.folder, section), scored=("test",))
    except DataError:
        return None
    if data.protocol.test is None:
        return None
    rows, table = np.unique(data.protocol.test.rows), data.images.table
    # Whole classes, since it takes two of one to be the same kind.
    order = np.random.default_rng(0).permutation(np.unique(table.labels[rows]))
    rank = np.argsort(order)[np.searchsorted(np.unique(table.labels[rows]), table.labels[rows])]
    rows = rows[np.argsort(rank, kind="stable")][:MOST_HELD_OUT]
    digests = tuple(data.images.digests[row] for row in rows)
    return HeldOut(run.embed(data.images.images, rows).cpu().numpy(), table.labels[rows], digests)
