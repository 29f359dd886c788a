"""A run's encoder put to use: loaded from its folder, ready to embed images the way it was trained to see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images
from nearkin.data.image_inputs import ImageInput, as_images
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.errors import DataError, RecipeError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.build import data_of, encoder_from, eval_transform_of
from nearkin.training.device import autocast_dtype, float32_products, pick_device
from nearkin.training.embedding import embed_images, embedded_by_all
from nearkin.training.recipes import load_recipe


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
        file would be (:class:`~nearkin.data.image_inputs.ImageInputs`). Or what ``open_data`` has
        opened, of which ``rows`` may choose some. Without ``batch_size`` as many at a time as in evaluation.
        ``progress`` is told after each batch how many are done.
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
        """As :meth:`embed`, by all processes that torchrun has started: each embeds a share, and all get all of it."""
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
        recipe = load_recipe(recipe.as_mapping(), given)  # which also looks whether they can be
    where = pick_device(device or "auto")
    encoder = encoder_from(recipe.encoder, pretrained=False)
    weights = checkpoint.encoder_weights(folder, which)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise DataError(
            f"the {which} weights in {folder.path} are not those of its recipe: "
            f"{' '.join(str(error).split())[:200]}. Put back the run's own files, or train anew with --overwrite"
        ) from error
    precision = recipe.training.precision if where.type != "cpu" else "auto"
    return TrainedRun(
        folder, recipe, encoder.to(where).eval(), eval_transform_of(recipe), where, autocast_dtype(precision, where)
    )
