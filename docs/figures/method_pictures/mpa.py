"""MPA: a class that looks two ways, with one proxy and with two."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from method_pictures._plane import COLOURS, GREY, at_angles, figure, plane
from nearkin.losses import MultiProxyAnchor


class Fitted(NamedTuple):
    """Proxies ``[3, K, 2]`` that have settled on embeddings ``[N, 2]``, and the way the loss then moves those."""

    proxies: Tensor
    embeddings: Tensor
    labels: Tensor
    moves: Tensor


def fitted_with(proxies_per_class: int) -> Fitted:
    """A class that looks two ways, and another between them; one proxy a class is Proxy-Anchor."""
    torch.manual_seed(0)
    angles = torch.tensor([10.0, 130.0, 70.0, 250.0]).repeat_interleave(9) + torch.linspace(-16, 16, 9).repeat(4)
    labels = torch.tensor([0, 0, 1, 2]).repeat_interleave(9)
    embeddings = at_angles(angles)
    loss = MultiProxyAnchor(num_classes=3, dim=2, proxies_per_class=proxies_per_class, alpha=16)
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.06)
    for _ in range(150):
        optimiser.zero_grad()
        loss(embeddings, labels).backward()
        optimiser.step()
    embeddings.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(embeddings, labels), embeddings)
    proxies = torch.nn.functional.normalize(loss.bank.vectors.detach(), dim=2)
    return Fitted(proxies, embeddings.detach(), labels, -gradient)


def draw(path: Path) -> None:
    with figure(path, 3) as (_, panels):
        angles = torch.arange(0.0, 361.0)
        for axes, k, title in zip(panels, (1, 2), ("Proxy-Anchor, K = 1", "MPA, K = 2"), strict=False):
            fitted = fitted_with(k)
            plane(axes, title)
            for c in range(3):
                own = fitted.labels == c
                points, moves = fitted.embeddings[own], fitted.moves[own]
                axes.scatter(*points.T, s=12, color=COLOURS[c], linewidths=0)
                axes.quiver(*points.T, *moves.T, color=COLOURS[c], angles="xy", scale_units="xy", scale=2.5, width=0.01)
                axes.scatter(*(0.82 * fitted.proxies[c]).T, s=110, marker="*", color=COLOURS[c], edgecolors="black")
            similarities = at_angles(angles) @ fitted.proxies[0].T
            weights = (similarities / 0.1).softmax(1)
            panels[2].plot(angles, (weights * similarities).sum(1), label=title, color=(GREY, COLOURS[0])[k - 1])
        for middle in (10, 130):
            panels[2].axvspan(middle - 16, middle + 16, color=COLOURS[0], alpha=0.12, linewidth=0)
        panels[2].axvspan(54, 86, color=COLOURS[1], alpha=0.12, linewidth=0)
        panels[2].axvspan(234, 266, color=COLOURS[2], alpha=0.12, linewidth=0)
        panels[2].set(title="similarity to the blue class", xlabel="angle of an embedding", xticks=range(0, 361, 90))
        panels[2].legend(frameon=False, fontsize=8, loc="lower left")
