"""A trained encoder as other programs use it: images in, float32 vectors out, and an identity to be told apart by.

Nothing here imports torch, which an ``.onnx`` file does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.data.folder import suggest_folder
from nearkin.data.image_inputs import ImageInput, as_images
from nearkin.errors import DataError, RecipeError, require_torch
from nearkin.exports.model import SUFFIXES, load_exported

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class HeldOut:
    """Images of classes that an encoder was not trained on: vectors ``[N, dim]`` and a class each."""

    vectors: Vectors
    labels: NDArray[np.int64]
    digests: tuple[str, ...] = ()
    """Hashes of their content."""


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
    prepare: Callable[[int], None] = lambda images: None
    """Told before so many images are embedded, so that what pays for many can be made ready."""
    held_out: Callable[[], HeldOut | None] = lambda: None
    """Embeds what can be found of the classes that it was tested on, or says None where there are none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What :func:`load` was told beside the path, as far as it changes vectors; JSON can hold it."""

    def encode(self, images: Images | ImageInput | Iterable[ImageInput], batch_size: int | None = 64) -> Vectors:
        """Vectors of images in the order given, float32 ``[N, dim]``.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors, each treated as its
        file would be (:class:`~nearkin.data.image_inputs.ImageInputs`).
        """
        if batch_size is not None and batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        opened = as_images(images, shorter_side=self.shorter_side)
        if not len(opened):
            return np.empty((0, self.dim), dtype=np.float32)
        self.prepare(len(opened))
        return self.embed(opened, batch_size)


def load(
    path: str | Path | Sequence[str | Path],
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
    runtime: str = "auto",
) -> Model:
    """The model at ``path``: a run folder, or a file that ``nearkin export`` wrote; or several as one.

    A model with other options than another gives other vectors, and has another identity.

    Args:
        path: a run folder, a ``.onnx``, ``.pt2`` or ``.safetensors`` file; of a list the vectors stand side by side,
            each model counting the same.
        which: of a run the ``best`` or ``last`` checkpoint.
        device: where a run computes.
        flip: whether an embedding is averaged with the mirror image's; default: as the run was scored.
        eval_size: side of the crops in pixels; default: as the run was scored.
        runtime: what computes a run's vectors on a CPU: ``torch``; ``onnx``, for which the run's folder gets a file
            once; or ``auto``, onnxruntime where that file is there or pays. Vectors differ by rounding, less than 1e-5.
    """
    if not isinstance(path, (str, Path)):
        paths = list(path)
        if not paths:
            raise RecipeError("give at least one run to load")
        from nearkin.runs.concatenated import concatenated

        models = [
            load(one, which=which, device=device, flip=flip, eval_size=eval_size, runtime=runtime) for one in paths
        ]
        return models[0] if len(models) == 1 else concatenated(models)
    return _load_one(path, which, device, {"flip": flip, "eval_size": eval_size}, runtime)


def load_again(
    path: str | Path, options: Mapping[str, Any], *, device: str | None = None, runtime: str = "auto"
) -> Model:
    """The model of which ``path`` and ``options`` were kept (:attr:`Model.options`)."""
    others = {key: value for key, value in options.items() if key != "also"}
    return load([path, *options.get("also", ())], device=device, runtime=runtime, **others)


def _load_one(path: str | Path, which: str, device: str | None, crops: Mapping[str, Any], runtime: str) -> Model:
    # This is the one place that looks at what a path is.
    place = Path(path).expanduser()
    asked = {key: value for key, value in crops.items() if value is not None}
    if place.suffix in SUFFIXES and not place.is_dir():
        if asked:
            raise RecipeError(
                f"{' and '.join(asked)} cannot be changed in a file, {place}: give the run it was made from"
            )
        if runtime not in ("auto", "onnx" if place.suffix == ".onnx" else "torch"):
            raise RecipeError(f"{place} cannot be computed by {runtime!r}: give the run, whose runtime can be chosen")
        return _model_of_file(place)
    if not place.exists():
        near = suggest_folder(place) or "; 'nearkin train --data FOLDER -o RUN' makes one"
        raise DataError(f"there is no run folder {str(place)!r}{near}")
    if place.is_file():
        raise DataError(
            f"{str(place)!r} is a file: give the folder of a run, which 'nearkin train' makes, or a file that "
            f"'nearkin export' wrote"
        )
    require_torch(f"{place}, a run,")
    from nearkin.exports.runtime import check_runtime
    from nearkin.runs.run_model import model_of_run
    from nearkin.runs.trained import load_run

    check_runtime(runtime)
    if runtime == "onnx" and device not in (None, "auto", "cpu"):
        raise RecipeError(f"onnxruntime computes on the CPU here, not on {device}: leave out the one or the other")
    where = "cpu" if runtime == "onnx" else device
    model = model_of_run(load_run(place, which=which, device=where, **asked), runtime)
    return replace(model, options=asked if which == "best" else {**asked, "which": which})


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
