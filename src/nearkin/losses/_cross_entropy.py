"""Cross-entropy of scaled class similarities, with or without a margin, as a value and its derivative."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses._fused import kernels_for


def cross_entropy_slope(
    similarities: Tensor,
    labels: Tensor,
    *,
    scale: float,
    margin: float = 0.0,
    on_angle: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of ``scale · similarities [N, C]`` and its derivative, outside autograd.

    ``margin`` is taken off the similarity to the own class; ``on_angle`` adds it to the angle instead, as ArcFace does.
    With ``lengths [C]`` the similarities are still to be divided by them, and the derivative is for what was given.

    >>> import torch
    >>> cross_entropy_slope(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), scale=1.0)
    (tensor(0.3133), tensor([[-0.2689,  0.2689]]))
    """
    kernels = kernels_for(similarities)
    if kernels is not None:
        loss, slope = kernels.cross_entropy(
            similarities, labels, scale=scale, margin=margin, on_angle=on_angle, lengths=lengths
        )
        return loss, slope
    if lengths is not None:
        similarities = similarities / lengths
    column = labels[:, None]
    logits = similarities * scale
    own_slope: Tensor | None = None
    if on_angle:
        target, own_slope = _with_margin_on_angle(similarities.gather(1, column), margin)
        logits.scatter_(1, column, target.mul_(scale))
    elif margin:
        logits.scatter_(1, column, -scale * margin, reduce="add")
    logits = logits.log_softmax(1)
    loss = F.nll_loss(logits, labels)
    step = scale / len(labels)
    slope = logits.exp_().mul_(step).scatter_(1, column, -step, reduce="add")
    if own_slope is not None:
        slope.scatter_(1, column, own_slope.mul_(slope.gather(1, column)))
    return loss, slope if lengths is None else slope.div_(lengths)


def _with_margin_on_angle(cosine: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """``cos(θ + m)`` of ``cos θ`` and its derivative with respect to that; ``cos θ − m sin m`` beyond ``π − m``."""
    cos_m, sin_m = math.cos(margin), math.sin(margin)
    cosine = cosine.clamp(-1.0, 1.0)
    sine = (1.0 - cosine.square()).sqrt_()
    before_turn = cosine >= -cos_m
    value = torch.where(before_turn, cos_m * cosine - sin_m * sine, cosine - margin * sin_m)
    cotangent = torch.where(sine > 0, cosine / sine, 0.0)
    return value, torch.where(before_turn, cos_m + sin_m * cotangent, 1.0)
