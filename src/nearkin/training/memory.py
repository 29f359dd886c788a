"""What fits into memory: the images in the network at a time on a CPU, and where the images of a run are kept.

The memory of a step's backward pass is measured on small images, and grows with pixels and batch. Real steps took 1.1
to 1.2 times as much.
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
"""Bytes of feature maps that a step on a CPU keeps at a time by default. A constant, not the free memory: a resumed run
must be the same to the bit."""
CPU_CROPS = 500_000_000
"""Bytes of evaluation crops to keep where there is no GPU."""
AMPLE = 1 / 4
"""Share of the GPU memory left by training that images may take by default; evaluation crops may take as much."""
CAUTION = 1.5
"""Factor for the estimate of a step's memory, which is low."""


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
    """About the memory of a training step: feature maps, gradients and two moments."""
    batch = len(share_of(min(state.recipe.training.batch_size, len(state.labels)), of=0))
    size, images = state.transform.size, min(batch, state.micro_batch or batch)
    weights = sum(weight.nbytes for weight in state.weights if weight.requires_grad)
    return kept_per_pixel(state.encoder, size, state.device, state.dtype) * images * size**2 + 3 * weights


def fitting_micro_batch(
    encoder: Encoder, batch: int, size: int, device: torch.device, dtype: torch.dtype | None
) -> int | None:
    """How many images go through the network at a time where the recipe does not say; None for the whole batch.

    On a CPU these are equal pieces of the batch, each with at most :data:`CPU_PIECE` of feature maps, unless batch-norm
    needs the whole batch.

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
    """Bytes per pixel kept until the backward pass, measured on a copy of the backbone; 0 where that fails."""
    backbone, side = copy.deepcopy(encoder.backbone), min(size, PROBE_SIDE)

    def kept(count: int) -> int:
        storages: dict[int, torch.UntypedStorage] = {}

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
        # What one more image adds are feature maps; the rest are weights.
        return (kept(PROBE_IMAGES + 1) - kept(PROBE_IMAGES)) / side**2
    except (RuntimeError, ValueError):  # a network that takes no images of this size: its own error, later, says more
        return 0.0


def free_memory(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def total_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
