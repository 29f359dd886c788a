"""Cross-entropy of scaled class similarities, with or without a margin: the formula, and its closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses._fused import kernels_for
from nearkin.numerics import safe_sqrt


def cross_entropy_loss(
    similarities: Tensor, labels: Tensor, *, scale: float, margin: float = 0.0, on_angle: bool = False
) -> Tensor:
    """Mean cross-entropy of ``scale · similarities [N, C]``.

    ``margin`` is taken off the similarity to the own class; ``on_angle`` adds it to the angle instead, as ArcFace does.

    >>> cross_entropy_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), scale=1.0)
    tensor(0.3133)
    """
    own = F.one_hot(labels, similarities.shape[1]).bool()
    harder = _angle_plus_margin(similarities, margin) if on_angle else similarities - margin
    return F.cross_entropy(scale * torch.where(own, harder, similarities), labels)


def _angle_plus_margin(cosine: Tensor, margin: float) -> Tensor:
    """``cos(θ + m)`` of ``cos θ``; ``cos θ − m sin m`` beyond ``π − m``, where that would turn round."""
    cosine = cosine.clamp(-1.0, 1.0)
    turned = math.cos(margin) * cosine - math.sin(margin) * safe_sqrt(1.0 - cosine.square())
    return torch.where(cosine >= -math.cos(margin), turned, cosine - margin * math.sin(margin))


def cross_entropy_value_and_gradient(
    similarities: Tensor,
    labels: Tensor,
    *,
    scale: float,
    margin: float = 0.0,
    on_angle: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The value of :func:`cross_entropy_loss` and its derivative ``[N, C]``, outside autograd.

    With ``lengths [C]`` the similarities are still to be divided by them, and the derivative is for what was given.

    >>> cross_entropy_value_and_gradient(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), scale=1.0)
    (tensor(0.3133), tensor([[-0.2689,  0.2689]]))
    """
    kernels = kernels_for(similarities)
    if kernels is not None:
        loss, gradient = kernels.cross_entropy(
            similarities, labels, scale=scale, margin=margin, on_angle=on_angle, lengths=lengths
        )
        return loss, gradient
    if lengths is not None:
        similarities = similarities / lengths
    column = labels[:, None]
    logits = similarities * scale
    own_gradient: Tensor | None = None
    if on_angle:
        target, own_gradient = _with_margin_on_angle(similarities.gather(1, column), margin)
        logits.scatter_(1, column, target.mul_(scale))
    elif margin:
        logits.scatter_(1, column, -scale * margin, reduce="add")
    logits = logits.log_softmax(1)
    loss = F.nll_loss(logits, labels)
    step = scale / len(labels)
    gradient = logits.exp_().mul_(step).scatter_(1, column, -step, reduce="add")
    if own_gradient is not None:
        gradient.scatter_(1, column, own_gradient.mul_(gradient.gather(1, column)))
    return loss, gradient if lengths is None else gradient.div_(lengths)


def _with_margin_on_angle(cosine: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """:func:`_angle_plus_margin` and its derivative."""
    cos_m, sin_m = math.cos(margin), math.sin(margin)
    cosine = cosine.clamp(-1.0, 1.0)
    sine = (1.0 - cosine.square()).sqrt_()
    before_turn = cosine >= -cos_m
    value = torch.where(before_turn, cos_m * cosine - sin_m * sine, cosine - margin * sin_m)
    cotangent = torch.where(sine > 0, cosine / sine, 0.0)
    return value, torch.where(before_turn, cos_m + sin_m * cotangent, 1.0)
