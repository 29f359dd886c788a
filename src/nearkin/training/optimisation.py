"""Parameter groups, optimisers, schedules and clipping."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from nearkin.encoders import Encoder
from nearkin.errors import RecipeError
from nearkin.evaluation.protocol import refuse_test_scores
from nearkin.proxies.bank import banks_in
from nearkin.ranks import add_up_, is_first, sum_of_parts, world
from nearkin.recipe import Recipe, TrainingSection

Scheduler = lr_scheduler.LRScheduler | lr_scheduler.ReduceLROnPlateau


def parameter_groups(
    encoder: Encoder, objectives: Sequence[nn.Module], training: TrainingSection
) -> list[dict[str, Any]]:
    """Backbone, head, proxies and whatever else the objective learns, each with its learning rate.

    Every trainable parameter of the objective is in one of the last two groups by construction: proxies cannot be
    forgotten. Only what lies in a proxy bank takes the proxies' multiplier; a trained margin takes the plain rate.
    """
    rate = training.learning_rate
    proxies = [p for bank in banks_in(*objectives) for p in bank.parameters()]
    banked = {id(p) for p in proxies}
    others = [p for objective in objectives for p in objective.parameters() if id(p) not in banked]
    groups = [
        {"name": "backbone", "params": list(encoder.backbone.parameters()), "lr": rate},
        {"name": "head", "params": list(encoder.head_parameters()), "lr": rate * training.head_multiplier},
        {"name": "proxies", "params": proxies, "lr": rate * training.proxy_multiplier},
        {"name": "objective", "params": others, "lr": rate},
    ]
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]  # type: ignore[attr-defined]
    return [group for group in groups if group["params"]]


def build_optimiser(groups: list[dict[str, Any]], training: TrainingSection) -> torch.optim.Optimizer:
    decay = training.weight_decay
    # One kernel for a whole step of the optimiser; elsewhere torch's own choice.
    fused = True if all(p.is_cuda for group in groups for p in group["params"]) else None
    if training.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=training.momentum, weight_decay=decay, fused=fused)
    adam = torch.optim.AdamW if training.optimiser == "adamw" else torch.optim.Adam
    return adam(groups, betas=(0.9, training.beta2), weight_decay=decay, fused=fused)


def check_schedule(recipe: Recipe) -> None:
    """Refuse a schedule, or an end, that would look at the test classes, and an end by scores that there are not."""
    training, protocol = recipe.training, recipe.protocol
    if training.schedule == "plateau":
        refuse_test_scores(protocol, "the plateau schedule would lower the rate", instead="use training.schedule=step")
    if training.min_learning_rate and training.schedule not in ("plateau", "milestones"):
        raise RecipeError(
            f"training.min_learning_rate is a floor for the schedules plateau and milestones, not for "
            f"{training.schedule}: leave it out, or set training.schedule=plateau"
        )
    if training.stop_after is not None:
        if protocol.name in ("everything", "in-distribution"):
            raise RecipeError(
                f"training.stop_after ends a run by its scores, and the protocol {protocol.name} has none while it "
                f"trains: leave it out, or set protocol.name=validation"
            )
        refuse_test_scores(protocol, "training.stop_after would end the run", instead="leave it out")


def build_scheduler(optimiser: torch.optim.Optimizer, training: TrainingSection) -> Scheduler:
    """A schedule over epochs (over evaluations for ``plateau``)."""
    if training.schedule == "step":
        return lr_scheduler.StepLR(optimiser, training.schedule_every, training.schedule_factor)
    factor, floor = training.schedule_factor, training.min_learning_rate / max(training.learning_rate, 1e-30)
    if training.schedule == "milestones" and floor:
        marks = sorted(training.milestones)
        return lr_scheduler.LambdaLR(optimiser, lambda epoch: max(floor, factor ** bisect.bisect(marks, epoch)))
    if training.schedule == "milestones":
        return lr_scheduler.MultiStepLR(optimiser, training.milestones, factor)
    if training.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimiser, max(1, training.epochs))
    if training.schedule == "plateau":
        lowest = [floor * group["lr"] for group in optimiser.param_groups]
        return lr_scheduler.ReduceLROnPlateau(
            optimiser, mode="max", factor=factor, patience=training.schedule_every, min_lr=lowest
        )
    return lr_scheduler.ConstantLR(optimiser, factor=1.0, total_iters=0)


def clip_gradients(optimiser: torch.optim.Optimizer, training: TrainingSection) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    if training.clip == "value":
        nn.utils.clip_grad_value_(parameters, training.clip_at)
    elif training.clip == "norm":
        if world() == 1:
            nn.utils.clip_grad_norm_(parameters, training.clip_at)
        else:
            nn.utils.clip_grads_with_norm_(parameters, training.clip_at, _norm_over_ranks(optimiser))


def add_up_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Make the gradients of several ranks those of one process that has the whole batch.

    Of the encoder's each rank has the part of its images, and they are summed. What the objective learns beside its
    proxies has the whole gradient everywhere, and takes the first rank's, so that no rounding sets ranks apart; a
    rank's proxies are its own.
    """
    if world() == 1:
        return
    gradients = []
    for group in optimiser.param_groups:
        own = _gradients(group) if group["name"] != "proxies" else []
        if group["name"] == "objective" and not is_first():
            torch._foreach_zero_(own)
        gradients += own
    add_up_(gradients)


def _norm_over_ranks(optimiser: torch.optim.Optimizer) -> torch.Tensor:
    """The norm of all gradients, of which the proxies' are spread over the ranks."""
    groups = optimiser.param_groups
    spread = [gradient for group in groups if group["name"] == "proxies" for gradient in _gradients(group)]
    alike = [gradient for group in groups if group["name"] != "proxies" for gradient in _gradients(group)]
    own, common = (nn.utils.get_total_norm(gradients).square() for gradients in (spread, alike))
    return (sum_of_parts(own) + common).sqrt()


def gradient_norms(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The norm of the gradient of each parameter group, as tensors on the device (nothing waits for them)."""
    norms = {}
    for group in optimiser.param_groups:
        if gradients := _gradients(group):
            norms[group["name"]] = nn.utils.get_total_norm(gradients)
    return norms


def _gradients(group: dict[str, Any]) -> list[torch.Tensor]:
    """Those that there are: a backbone that rests has none."""
    return [p.grad for p in group["params"] if p.grad is not None]
