"""A run's encoder loaded from its folder, ready to embed images the way it was trained to see them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images
from nearkin.data.image_inputs import ImageInput, as_images
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.errors import DataError, RecipeError, notices_to
from nearkin.numerics import normalise
from nearkin.recipe import Recipe
from nearkin.runs.data import open_own_data, split_as_stored
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import HeldOut, Model
from nearkin.training import checkpoint
from nearkin.training.build import data_of, encoder_from, eval_transform_of
from nearkin.training.checkpoint import read_checkpoint
from nearkin.training.device import autocast_dtype, float32_products, pick_device
from nearkin.training.embedding import embed_images, embedded_by_all
from nearkin.training.recipes import load_recipe

HELD_OUT_LIMIT = 2_000
"""At most this many images of held-out classes are embedded: a curve of two parameters needs no more."""


@dataclass(frozen=True)
class TrainedRun:
    """A run's encoder, ready to embed images the way it was trained to see them."""

    folder: RunFolder
    recipe: Recipe
    encoder: Encoder
    transform: Transform
    device: torch.device
    dtype: torch.dtype | None

    def embed(
        self,
        images: Images | ImageInput | Iterable[ImageInput],
        rows: NDArray[np.int64] | None = None,
        *,
        batch_size: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Embeddings of images in the order given, float32 ``[N, dim]`` on the run's device.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors, each treated as its
        file would be (:class:`~nearkin.data.image_inputs.ImageInputs`). Or what ``open_data`` has opened, of which
        ``rows`` may choose some. The default batch size is that of evaluation. ``progress`` is called after each batch
        with the number of images done.
        """
        with float32_products(self.recipe.training.precision):
            return embed_images(
                self.encoder,
                as_images(images, shorter_side=data_of(self.recipe).shorter_side),
                self.transform,
                rows=rows,
                batch_size=batch_size or self.recipe.training.evaluation_batch_size,
                workers=self.recipe.data.workers,
                device=self.device,
                dtype=self.dtype,
                progress=progress,
                flip=self.recipe.protocol.flip,
            )

    def embed_together(self, images: Images, rows: NDArray[np.int64]) -> Tensor:
        """As :meth:`embed`, shared between all processes of torchrun: each embeds a part, and all get the whole."""
        return embedded_by_all(lambda part, _: self.embed(images, part), rows)


def load_run(
    path: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
) -> TrainedRun:
    """Load the encoder of a run folder, by default its best weights.

    Images are embedded as the run was scored, unless ``flip`` or ``eval_size`` say otherwise: with mirror images, and
    as crops of another size.
    """
    if which not in ("best", "last"):
        raise RecipeError(f"checkpoint must be 'best' or 'last', got {which!r}")
    folder = RunFolder.existing(path)
    recipe = folder.recipe()
    changes = {"protocol.flip": flip, "protocol.eval_size": eval_size}
    if given := [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]:
        recipe = load_recipe(recipe.as_mapping(), given)  # which validates them, too
    where = pick_device(device or "auto")
    encoder = encoder_from(recipe.encoder, pretrained=False)
    weights = checkpoint.encoder_weights(folder, which)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise DataError(
            f"the {which} weights in {folder.path} are not those of its recipe: "
            f"{' '.join(str(error).split())[:200]}. Put back the run's files, or train again with --overwrite"
        ) from error
    precision = recipe.training.precision if where.type != "cpu" else "auto"
    return TrainedRun(
        folder, recipe, encoder.to(where).eval(), eval_transform_of(recipe), where, autocast_dtype(precision, where)
    )


def model_of_run(run: TrainedRun) -> Model:
    """A run's encoder as a model; images are treated as when the run was scored."""
    return Model(
        path=run.folder.path.absolute(),
        identity=identity_of(run),
        dim=run.encoder.dim,
        distance=run.encoder.distance,
        shorter_side=data_of(run.recipe).shorter_side,
        embed=lambda images, batch_size: run.embed(images, batch_size=batch_size).cpu().numpy(),
        held_out=lambda: _held_out(run),
    )


def identity_of(run: TrainedRun) -> str:
    """A hash of all that decides which vector an image gets: weights, architecture, crops, normalisation, dimension.

    The device and its precision are left out: they change a vector by rounding alone.
    """
    encoder, section, transform = run.encoder, run.recipe.encoder, run.transform
    settings = {
        "architecture": [section.backbone, section.pooling, section.last_stride, dict(section.options)],
        "preprocessing": repr(encoder.preprocessing),
        "crop": [transform.resize, transform.size, transform.squash, data_of(run.recipe).shorter_side],
        "flip": run.recipe.protocol.flip,
        "dim": encoder.dim,
        "normalisation": encoder.normalisation,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        array = np.ascontiguousarray(weight.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _held_out(run: TrainedRun) -> HeldOut | None:
    """The run's test images, or some of them; None where it has none or they cannot be found any more."""
    section = replace(data_of(run.recipe), unreadable_tolerance=1.0)
    try:
        with notices_to(lambda _: None):  # what became of the run's images does not concern a search
            data = split_as_stored(run.folder, run.recipe, open_own_data(run.folder, section), scored=("test",))
    except DataError:
        return None
    if data.protocol.test is None:
        return None
    rows, table = np.unique(data.protocol.test.rows), data.images.table
    # Whole classes in random order, since a pair of the same class takes two images of it.
    classes = np.unique(table.labels[rows])
    rank = np.argsort(np.random.default_rng(0).permutation(classes))[np.searchsorted(classes, table.labels[rows])]
    rows = rows[np.argsort(rank, kind="stable")][:HELD_OUT_LIMIT]
    digests = tuple(data.images.digests[row] for row in rows)
    return HeldOut(run.embed(data.images.images, rows).cpu().numpy(), table.labels[rows], digests)


@dataclass(frozen=True)
class ClassProxies:
    """Vectors ``[P, dim]``, normalised as embeddings are, and the class name of each."""

    vectors: NDArray[np.float32]
    names: tuple[str, ...]


def proxies_of(path: Path, dim: int) -> ClassProxies | None:
    """The proxies of the run's loss at its best weights, for those who have the run folder without its images.

    None for an exported file, a loss on pairs, a method with its own proxies, and proxies of another dimension.
    """
    try:
        folder = RunFolder.existing(path)
        split, recipe = folder.split, folder.recipe()
        state = read_checkpoint(folder.last_checkpoint)
        if (best := state["best"]) is not None and best["step"] != state["step"]:
            state = read_checkpoint(folder.best_checkpoint(int(best["step"])))
    except (DataError, OSError):
        return None
    vectors = state["objective"].get("bank.vectors")
    if vectors is None or vectors.shape[2] != dim:
        return None
    classes = np.unique(split.labels[split.splits == "train"]).tolist()
    if len(classes) != len(vectors):
        return None
    unit = normalise(vectors.detach().float(), recipe.encoder.normalisation).flatten(0, 1).numpy()
    return ClassProxies(unit, tuple(split.class_names[label] for label in classes for _ in range(vectors.shape[1])))
