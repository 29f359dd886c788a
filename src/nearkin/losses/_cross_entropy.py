"""Cross-entropy of scaled class similarities, with or without a margin: the formula, and its closed form."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.inputs import check_positive
from nearkin.losses._blocks import Parts
from nearkin.losses._class_block import Negatives
from nearkin.losses._fused import kernels_for
from nearkin.losses._informative import SampleWeights
from nearkin.losses._proxy import ProxyLoss
from nearkin.numerics import log1p_exp, safe_sqrt


class SoftmaxLoss(ProxyLoss):
    """Mean cross-entropy of ``scale · similarities [N, C]``.

    ``margin`` is taken off the similarity to the own class; ``on_angle`` adds it to the angle instead, as ArcFace does.

    >>> loss = SoftmaxLoss(num_classes=2, dim=8, scale=1.0)
    >>> loss.from_similarities(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(0.3133)
    >>> loss.value_and_gradient(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    (tensor(0.3133), tensor([[-0.2689,  0.2689]]))
    """

    takes_lengths = True
    on_angle: ClassVar[bool] = False

    def __init__(self, num_classes: int, dim: int, *, scale: float, margin: float = 0.0, **of_proxies: Any) -> None:
        super().__init__(num_classes, dim, **of_proxies)
        check_positive(scale=scale)
        self.scale = scale
        self.margin = margin

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        own = F.one_hot(labels, similarities.shape[1]).bool()
        harder = self._turned(similarities) if self.on_angle else similarities - self.margin
        return F.cross_entropy(self.scale * torch.where(own, harder, similarities), labels)

    def _turned(self, cosine: Tensor) -> Tensor:
        """``cos(θ + m)`` of ``cos θ``; ``cos θ − m sin m`` beyond ``π − m``, where that would turn round."""
        cos_m, sin_m = math.cos(self.margin), math.sin(self.margin)
        cosine = cosine.clamp(-1.0, 1.0)
        turned = cos_m * cosine - sin_m * safe_sqrt(1.0 - cosine.square())
        return torch.where(cosine >= -cos_m, turned, cosine - self.margin * sin_m)

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scale, margin = self.scale, self.margin
        kernels = kernels_for(similarities)
        if kernels is not None:
            loss, gradient = kernels.cross_entropy(
                similarities, labels, scale=scale, margin=margin, on_angle=self.on_angle, lengths=lengths
            )
            return loss, gradient
        if lengths is not None:
            similarities = similarities / lengths
        column = labels[:, None]
        logits = similarities * scale
        own_gradient: Tensor | None = None
        if self.on_angle:
            target, own_gradient = self._turned_and_gradient(similarities.gather(1, column))
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

    @property
    def negatives(self) -> Negatives:
        return Negatives("classes", self.scale)

    def from_parts(self, parts: Parts) -> Tensor:
        # The clamp only undoes rounding, so it has no say in the gradient.
        own = parts.own + (parts.own.clamp(-1.0, 1.0) - parts.own).detach()
        harder = self._turned(own) if self.on_angle else own - self.margin
        return log1p_exp(parts.others - self.scale * harder).mean()

    def _turned_and_gradient(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        cos_m, sin_m = math.cos(self.margin), math.sin(self.margin)
        cosine = cosine.clamp(-1.0, 1.0)
        sine = (1.0 - cosine.square()).sqrt_()
        before_turn = cosine >= -cos_m
        value = torch.where(before_turn, cos_m * cosine - sin_m * sine, cosine - self.margin * sin_m)
        cotangent = torch.where(sine > 0, cosine / sine, 0.0)
        return value, torch.where(before_turn, cos_m + sin_m * cotangent, 1.0)
