"""Parameter groups, optimisers, schedules, clipping, the proximal term and the average of the weights."""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
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
    """Backbone, head, proxies and other parameters of the objective, each with its learning rate.

    With ``training.layer_decay`` every layer of the backbone has its own, and the last one the rate itself. Proxy banks
    and the class weights of another library's loss take the proxies' multiplier; a trained margin takes the plain rate.
    """
    rate, proxy_rate = training.learning_rate, training.learning_rate * training.proxy_lr_multiplier
    proxies = [p for bank in banks_in(*objectives) for p in bank.parameters()]
    class_weights = [p for objective in objectives for p in getattr(objective, "class_weights", ())]
    fast = {id(p) for p in [*proxies, *class_weights]}
    others = [p for objective in objectives for p in objective.parameters() if id(p) not in fast]
    layers = encoder.backbone.parameter_layers() if training.layer_decay != 1 else [list(encoder.backbone.parameters())]
    groups = [
        *(
            {"name": "backbone", "params": layer, "lr": rate * training.layer_decay**below}
            for below, layer in enumerate(reversed(layers))
        ),
        {"name": "head", "params": list(encoder.head_parameters()), "lr": rate * training.head_lr_multiplier},
        {"name": "proxies", "params": proxies, "lr": proxy_rate},
        {"name": "objective", "params": class_weights, "lr": proxy_rate},
        {"name": "objective", "params": others, "lr": rate},
    ]
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]  # type: ignore[attr-defined]
    return [group for group in groups if group["params"]]


def build_optimiser(groups: list[dict[str, Any]], training: TrainingSection) -> torch.optim.Optimizer:
    decay = training.weight_decay
    # On CUDA one kernel for a whole step; elsewhere torch chooses.
    fused = True if all(p.is_cuda for group in groups for p in group["params"]) else None
    if training.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=training.momentum, weight_decay=decay, fused=fused)
    if training.optimiser == "rmsprop":
        return torch.optim.RMSprop(groups, eps=training.epsilon, momentum=training.momentum, weight_decay=decay)
    adam = torch.optim.AdamW if training.optimiser == "adamw" else torch.optim.Adam
    return adam(groups, betas=(0.9, training.beta2), eps=training.epsilon, weight_decay=decay, fused=fused)


def check_schedule(recipe: Recipe) -> None:
    """Refuse a schedule or early stopping that would use test scores, or scores that do not exist."""
    training, protocol = recipe.training, recipe.protocol
    if training.schedule == "plateau":
        refuse_test_scores(protocol, "the plateau schedule would lower the rate", instead="use training.schedule=step")
    if training.min_learning_rate and training.schedule not in ("plateau", "milestones"):
        raise RecipeError(
            f"training.min_learning_rate is for the schedules plateau and milestones, not for {training.schedule}: "
            f"leave it out, or set training.schedule=plateau"
        )
    if training.early_stop_patience is not None:
        if protocol.name in ("everything", "in-distribution"):
            raise RecipeError(
                f"training.early_stop_patience needs scores, and the protocol {protocol.name} has none: leave it out"
            )
        refuse_test_scores(protocol, "training.early_stop_patience would end the run", instead="leave it out")


def build_scheduler(optimiser: torch.optim.Optimizer, training: TrainingSection) -> Scheduler:
    """A schedule over epochs, or for ``plateau`` over evaluations."""
    if training.schedule == "step":
        return lr_scheduler.StepLR(optimiser, training.lr_decay_every, training.lr_decay_factor)
    factor, floor = training.lr_decay_factor, training.min_learning_rate / max(training.learning_rate, 1e-30)
    if training.schedule == "milestones":
        marks = sorted(training.milestones)
        return lr_scheduler.LambdaLR(optimiser, lambda epoch: max(floor, factor ** bisect.bisect(marks, epoch)))
    if training.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimiser, max(1, training.epochs))
    if training.schedule == "plateau":
        lowest = [floor * group["lr"] for group in optimiser.param_groups]
        return lr_scheduler.ReduceLROnPlateau(
            optimiser, mode="max", factor=factor, patience=training.lr_decay_every, min_lr=lowest
        )
    return lr_scheduler.ConstantLR(optimiser, factor=1.0, total_iters=0)


