"""Proxy-ISA: what its penalties make of the pull on positives and the push on negatives."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from method_pictures._plane import COLOURS, GREY, figure
from method_pictures.isa import at_state
from nearkin.losses.proxy_anchor import proxy_anchor


def pull_on(seen: int | None, similarities: Tensor) -> Tensor:
    """How hard a sample is pulled to its proxy, by their similarity; with Proxy-Anchor where nothing is ``seen``."""
    return torch.stack([-gradient_of(seen, torch.tensor([[s, -1.0]]), torch.tensor([0]))[0, 0] for s in similarities])


def push_on(seen: int | None, similarities: Tensor, negatives: int = 120, easy: float = 0.3) -> Tensor:
    """How hard a sample is pushed away from another class's proxy, by their similarity.

    So large a share of the proxy's other negatives is easy, at −0.5, and the rest at −0.2. There are two classes,
    alike, since the sum over negatives is divided by their mean weights.
    """
    labels = torch.arange(2).flip(0).repeat_interleave(negatives)
    own, pushes = torch.ones(negatives), []
    for similarity in similarities:
        others = torch.full((negatives,), -0.2)
        others[: round(easy * negatives)] = -0.5
        others[-1] = similarity
        batch = torch.cat([torch.stack([others, own], dim=1), torch.stack([own, others], dim=1)])
        pushes.append(2 * gradient_of(seen, batch, labels)[negatives - 1, 0])
    return torch.stack(pushes)


def gradient_of(seen: int | None, similarities: Tensor, labels: Tensor) -> Tensor:
    """The loss's gradient by similarities ``[N, 2]``, of classes whose memory has a mean similarity of 0.6."""
    similarities = similarities.requires_grad_()
    weights = None if seen is None else at_state(seen, 0.6).weights(similarities.detach(), labels)
    loss = proxy_anchor(similarities, labels, alpha=32.0, margin=0.1, weights=weights)
    (gradient,) = torch.autograd.grad(loss, similarities)
    return gradient


def draw(path: Path) -> None:
    rows = ((None, GREY, "Proxy-Anchor"), (50, COLOURS[0], "ISA, 50 samples seen"), (700, COLOURS[1], "ISA, 700"))
    with figure(path, 2) as (_, (pull, push)):
        near, far = torch.linspace(-0.3, 1, 261), torch.linspace(-0.3, 0.3, 121)
        for seen, colour, name in rows:
            pull.plot(near, pull_on(seen, near), color=colour, label=name)
            push.plot(far, push_on(seen, far), color=colour)
        pull.set(title="pull on a positive", xlabel="similarity to its proxy", ylabel="gradient")
        pull.legend(frameon=False, fontsize=8, loc="upper right")
        push.set(title="push on a negative, 30 % of the others easy", xlabel="similarity to another class's proxy")
