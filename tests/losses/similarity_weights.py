"""How hard a loss pulls or pushes each pair: what the papers' gradients are compared with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nearkin.losses import PairLoss, ProxyLoss


def similarity_weights(loss: PairLoss | ProxyLoss, embeddings: Tensor, labels: Tensor, *references: Tensor) -> Tensor:
    """``|∂L/∂S|`` for every (sample, class) of a loss with proxies or (sample, reference) of one on pairs."""
    if isinstance(loss, ProxyLoss):
        similarities = loss.class_similarities(embeddings).detach().requires_grad_()
        value = loss.from_similarities(similarities, labels)
    else:
        pairs = loss.pairs(embeddings, labels, *references)
        similarities = pairs.similarity.detach().requires_grad_()
        value = loss.from_pairs(replace(pairs, similarity=similarities))
    return torch.autograd.grad(value, similarities)[0].abs()