def change_epochs(scheduler: Scheduler, optimiser: torch.optim.Optimizer, epochs: int) -> str:
    """Change the number of ``epochs`` of a schedule from a checkpoint; returns what changes, in words.

    Only the cosine depends on it. Its rate becomes the one that a run of ``epochs`` would have now.
    """
    if not isinstance(scheduler, lr_scheduler.CosineAnnealingLR) or scheduler.T_max == max(1, epochs):
        return "the learning rate follows the same schedule"
    before, scheduler.T_max = optimiser.param_groups[0]["lr"], max(1, epochs)
    share = (1 + math.cos(math.pi * min(1.0, scheduler.last_epoch / scheduler.T_max))) / 2
    for group, base in zip(optimiser.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = share * base
    now = optimiser.param_groups[0]["lr"]
    return f"the cosine schedule is now that of {epochs} epochs: the learning rate goes from {before:.3g} to {now:.3g}"


def clip_gradients(optimiser: torch.optim.Optimizer, training: TrainingSection) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    if training.max_grad_value is not None:
        nn.utils.clip_grad_value_(parameters, training.max_grad_value)
    if training.max_grad_norm is not None and world() == 1:
        nn.utils.clip_grad_norm_(parameters, training.max_grad_norm)
    elif training.max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, training.max_grad_norm, _norm_over_ranks(optimiser))


def add_up_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Combine the gradients of several ranks into those of one process with the whole batch.

    The encoder's are summed over the ranks' images; each rank keeps the gradients of its proxies. Other parameters of
    the objective have the whole gradient on every rank, and take the first rank's, so that rounding cannot differ.
    """
    if world() == 1:
        return
    gradients = []
    for group in optimiser.param_groups:
        local = _gradients(group) if group["name"] != "proxies" else []
        if group["name"] == "objective" and not is_first():
            torch._foreach_zero_(local)
        gradients += local
    add_up_(gradients)


def _norm_over_ranks(optimiser: torch.optim.Optimizer) -> torch.Tensor:
    """The norm of all gradients, with the proxies' spread over the ranks."""
    groups = optimiser.param_groups
    local = [gradient for group in groups if group["name"] == "proxies" for gradient in _gradients(group)]
    same = [gradient for group in groups if group["name"] != "proxies" for gradient in _gradients(group)]
    sharded, common = (nn.utils.get_total_norm(gradients).square() for gradients in (local, same))
    return (sum_of_parts(sharded) + common).sqrt()


def _gradients(group: dict[str, Any]) -> list[torch.Tensor]:
    return [p.grad for p in group["params"] if p.grad is not None]


class ProximalTerm:
    r"""Adds the gradient of :math:`\frac{\lambda}{2} \lVert \theta - \theta^* \rVert^2` to the gradients of parameters.

    :math:`\theta^*` are the values of the parameters, in the same order, when :meth:`remember` was last called. A
    parameter without a gradient (frozen, also during warm-up) is left alone.
    """

    def __init__(self) -> None:
        self.centre: list[Tensor] | None = None

    def remember(self, parameters: Iterable[Tensor]) -> None:
        self.centre = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def add_to_gradients(self, parameters: Sequence[Tensor], weight: float) -> None:
        """``grad += weight · (θ − θ*)`` for every parameter that has a gradient; nothing before :meth:`remember`."""
        if self.centre is None or weight == 0:
            return
        if self.centre[0].device != parameters[0].device:  # read from a checkpoint, on the host
            self.centre = [c.to(p.device, non_blocking=True) for p, c in zip(parameters, self.centre, strict=True)]
        pulled = [(p, p.grad, c) for p, c in zip(parameters, self.centre, strict=True) if p.grad is not None]
        if pulled:
            values, gradients, centres = (list(part) for part in zip(*pulled, strict=True))
            torch._foreach_add_(gradients, torch._foreach_sub(values, centres), alpha=weight)


class WeightEma:
    r"""An exponential moving average of the encoder's weights, :math:`w \leftarrow d\,w + (1-d)\,\theta`.

    At step :math:`t`, :math:`d = \min(\text{decay}, (1+t)/(10+t))`: without this short ramp the head's random start
    would stay in the average for hundreds of steps. Buffers (running statistics) are copied.

    >>> from nearkin.encoders import build_encoder
    >>> trained = build_encoder("small", dim=2)
    >>> average = WeightEma(trained, 0.995)
    >>> with torch.no_grad():
    ...     _ = trained.head.bias.fill_(1.0)
    >>> average.update()
    >>> average.encoder.head.bias
    Parameter containing:
    tensor([0.8182, 0.8182])
    """

    def __init__(self, trained: Encoder, decay: float) -> None:
        self.encoder = copy.deepcopy(trained).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0
        # Listed once: walking the modules of a deep network takes time in every step.
        self._trained, self._averaged = (
            [p.detach() for p in network.parameters()] for network in (trained, self.encoder)
        )
        # By dtype, as one launch copies tensors of one dtype.
        dtypes = {buffer.dtype for buffer in trained.buffers()}
        pair = (self.encoder, trained)
        self._buffers = [tuple([b for b in e.buffers() if b.dtype == dtype] for e in pair) for dtype in dtypes]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._averaged, self._trained, 1 - decay)
        for averaged, trained in self._buffers:
            torch._foreach_copy_(averaged, trained)

    def state_dict(self) -> dict[str, Any]:
        return {"encoder": self.encoder.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.updates = state["updates"]
