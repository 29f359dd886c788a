"""Embeddings of many images with a trained encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin import ranks
from nearkin.data.cache import Images
from nearkin.data.loader import evaluation_batches
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.numerics import full_precision, normalise
from nearkin.training.device import autocast, keep_freed_memory

AT_A_TIME, PIXELS_ON_CPU = 256, 32 * 224**2

Embed = Callable[[NDArray[np.int64], Callable[[int], None] | None], Tensor]
"""Embeds rows, and says after each batch how many are done."""


def images_at_a_time(side: int, device: torch.device) -> int:
    """How many images of ``side`` × ``side`` pixels are best embedded together.

    On a CPU more than some megapixels gain nothing, and their feature maps leave the caches and take gigabytes.

    >>> images_at_a_time(224, torch.device("cpu")), images_at_a_time(48, torch.device("cpu"))
    (32, 256)
    """
    return min(AT_A_TIME, max(1, PIXELS_ON_CPU // side**2)) if device.type == "cpu" else AT_A_TIME


def embedded_by_all(embed: Embed, rows: NDArray[np.int64], progress: Callable[[int], None] | None = None) -> Tensor:
    """Embeddings of all ``rows`` on every rank, where each has embedded a share of them; alone, ``embed(rows)``.

    >>> embedded_by_all(lambda rows, progress: torch.from_numpy(rows)[:, None], np.array([3, 5]))
    tensor([[3],
            [5]])
    """
    local = ranks.share_of(len(rows))
    local_progress = None if progress is None else lambda done: progress(min(done * ranks.world(), len(rows)))
    embeddings = embed(rows[local.start : local.stop], local_progress)
    ranks.wait_for_all()  # machines may be differently fast
    return ranks.gather_rows(embeddings, len(rows))


def embed_images(
    encoder: Encoder,
    images: Images,
    transform: Transform,
    *,
    rows: NDArray[np.int64] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    progress: Callable[[int], None] | None = None,
    crops: Iterable[Tensor] | None = None,
    flip: bool = False,
) -> Tensor:
    """Embed ``rows`` of ``images`` (default: all) in order: float32 ``[N, dim]`` on ``device``.

    The encoder is put into evaluation mode and back into the mode it was in. ``progress`` is called after each batch
    with the number of images done. Without ``batch_size`` it is ``images_at_a_time``. ``crops`` are those of the rows,
    in batches, where they exist already. With ``flip`` an embedding is the mean of that of the image and of its mirror
    image, normalised.
    """
    device = device or next(encoder.parameters()).device
    keep_freed_memory(device)
    batch_size = batch_size or images_at_a_time(transform.size, device)
    was_training = encoder.training
    encoder.eval()
    count = len(images) if rows is None else len(rows)
    embeddings = torch.empty(count, encoder.dim, device=device)
    done = 0
    try:
        with torch.inference_mode(), autocast(device, dtype):
            if crops is None:
                crops = evaluation_batches(images, transform, batch_size=batch_size, workers=workers, rows=rows)
            for pixels in crops:
                pixels = pixels.to(device, non_blocking=True)
                vectors = encoder(pixels)
                if flip:
                    mean = (vectors + encoder(pixels.flip(2))) / 2
                    with full_precision(device.type):
                        vectors = normalise(mean, encoder.normalisation)
                embeddings[done : done + len(pixels)] = vectors
                done += len(pixels)
                if progress is not None:
                    progress(done)
    finally:
        encoder.train(was_training)
    return embeddings
