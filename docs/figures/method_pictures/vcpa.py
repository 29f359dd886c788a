"""VCPA: proxies as Gaussians that narrow with every batch their class is in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.patches import Ellipse
from torch import Tensor

from method_pictures._plane import COLOURS, at_angles, figure, plane
from nearkin.losses import VariationalProxyAnchor


class Gaussians(NamedTuple):
    """Means and deviations of three proxies ``[batches + 1, 3, 2]``, their uncertainty, and the batches between."""

    mu: Tensor
    sigma: Tensor
    uncertainty: Tensor
    batches: list[tuple[Tensor, Tensor]]


def gaussians(batches: int = 36) -> Gaussians:
    """Three classes, of which the last is in every sixth batch only."""
    generator = torch.Generator().manual_seed(1)
    # In two dimensions α and τ must be others than in the paper's 512: the steps would overshoot.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = VariationalProxyAnchor(num_classes=3, dim=2, tau=12.0, alpha=8.0)
    states, seen = [state_of(loss)], []
    for number in range(batches):
        present = [0, 1, 2] if number % 6 == 5 else [0, 1]
        labels = torch.tensor(present).repeat_interleave(8)
        angles = torch.tensor([80.0, 200.0, 320.0])[labels] + 10 * torch.randn(len(labels), generator=generator)
        embeddings = at_angles(angles)
        loss(embeddings, labels)
        seen.append((embeddings, labels))
        states.append(state_of(loss))
    return Gaussians(*(torch.stack(parts) for parts in zip(*states, strict=True)), seen)


def state_of(loss: VariationalProxyAnchor) -> tuple[Tensor, Tensor, Tensor]:
    return loss.mu.detach().clone(), loss.sigma.detach().clone(), loss.uncertainty()


def draw(path: Path) -> None:
    drawn = gaussians()
    with figure(path, 4, width=11.0, height=3.3) as (_, panels):
        for axes, after in zip(panels, (0, 5, 36), strict=False):
            plane(axes, f"after {after} batches" if after else "the prior", limit=2.5)
            for c, colour in enumerate(COLOURS):
                centre, (wide, high) = drawn.mu[after, c].tolist(), (2 * drawn.sigma[after, c]).tolist()
                axes.add_patch(Ellipse(centre, 2 * wide, 2 * high, facecolor=colour, alpha=0.12))
                axes.add_patch(Ellipse(centre, 2 * wide, 2 * high, fill=False, edgecolor=colour))
                axes.plot(*centre, marker="*", color=colour, markersize=9)
            for embeddings, labels in drawn.batches[max(0, after - 6) : after]:
                axes.scatter(*embeddings.T, s=7, c=[COLOURS[c] for c in labels], linewidths=0)
        for c, (colour, name) in enumerate(zip(COLOURS, ("class 1", "class 2", "class 3, seldom"), strict=True)):
            panels[3].plot(drawn.uncertainty[:, c], color=colour, label=name)
        panels[3].set(title="uncertainty of the proxy", xlabel="batches", ylim=(0, 1.5))
        panels[3].legend(frameon=False, fontsize=8)
