"""A model whose vectors are whitened along the axes of its training images, which are kept in the run's folder."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearkin.data.cache import Images
from nearkin.disk import write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.whitening import Axes, Whitening, principal_axes
from nearkin.runs.model import HeldOut, Model, Vectors


def whitened(model: Model, dim: int | None = None, *, shrinkage: float = 0.0) -> Model:
    """``model`` with PCA-whitened vectors of ``dim`` numbers (default: as many as vary), which are compared by angle.

    The axes are learned from the run's training images, never from those it is tested on, when they are first asked
    for. They are kept in its folder, so that the images are not needed again.
    """
    if not model.path.is_dir():
        raise RecipeError(f"whitening is learned from training images, and {model.path} is a file: give the run")
    axes = stored_axes(model.path, model.identity)
    if axes is None:
        axes = learn_axes(model.path, model.identity, model.embed(_training_images(model), None))
    whitening = axes.whitening(dim, shrinkage=shrinkage)

    def embed(images: Images, batch_size: int | None) -> Vectors:
        return whitening(model.embed(images, batch_size))

    def held_out() -> HeldOut | None:
        found = model.held_out()
        return None if found is None else replace(found, vectors=whitening(found.vectors))

    asked = {"whiten": True if dim is None else dim, **({"shrinkage": shrinkage} if shrinkage else {})}
    return replace(
        model,
        identity=_identity(model.identity, whitening),
        dim=whitening.dim,
        distance="cosine",
        embed=embed,
        held_out=held_out,
        options={**model.options, **asked},
    )


def stored_axes(folder: Path, identity: str) -> Axes | None:
    """The axes that :func:`learn_axes` has left in a run's folder for the encoder of this identity."""
    file = _file(folder, identity)
    try:
        return Axes.read(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read ({error}): delete it, and it is made anew") from error


def learn_axes(folder: Path, identity: str, vectors: Vectors) -> Axes:
    """The principal axes of vectors of training images, which are written into the run's folder."""
    axes = principal_axes(vectors)
    write_atomically(_file(folder, identity), axes.to_bytes())
    return axes


def _file(folder: Path, identity: str) -> Path:
    return folder / f"whitening-{identity[:16]}.npz"


def _training_images(model: Model) -> Images:
    images = model.training()
    if images is None or len(images) < 2:
        raise DataError(
            f"the training images of {model.path} are not at hand, from which whitening is learned: put them back, or "
            f"copy the file whitening-*.npz from where it was learned"
        )
    return images


def _identity(identity: str, whitening: Whitening) -> str:
    digest = hashlib.sha256(f"whitened {identity}".encode())
    for array in (whitening.mean, whitening.matrix):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]
