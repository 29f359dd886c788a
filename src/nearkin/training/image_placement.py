"""Where the images of a run lie while it trains: on the GPU where there is room, else with the loader."""

from __future__ import annotations

import torch

from nearkin.data.device_images import DeviceImages, shapes_of
from nearkin.data.loader import CropCache
from nearkin.errors import RecipeError, notice
from nearkin.training.memory import HELD_AT_ONCE, bytes_beside_weights, free_memory, measure
from nearkin.training.state import TrainingState

AMPLE = 1 / 4
"""Share of the GPU's memory beside training that images may take unasked, and crops as much: others run there."""

SPARE = 1 / 16
"""Share of the system's free memory that evaluation crops may take where there is no GPU. A network on a CPU takes much
longer for an image than its crop does, so they save little there and must not be what fills a laptop."""

CAUTION = 1.5
"""Over the estimate of what a step takes, which is meant to be low."""


def place_images(state: TrainingState) -> None:
    """Put the training images on a CUDA device as ``data.cache`` says, and make room for evaluation crops."""
    cache, device = state.recipe.data.cache, state.device
    free = free_memory(device) or 0
    if device.type != "cuda":
        if cache == "device":
            raise RecipeError(f"data.cache=device keeps images on a CUDA device, not on {device}: use data.cache=auto")
        state.crop_cache = _crops(state, int(SPARE * free))
        return
    needed = CAUTION * _needed(state)
    room = max(0, free - int(needed))
    state.on_device = None if cache in ("disk", "memory") else _on_device(state, room)
    taken = 0 if state.on_device is None else state.on_device.pixels.nbytes
    state.crop_cache = _crops(state, min(int(AMPLE * room), room - taken))
    state.room_for_graphs = room - taken - state.crop_cache.budget >= needed


def _on_device(state: TrainingState, room: int) -> DeviceImages | None:
    shapes, asked = shapes_of(state.train_set), state.recipe.data.cache == "device"
    needed = 3 * int(shapes.prod(axis=1).sum())
    sides = shapes.min(axis=1)
    side = f"{sides.min()}" if sides.min() == sides.max() else f"{sides.min()} to {sides.max()}"
    images = f"{len(shapes):,} training images of {side} pixels on the shorter side ({needed / 1e9:,.1f} GB)"
    beside = f"{room / 1e9:,.1f} GB beside training"
    if asked and needed > room:
        raise RecipeError(
            f"data.cache=device: {images} do not fit on {state.device}, which has {beside}: lower data.shorter_side "
            f"or training.batch_size, or use data.cache=auto"
        )
    try:
        if asked or needed <= AMPLE * room:
            placed = DeviceImages(state.train_set, state.device, shapes)
            notice(f"{images} are on {state.device}, which makes the crops (data.cache=device)")
            return placed
        why = f"{state.device} has {beside}, of which they may take a quarter unasked"
    except torch.OutOfMemoryError:
        if asked:
            raise
        why = f"another program took the memory of {state.device}"
    notice(f"{images} stay with the loader, as {why} (data.cache=disk)")
    return None


def _crops(state: TrainingState, budget: int) -> CropCache:
    workers = state.recipe.data.workers
    return CropCache(state.data.images, state.eval_transform, state.device, budget=budget, workers=workers)


def _needed(state: TrainingState) -> float:
    """Bytes that a step or an evaluation takes, about."""
    training, size = state.recipe.training, state.transform.size
    footprint = measure(state.encoder, size, state.device, state.dtype)
    kept = 0.0
    if footprint is not None:
        scored = HELD_AT_ONCE * footprint.largest * state.evaluated_at_a_time * state.eval_transform.size**2
        batch = min(training.batch_size, state.micro_batch or training.batch_size, len(state.labels))
        kept = max(footprint.kept * batch * size**2, scored)
    return kept + bytes_beside_weights(state.encoder, training)
