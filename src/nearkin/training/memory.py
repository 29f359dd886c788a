"""What fits into memory: images in the network at a time on a CPU, and where the images of a run lie.

What a step keeps for its backward pass is measured on two small images and grows with pixels and batch; real steps took
1.1 to 1.2 times as much.
"""

from __future__ import annotations

import copy
import math
import os

import torch
from torch import Tensor

from nearkin.data.device_images import DeviceImages, shapes_of
from nearkin.data.loader import CropCache
from nearkin.encoders import Encoder
from nearkin.errors import RecipeError, notice
from nearkin.ranks import share_of
from nearkin.training.device import autocast
from nearkin.training.micro_batch import has_batch_statistics
from nearkin.training.state import TrainingState

PROBE_IMAGES, PROBE_SIDE = 2, 96
CPU_PIECE = 1e9
"""Bytes of feature maps that a step on a CPU keeps at a time by default. Not what is free just now: a resumed run must
be the same to the bit."""
CPU_CROPS = 500_000_000
"""Bytes of evaluation crops to keep where there is no GPU."""
AMPLE = 1 / 4
"""Share of the GPU's memory left by training that images may take by default, and crops as much."""
CAUTION = 1.5
"""Over the estimate of what a step takes, which is low."""


def place_images(state: TrainingState) -> None:
    """Put the training images on a CUDA device as ``data.cache`` says, and make room for evaluation crops."""
    cache, device, needed = state.recipe.data.cache, state.device, step_bytes(state)
    if needed > (total := total_memory(device)):
        raise RecipeError(
            f"training needs about {needed / 1e9:,.1f} GB of memory, and there are {total / 1e9:,.1f} GB: lower "
            f"training.batch_size ({state.recipe.training.batch_size}), training.micro_batch (the same training in "
            f"pieces) or data.image_size ({state.transform.size})"
        )
    budget = CPU_CROPS
    if device.type == "cuda":
        room = max(0, free_memory(device) - int(CAUTION * needed))
        state.on_device = None if cache in ("disk", "memory") else _on_device(state, room)
        taken = 0 if state.on_device is None else state.on_device.pixels.nbytes
        budget = min(int(AMPLE * room), room - taken)
        state.room_for_graphs = room - taken - budget >= CAUTION * needed
    elif cache == "device":
        raise RecipeError(f"data.cache=device keeps images on a CUDA device, not on {device}: use data.cache=auto")
    workers = state.recipe.data.workers
    state.crop_cache = CropCache(state.data.images, state.eval_transform, device, budget=budget, workers=workers)


def _on_device(state: TrainingState, room: int) -> DeviceImages | None:
    shapes, asked = shapes_of(state.train_set), state.recipe.data.cache == "device"
    needed = 3 * int(shapes.prod(axis=1).sum())
    images = f"{len(shapes):,} training images ({needed / 1e9:,.1f} GB)"
    if needed <= (room if asked else AMPLE * room):
        notice(f"{images} are on {state.device}, which makes the crops (data.cache=device)")
        return DeviceImages(state.train_set, state.device, shapes)
    left = f"training leaves {room / 1e9:,.1f} GB of {state.device}"
    if asked:
        raise RecipeError(
            f"data.cache=device: {images} do not fit, as {left}: lower data.shorter_side, or use data.cache=auto"
        )
    notice(f"{images} stay with the loader, as {left}, of which they may take a quarter by default (data.cache=disk)")
    return None


def step_bytes(state: TrainingState) -> float:
    """About what a training step takes: feature maps, gradients and two moments."""
    batch = len(share_of(min(state.recipe.training.batch_size, len(state.labels)), of=0))
    size, images = state.transform.size, min(batch, state.micro_batch or batch)
    weights = sum(weight.nbytes for weight in state.weights if weight.requires_grad)
    return kept_per_pixel(state.encoder, size, state.device, state.dtype) * images * size**2 + 3 * weights


def fitting_micro_batch(
    encoder: Encoder, batch: int, size: int, device: torch.device, dtype: torch.dtype | None
) -> int | None:
    """Images to have in the network at a time where the recipe does not say; None for the whole batch.

    On a CPU equal pieces of the batch, each with feature maps of :data:`CPU_PIECE` at most, unless batch-norm looks at
    the batch.

    >>> from nearkin.encoders import build_encoder
    >>> encoder = build_encoder("small", freeze_batch_norm=True)
    >>> [fitting_micro_batch(encoder, batch, 224, torch.device("cpu"), None) for batch in (8, 64)]
    [None, 32]
    """
    if device.type != "cpu" or has_batch_statistics(encoder):
        return None
    pieces = math.ceil(kept_per_pixel(encoder, size, device, dtype) * batch * size**2 / CPU_PIECE)
    return math.ceil(batch / pieces) if pieces > 1 else None


def kept_per_pixel(encoder: Encoder, size: int, device: torch.device, dtype: torch.dtype | None) -> float:
    """Bytes kept until the backward pass per pixel, by forward passes of a copy; 0 where they fail."""
    backbone, side = copy.deepcopy(encoder.backbone), min(size, PROBE_SIDE)

    def kept(count: int) -> int:
        storages: dict[int, torch.UntypedStorage] = {}  # each once

        def keep(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            autocast(device, dtype),
        ):
            backbone(torch.zeros(count, 3, side, side, device=device))
        return sum(storage.nbytes() for storage in storages.values())

    try:
        # What another image adds is feature maps; the rest are weights.
        return (kept(PROBE_IMAGES + 1) - kept(PROBE_IMAGES)) / side**2
    except (RuntimeError, ValueError):  # a network that takes no images of this size: its own error says more later
        return 0.0


def free_memory(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def total_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
