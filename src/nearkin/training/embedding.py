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


def images_at_a_time(side: int, device: torch.device) -> int:
    """How many images of ``side`` × ``side`` pixels to embed at a time; on a CPU at most 1.6 megapixels.

    >>> images_at_a_time(224, torch.device("cpu")), images_at_a_time(48, torch.device("cpu"))
    (32, 256)
    """
    return min(AT_A_TIME, max(1, PIXELS_ON_CPU // side**2)) if device.type == "cpu" else AT_A_TIME


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
    crops: Callable[[range], Iterable[Tensor]] | None = None,
    flip: bool = False,
    together: bool = False,
) -> Tensor:
    """Embed ``rows`` of ``images`` (default: all) in order and in evaluation mode: float32 ``[N, dim]`` on ``device``.

    ``progress`` is called after each batch with the number of images done. ``crops`` gives the crops of a range of
    ``rows`` in batches, instead of making them here. With ``flip`` an embedding is the normalised mean of those of the
    image and its mirror image. ``together``: each process of torchrun embeds a share of the rows, and all get them all.
    """
    device = device or next(encoder.parameters()).device
    keep_freed_memory(device)
    batch_size = batch_size or images_at_a_time(transform.size, device)
    rows = np.arange(len(images)) if rows is None else rows
    share, times = (ranks.share_of(len(rows)), ranks.world()) if together else (range(len(rows)), 1)
    embeddings = torch.empty(len(share), encoder.dim, device=device)
    was_training, done = encoder.training, 0
    encoder.eval()
    try:
        with torch.inference_mode(), autocast(device, dtype):
            if crops is None:
                local = rows[share.start : share.stop]
                batches = evaluation_batches(images, transform, batch_size=batch_size, workers=workers, rows=local)
            for pixels in batches if crops is None else crops(share):
                pixels = pixels.to(device, non_blocking=True)
                vectors = encoder(pixels)
                if flip:
                    mean = (vectors + encoder(pixels.flip(2))) / 2
                    with full_precision(device.type):
                        vectors = normalise(mean, encoder.normalisation)
                embeddings[done : done + len(pixels)] = vectors
                done += len(pixels)
                if progress is not None:
                    progress(min(done * times, len(rows)))
    finally:
        encoder.train(was_training)
    if not together:
        return embeddings
    ranks.wait_for_all()  # as machines differ in speed
    return ranks.gather_rows(embeddings, len(rows))
