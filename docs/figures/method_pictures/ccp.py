"""CCP: one class with four proxies, which a problem pulls together and the next one spreads out again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from method_pictures._plane import COLOURS, GREY, at_angles, figure, plane
from nearkin.losses import Contrastive
from nearkin.proxies import greedy_k_center


class Problem(NamedTuple):
    """One sub-problem of CCP: where its proxies began and ended, and how far the farthest image lay from the nearest.

    At the beginning those of the problem before, which CCP moves away from, count with the new ones.
    """

    began: Tensor
    ended: Tensor
    radius_began: float
    radius_ended: float


def chain_of_problems(problems: int = 2, steps: int = 200) -> tuple[Tensor, Tensor, list[Problem]]:
    """Images of one class ``[N, 2]``, those of others, and CCP's chain on them, the images standing still."""
    generator = torch.Generator().manual_seed(4)
    along = torch.linspace(-100, 100, 44) + torch.randn(44, generator=generator) * 4
    own = at_angles(along + 90) * (0.75 + 0.07 * torch.randn(44, 1, generator=generator))
    other = torch.tensor([[0.0, -0.55]]) + 0.1 * torch.randn(14, 2, generator=generator)
    loss = Contrastive(pos_margin=0.0, neg_margin=0.5, normalisation="ball")
    images, labels = torch.cat([own, other]), torch.tensor([0] * len(own) + [1] * len(other))
    proxies: Tensor | None = None
    chain = []
    for _ in range(problems):
        before = proxies
        picks = greedy_k_center(own[None], None if before is None else before[None], 4)[0]
        began = own[picks].clone()
        proxies = began.clone().requires_grad_()
        for _ in range(steps):
            value = loss(images, labels, proxies, torch.zeros(4, dtype=torch.int64))
            (gradient,) = torch.autograd.grad(value, proxies)
            proxies = (proxies - 0.06 * gradient).detach().requires_grad_()
        proxies = proxies.detach()
        both = began if before is None else torch.cat([began, before])
        chain.append(Problem(began, proxies, radius(own, both), radius(own, proxies)))
    return own, other, chain


def radius(images: Tensor, centres: Tensor) -> float:
    """How far the image lies that is farthest from its nearest centre."""
    return float(torch.cdist(images, centres).amin(1).amax())


def draw(path: Path) -> None:
    own, other, (first, second) = chain_of_problems()
    with figure(path, 3, height=4.2) as (made, panels):
        stages = [
            (f"problem 1 begins\nfarthest image {first.radius_began:.2f}", first.began, None),
            (f"problem 1 has converged\nfarthest image {first.radius_ended:.2f}", first.ended, first.began),
            (f"problem 2 begins\nfarthest from both {second.radius_began:.2f}", second.began, first.ended),
        ]
        for axes, (title, proxies, before) in zip(panels, stages, strict=True):
            plane(axes, title, limit=1.05)
            axes.scatter(*own.T, s=14, color=COLOURS[0], alpha=0.45, linewidths=0, label="images of the class")
            axes.scatter(*other.T, s=14, color=COLOURS[1], alpha=0.45, linewidths=0, label="images of others")
            if before is not None:
                axes.scatter(*before.T, s=70, marker="*", facecolors="none", edgecolors=GREY, label="proxies before")
            axes.scatter(*proxies.T, s=130, marker="*", color="black", zorder=3, label="proxies")
        for start, end in zip(first.began, first.ended, strict=True):
            panels[1].annotate(
                "", end, start, arrowprops={"arrowstyle": "->", "color": GREY, "shrinkA": 4, "shrinkB": 4}
            )
        made.legend(*panels[2].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
