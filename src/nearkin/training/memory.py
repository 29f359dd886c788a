"""What fits into memory: images in the network at a time on a CPU, and where the images of a run lie.

What a step keeps for its backward pass is measured on two small images and grows with pixels and batch. The estimates
are low rather than high. Measured, as real use over estimate: training steps 1.1 (small network), 1.2 (ResNet-50), 1.1
to 1.2 (EfficientNet-lite0); evaluations 1.0 to 1.45.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from nearkin.data.device_images import DeviceImages, shapes_of
from nearkin.data.loader import CropCache
from nearkin.encoders import Encoder
from nearkin.errors import RecipeError, notice
from nearkin.ranks import on_this_machine, share_of
from nearkin.training.device import autocast
from nearkin.training.micro_batch import has_batch_statistics
from nearkin.training.state import TrainingState

PROBE_IMAGES, PROBE_SIDE = 2, 96
FORWARD_MAPS = 2.5
"""Feature maps as large as the largest that a forward pass without gradient holds at a time."""
OPTIMISER_COPIES = {"adamw": 3, "adam": 3, "sgd": 2}
"""What training adds for every weight: its gradient and what the optimiser remembers of it."""
CPU_PIECE = 1e9
"""Bytes of feature maps that a step on a CPU keeps at a time by default: a laptop has some gigabytes free. The same
whatever is free just now, so that a run is the same to the bit on any day and after it was stopped."""
AMPLE = 1 / 4
"""Share of the GPU's memory left by training that images may take by default, and crops as much: others run there."""
SPARE = 1 / 16
"""Share of the system's free memory that evaluation crops may take where there is no GPU. A network on a CPU takes much
longer for an image than its crop does, so they save little there and must not be what fills a laptop."""
CAUTION = 1.5
"""Over the estimate of what a step takes, which is low."""


def place_images(state: TrainingState) -> None:
    """Put the training images on a CUDA device as ``data.cache`` says, and make room for evaluation crops.

    What is bound to need far more memory than there is, is refused; what is likely to, is named in a notice.
    """
    cache, device, training = state.recipe.data.cache, state.device, state.recipe.training
    known = free_memory(device)
    free, needed = known or 0, step_bytes(state)
    if known is not None and needed > known:
        message = (
            f"training needs about {needed / 1e9:,.1f} GB of memory, and {known / 1e9:,.1f} GB are free: lower "
            f"training.batch_size ({training.batch_size}), training.micro_batch (the same training in pieces) or "
            f"data.image_size ({state.transform.size})"
        )
        if needed > 2 * known:  # more than an estimate may be wrong by
            raise RecipeError(message)
        notice(message)
    if device.type != "cuda":
        if cache == "device":
            raise RecipeError(f"data.cache=device keeps images on a CUDA device, not on {device}: use data.cache=auto")
        state.crop_cache = _crop_cache(state, int(SPARE * free))
        return
    room = max(0, free - int(CAUTION * needed))
    state.on_device = None if cache in ("disk", "memory") else _on_device(state, room)
    taken = 0 if state.on_device is None else state.on_device.pixels.nbytes
    state.crop_cache = _crop_cache(state, min(int(AMPLE * room), room - taken))
    state.room_for_graphs = room - taken - state.crop_cache.budget >= CAUTION * needed


def _on_device(state: TrainingState, room: int) -> DeviceImages | None:
    shapes, asked = shapes_of(state.train_set), state.recipe.data.cache == "device"
    needed = 3 * int(shapes.prod(axis=1).sum())
    sides = shapes.min(axis=1)
    side = f"{sides.min()}" if sides.min() == sides.max() else f"{sides.min()} to {sides.max()}"
    images = f"{len(shapes):,} training images of {side} pixels on the shorter side ({needed / 1e9:,.1f} GB)"
    left = f"{room / 1e9:,.1f} GB left by training"
    if asked and needed > room:
        raise RecipeError(
            f"data.cache=device: {images} do not fit on {state.device}, which has {left}: lower data.shorter_side "
            f"or training.batch_size, or use data.cache=auto"
        )
    try:
        if asked or needed <= AMPLE * room:
            placed = DeviceImages(state.train_set, state.device, shapes)
            notice(f"{images} are on {state.device}, which makes the crops (data.cache=device)")
            return placed
        why = f"{state.device} has {left}, of which they may take a quarter by default"
    except torch.OutOfMemoryError:
        if asked:
            raise
        why = f"another program took the memory of {state.device}"
    notice(f"{images} stay with the loader, as {why} (data.cache=disk)")
    return None


