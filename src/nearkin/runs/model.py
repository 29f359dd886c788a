"""A trained encoder as other programs use it: images in, float32 vectors out, and an identity to be told apart by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.data.folder import nearest_folder
from nearkin.data.given import Picture, as_images
from nearkin.errors import DataError
from nearkin.notices import notices_told_to
from nearkin.runs.data import open_own_data, split_as_stored
from nearkin.runs.trained import TrainedRun, load_run
from nearkin.training.build import data_of

Vectors = NDArray[np.float32]
MOST_HELD_OUT = 2_000
"""Images of held-out classes that are embedded at most: a curve of two parameters needs no more."""


@dataclass(frozen=True)
class HeldOut:
    """Images of classes that an encoder was not trained on: vectors ``[N, dim]`` and a class each."""

    vectors: Vectors
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """An encoder with everything between an image file and its vector.

    Where it comes from makes no difference to whoever uses it: a run folder here, an exported file elsewhere.
    """

    path: Path
    """What :func:`load` was given, absolute."""
    identity: str
    """The same for two models that give an image the same vector: a hash of weights, architecture and preprocessing."""
    dim: int
    distance: Literal["cosine", "euclidean"]
    """How its vectors are compared: by angle where they have length 1, by distance where length counts."""
    shorter_side: int | None
    """Decoded images are shrunk to this before anything else, as in training."""
    embed: Callable[[Images, int | None], Vectors]
    """Vectors of decoded images in their order, so many at a time."""
    held_out: Callable[[], HeldOut | None] = lambda: None
    """Embeds what can be found of the classes that it was tested on, or says None where there are none."""

    def encode(self, images: Images | Picture | Iterable[Picture], batch_size: int | None = 64) -> Vectors:
        """Vectors of images in the order given, float32 ``[N, dim]``.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors, each treated as its
        file would be (:class:`~nearkin.data.given.GivenImages`).
        """
        if batch_size is not None and batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        opened = as_images(images, shorter_side=self.shorter_side)
        return self.embed(opened, batch_size) if len(opened) else np.empty((0, self.dim), dtype=np.float32)


def load(path: str | Path, *, which: str = "best", device: str | None = None) -> Model:
    """The model at ``path``: a run folder, of which ``which`` says the checkpoint (``best`` or ``last``).

    This is the one place that looks at what a path is.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"there is no run folder {str(place)!r}{nearest_folder(place)}")
    if place.is_file():
        raise DataError(f"{str(place)!r} is a file: give the folder of a run, which 'nearkin train' makes")
    return model_of_run(load_run(place, which=which, device=device))


def model_of_run(run: TrainedRun) -> Model:
    """A run's encoder as a model; images are treated as the run was scored."""

    def embed(images: Images, batch_size: int | None) -> Vectors:
        return run.embed(images, batch_size=batch_size).cpu().numpy()

    return Model(
        path=run.folder.path.absolute(),
        identity=identity_of(run),
        dim=run.encoder.dim,
        distance=run.encoder.distance,
        shorter_side=data_of(run.recipe).shorter_side,
        embed=embed,
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
        with notices_told_to(lambda _: None):  # what has become of the run's images is nothing to whoever searches
            data = split_as_stored(run.folder, run.recipe, open_own_data(run.folder, section), scored=())
    except DataError:
        return None
    if data.protocol.test is None:
        return None
    rows, table = np.unique(data.protocol.test.rows), data.images.table
    # Whole classes, since it takes two of one to be the same kind.
    order = np.random.default_rng(0).permutation(np.unique(table.labels[rows]))
    rank = np.argsort(order)[np.searchsorted(np.unique(table.labels[rows]), table.labels[rows])]
    rows = rows[np.argsort(rank, kind="stable")][:MOST_HELD_OUT]
    return HeldOut(run.embed(data.images.images, rows).cpu().numpy(), table.labels[rows])
