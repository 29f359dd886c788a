"""One step of training: images → embeddings → loss → gradients → parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.data.loader import Batch
from nearkin.ranks import gather_rows
from nearkin.training.device import autocast
from nearkin.training.health import HealthCheck
from nearkin.training.micro_batch import embed_in_pieces
from nearkin.training.optimisation import add_up_gradients, clip_gradients
from nearkin.training.state import TrainingState


def train_step(state: TrainingState, batch: Batch, health: HealthCheck) -> float:
    """One step of the optimiser; returns the loss (of the step before, on a GPU, so that nothing waits)."""
    if state.step % state.sampler.batches_per_epoch == 0 and hasattr(state.objective, "begin_epoch"):
        state.objective.begin_epoch(state.step // state.sampler.batches_per_epoch)  # type: ignore[operator]
    _set_warmup(state)
    # Only evaluations leave training mode, and setting it walks all modules.
    if not state.encoder.training:
        state.encoder.train()
    if not state.objective.training:
        state.objective.train()
    images = batch.images.to(state.device, non_blocking=True)
    labels = batch.labels.to(state.device, non_blocking=True)
    embeddings = gather_rows(_embedded(state, images), len(batch.rows))
    try:
        loss = state.method.loss(state, embeddings, labels, batch)
    except ValueError:
        if bool(embeddings.isfinite().all()):
            raise
        health.diverged(batch, f"the embeddings are not finite at step {state.step}")
    state.optimiser.zero_grad(set_to_none=True)
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    add_up_gradients(state.optimiser)
    state.scaler.unscale_(state.optimiser)
    if state.add_l2_sp is not None:
        state.add_l2_sp()
    state.method.adjust_gradients(state)
    value = health.watch(batch, loss)
    clip_gradients(state.optimiser, state.recipe.training)
    state.scaler.step(state.optimiser)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update()
    state.step += 1
    state.method.after_step(state)
    return value


def _embedded(state: TrainingState, images: Tensor) -> Tensor:
    """Embeddings of a batch, with gradient; in pieces where the state says so."""

    def plainly(images: Tensor) -> Tensor:
        with autocast(state.device, state.dtype):
            return state.encoder(images)  # type: ignore[no-any-return]

    pieces = state.pieces(images)
    if len(pieces) == 1:
        with autocast(state.device, state.dtype):
            return state.encode(images)
    if state.step < state.warmup_steps:  # of a backbone that rests nothing is kept anyway
        return torch.cat([plainly(piece) for piece in pieces])
    return embed_in_pieces(plainly, pieces, [weight for weight in state.weights if weight.requires_grad])


def _set_warmup(state: TrainingState) -> None:
    """During warm-up the backbone's parameters take no gradient; its optimiser group then skips them."""
    trains = state.step >= state.warmup_steps
    for group in state.optimiser.param_groups:
        if group["name"] == "backbone" and group["params"][0].requires_grad != trains:
            for parameter in group["params"]:
                parameter.requires_grad_(trains)
