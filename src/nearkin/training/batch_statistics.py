"""Batch-norm's running statistics computed anew, for weights that no training has gone through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.data.cache import Images
from nearkin.data.loader import training_batches
from nearkin.data.transforms import ImageRandom, Transform
from nearkin.encoders import Encoder
from nearkin.training.device import autocast


def has_running_statistics(network: nn.Module) -> bool:
    """Whether some batch-norm keeps a mean and a variance to be used in evaluation.

    >>> has_running_statistics(nn.BatchNorm2d(3)), has_running_statistics(nn.LayerNorm(3))
    (True, False)
    """
    return bool(_norms(network))


def renew_batch_statistics(
    encoder: Encoder,
    images: Images,
    transform: Transform,
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    workers: int | None = None,
    dtype: torch.dtype | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Replace running statistics by their means over the batches that ``rows`` make.

    Crops are those of training, as they were for the statistics that are replaced. Each batch counts the same, and so
    they are equally large but for one image. Only batch-norm is in training mode: dropout would be part of no
    evaluation. The encoder is left in evaluation mode. ``progress`` is told after each batch how many images are done.
    """
    norms, device = _norms(encoder), next(encoder.parameters()).device
    momenta = [norm.momentum for norm in norms]
    encoder.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for the mean of all batches
        norm.train()
    done = 0
    try:
        for number, batch in enumerate(mixed_batches(rows, batch_size)):
            pixels = _training_crops(images, transform, batch, number, workers)
            with torch.no_grad(), autocast(device, dtype):
                encoder(pixels.to(device))
            done += len(batch)
            if progress is not None:
                progress(done)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        encoder.eval()


def mixed_batches(rows: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """All rows in random order, in as few batches as hold them, equally large but for one.

    Tables are sorted by class, and the images of one class vary less than those of a training batch do.

    >>> [len(batch) for batch in mixed_batches(np.arange(10), 4)]
    [4, 3, 3]
    """
    shuffled = np.random.default_rng(0).permutation(rows)
    return np.array_split(shuffled, max(1, -(-len(rows) // batch_size)))


def _training_crops(
    images: Images, transform: Transform, rows: NDArray[np.int64], number: int, workers: int | None
) -> Tensor:
    def random(place: int) -> np.random.Generator:
        return ImageRandom(0).at(number, place)  # one each, as threads make the crops

    places = range(len(rows))
    return next(training_batches(images, transform, rows, places, random, batch_size=len(rows), workers=workers))


def _norms(network: nn.Module) -> list[_BatchNorm]:
    return [each for each in network.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None]
