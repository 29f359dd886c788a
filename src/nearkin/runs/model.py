"""A trained encoder as other programs use it: images in, float32 vectors out, and an identity to be told apart by.

Nothing here imports torch, which an ``.onnx`` file does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.data.folder import nearest_folder
from nearkin.data.given import Picture, as_images
from nearkin.errors import DataError
from nearkin.exports.model import SUFFIXES, load_exported

Vectors = NDArray[np.float32]


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
    """The model at ``path``: a run folder, of which ``which`` says the checkpoint (``best`` or ``last``), or a file.

    A file is one that ``nearkin export`` wrote: ``.onnx``, ``.pt2`` or ``.safetensors``. This is the one place that
    looks at what a path is.
    """
    place = Path(path).expanduser()
    if place.suffix in SUFFIXES and not place.is_dir():
        return _model_of_file(place)
    if not place.exists():
        raise DataError(f"there is no run folder {str(place)!r}{nearest_folder(place)}")
    if place.is_file():
        raise DataError(
            f"{str(place)!r} is a file: give the folder of a run, which 'nearkin train' makes, or a file that "
            f"'nearkin export' wrote"
        )
    from nearkin.runs.run_model import model_of_run
    from nearkin.runs.trained import load_run

    return model_of_run(load_run(place, which=which, device=device))


def _model_of_file(path: Path) -> Model:
    exported = load_exported(path)
    return Model(
        path=path.absolute(),
        identity=exported.identity,
        dim=exported.dim,
        distance="cosine" if exported.normalisation == "l2" else "euclidean",
        shorter_side=exported.settings.shorter_side,
        embed=lambda images, batch_size: exported.encode(images, batch_size or 64),
    )