def _crop_cache(state: TrainingState, budget: int) -> CropCache:
    workers = state.recipe.data.workers
    return CropCache(state.data.images, state.eval_transform, state.device, budget=budget, workers=workers)


def step_bytes(state: TrainingState) -> float:
    """Bytes that a training step or an evaluation takes, about, of this process."""
    training, size, device = state.recipe.training, state.transform.size, state.device
    kept, largest = measure(state.encoder, size, device, state.dtype) or (0.0, 0.0)
    batch = len(share_of(min(training.batch_size, len(state.labels)), of=0))
    maps = kept * min(batch, state.micro_batch or batch) * size**2
    scored_sets = [part for part in (state.protocol.validation, state.protocol.test) if part is not None]
    scored_images = min(state.eval_batch_size, max((len(part.rows) for part in scored_sets), default=0))
    scored = FORWARD_MAPS * largest * scored_images * state.eval_transform.size**2
    copies = OPTIMISER_COPIES[training.optimiser] + (training.ema_decay is not None) + (training.l2_sp > 0)
    weights = copies * sum(p.nbytes for p in state.encoder.parameters() if p.requires_grad)
    return (max(maps, scored) + weights) * (on_this_machine() if device.type == "cpu" else 1)


def fitting_micro_batch(
    encoder: Encoder, batch: int, size: int, device: torch.device, dtype: torch.dtype | None
) -> int | None:
    """Images to have in the network at a time where the recipe does not say; None for the whole batch.

    On a CPU equal pieces of the batch, each with feature maps of :data:`CPU_PIECE` at most, where that is the same
    training: not with batch-norm that looks at the batch.

    >>> from nearkin.encoders import build_encoder
    >>> encoder = build_encoder("small", freeze_batch_norm=True)
    >>> [fitting_micro_batch(encoder, batch, 224, torch.device("cpu"), None) for batch in (8, 64)]
    [None, 32]
    """
    if device.type != "cpu" or has_batch_statistics(encoder):
        return None
    kept, _ = measure(encoder, size, device, dtype) or (0.0, 0.0)
    pieces = math.ceil(kept * batch * size**2 / CPU_PIECE)
    return math.ceil(batch / pieces) if pieces > 1 else None


def measure(encoder: Encoder, size: int, device: torch.device, dtype: torch.dtype | None) -> tuple[float, float] | None:
    """Bytes for every pixel of every image: kept until the backward pass, and of the backbone's largest feature map.

    By forward passes in training mode that change nothing; None where they fail.

    >>> from nearkin.encoders import build_encoder
    >>> kept, largest = measure(build_encoder("small"), 64, torch.device("cpu"), None)
    >>> 200 < kept < 800
    True
    """
    side = min(size, PROBE_SIDE)
    try:
        fewer, more = (_kept(encoder, count, side, device, dtype) for count in (PROBE_IMAGES, PROBE_IMAGES + 1))
    except (RuntimeError, ValueError):  # a network that takes no images of this size: its own error says more later
        return None
    # What another image adds is feature maps; the rest are weights in another precision or with batch-norm in them.
    maps = [tensor.untyped_storage().nbytes() for tensor in fewer if tensor.shape[:1] == (PROBE_IMAGES,)]
    fewer_bytes, more_bytes = (sum(tensor.untyped_storage().nbytes() for tensor in kept) for kept in (fewer, more))
    return (more_bytes - fewer_bytes) / side**2, max(maps, default=0) / PROBE_IMAGES / side**2


def _kept(encoder: Encoder, count: int, side: int, device: torch.device, dtype: torch.dtype | None) -> list[Tensor]:
    """What is kept for the backward pass of ``count`` images, each storage once and weights left out."""
    parameters = {name: p.detach().requires_grad_(p.requires_grad) for name, p in encoder.backbone.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in encoder.backbone.named_buffers()}
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*parameters.values(), *buffers.values())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    images = torch.zeros(count, 3, side, side, device=device)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(device, dtype),
    ):
        functional_call(encoder.backbone, {**parameters, **buffers}, (images,))
    return [tensor for pointer, tensor in kept.items() if pointer not in weights]


def free_memory(device: torch.device) -> int | None:
    """Bytes that a run may still take on a device, or None where that cannot be known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return free_system_memory()


def free_system_memory(root: Path = Path("/")) -> int | None:
    """What the system has left, or a container's limit leaves of it; None where neither is known (not Linux)."""
    free = []
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        group = root / "sys/fs/cgroup"
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        # Pages of files that were read count as used and are given back when memory is wanted.
        free.append(limit - used + int(stat.get("inactive_file", 0)))
    return max(0, min(free)) if free else None
