"""Draws the pictures of the methods' pages from the package's own losses, samplers and methods, in two dimensions.

    python docs/figures/draw_methods.py            # all of them, into this folder
    python docs/figures/draw_methods.py vcpa mpa

Each picture has a function that computes what it shows, which the tests look at, and one that draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse
from numpy.typing import NDArray
from torch import Tensor

from nearkin.losses import Contrastive, MultiProxyAnchor, ProxyAnchor, VariationalProxyAnchor
from nearkin.losses._informative import InformativeSampleWeights
from nearkin.losses._pair import hardest_negatives
from nearkin.proxies import greedy_k_center
from nearkin.samplers import ClassRepresentativeSampler

COLOURS = ("#0072b2", "#d55e00", "#009e73")
GREY, LIGHT = "#777777", "#dddddd"
FOLDER = Path(__file__).parent


@contextmanager
def figure(path: Path, panels: int, width: float = 10.0, height: float = 3.6) -> Iterator[tuple[Figure, list[Axes]]]:
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "0"}):
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, list(made.subplots(1, panels, squeeze=False)[0])
        made.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})


def plane(axes: Axes, title: str, limit: float = 1.35) -> None:
    axes.add_patch(Circle((0, 0), 1, fill=False, color=LIGHT))
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xticks=[], yticks=[], title=title)
    axes.spines[:].set_visible(False)


def at_angles(degrees: Tensor) -> Tensor:
    radians = torch.deg2rad(degrees)
    return torch.stack([radians.cos(), radians.sin()], dim=1)


# CCP ------------------------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """One sub-problem of CCP: where its proxies began and ended, and how far the farthest image lay from the nearest.

    At the beginning those of the problem before, which CCP moves away from, count with the new ones.
    """

    began: Tensor
    ended: Tensor
    radius_began: float
    radius_ended: float


def ccp_problems(problems: int = 2, steps: int = 200) -> tuple[Tensor, Tensor, list[Problem]]:
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


def draw_ccp(path: Path) -> None:
    own, other, (first, second) = ccp_problems()
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


# Proxy-ISA ------------------------------------------------------------------------------------------------------------


def isa_weights(seen: int, average: float, similarities: Tensor) -> tuple[Tensor, Tensor]:
    """ω⁺ and ω⁻ of a class of which so many samples were seen and whose memory is that similar to its proxy."""
    weighting = at_state(seen, average)
    columns = similarities[:, None].expand(-1, 2)
    own = weighting.weights(columns, torch.zeros(len(similarities), dtype=torch.int64))
    assert own is not None
    return own.positive, own.negative[:, 0]


def isa_band(seen: int, average: float) -> tuple[float, float]:
    """Between which similarities a sample is informative: L − η and L."""
    state = at_state(seen, average).diagnostics()
    learned, length = (float(state[name][0]) for name in ("learned_similarity", "search_length"))  # type: ignore[index]
    return learned - length, learned


def at_state(seen: int, average: float) -> InformativeSampleWeights:
    weighting = InformativeSampleWeights(num_classes=2, dim=2)
    weighting.begin_epoch(2)
    weighting.counts.fill_(seen)
    weighting.average.fill_(average)
    weighting.in_memory.fill_(1)
    return weighting


def isa_pull(seen: int | None, similarities: Tensor) -> Tensor:
    """How hard a sample is pulled to its proxy, by their similarity; with Proxy-Anchor where nothing is ``seen``."""
    return torch.stack([-isa_gradient(seen, torch.tensor([[s, -1.0]]), torch.tensor([0]))[0, 0] for s in similarities])


def isa_push(seen: int | None, similarities: Tensor, negatives: int = 120, easy: float = 0.3) -> Tensor:
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
        pushes.append(2 * isa_gradient(seen, batch, labels)[negatives - 1, 0])
    return torch.stack(pushes)


def isa_gradient(seen: int | None, similarities: Tensor, labels: Tensor) -> Tensor:
    """The loss's gradient by similarities ``[N, 2]``, of classes whose memory has a mean similarity of 0.6."""
    similarities = similarities.requires_grad_()
    weights = None if seen is None else at_state(seen, 0.6).weights(similarities.detach(), labels)
    (gradient,) = torch.autograd.grad(ProxyAnchor(2, 2).from_similarities(similarities, labels, weights), similarities)
    return gradient


def draw_isa_penalties(path: Path) -> None:
    rows = ((None, GREY, "Proxy-Anchor"), (50, COLOURS[0], "ISA, 50 samples seen"), (700, COLOURS[1], "ISA, 700"))
    with figure(path, 2) as (_, (pull, push)):
        near, far = torch.linspace(-0.3, 1, 261), torch.linspace(-0.3, 0.3, 121)
        for seen, colour, name in rows:
            pull.plot(near, isa_pull(seen, near), color=colour, label=name)
            push.plot(far, isa_push(seen, far), color=colour)
        pull.set(title="pull on a positive", xlabel="similarity to its proxy", ylabel="gradient")
        pull.legend(frameon=False, fontsize=8, loc="upper right")
        push.set(title="push on a negative, 30 % of the others easy", xlabel="similarity to another class's proxy")


def draw_isa(path: Path) -> None:
    similarities = torch.linspace(-1, 1, 401)
    with figure(path, 3) as (_, (positive, negative, band)):
        for seen, colour in zip((5, 50, 400), COLOURS, strict=True):
            own, others = isa_weights(seen, 0.6, similarities)
            positive.plot(similarities, own, color=colour, label=f"{seen} samples seen")
            negative.plot(similarities, others, color=colour)
        positive.set(title="weight of a positive", xlabel="similarity to the proxy", ylabel="ω⁺", ylim=(0, 2.2))
        positive.legend(frameon=False, fontsize=8, loc="lower right")
        negative.set(title="weight of a negative", xlabel="similarity to the proxy", ylabel="ω⁻", ylim=(0, 1.1))
        counts = np.unique(np.geomspace(1, 600, 80).astype(int))
        for average, colour, name in ((0.9, COLOURS[2], "mean in memory 0.9"), (0.2, COLOURS[1], "mean in memory 0.2")):
            low, high = np.array([isa_band(int(n), average) for n in counts]).T
            band.fill_between(counts, low, high, color=colour, alpha=0.25, linewidth=0, label=name)
            band.plot(counts, low, color=colour)
            band.plot(counts, high, color=colour)
        band.set(title="where a sample is informative", xlabel="samples of the class seen", ylabel="similarity")
        band.set(xscale="log", ylim=(-1.9, 0.6))
        band.text(1.3, 0.35, "too easy", color=GREY, fontsize=8)
        band.text(1.3, -1.5, "outlier", color=GREY, fontsize=8)
        band.legend(frameon=False, fontsize=8, loc="lower right")


# PROFS ----------------------------------------------------------------------------------------------------------------


class Batches(NamedTuple):
    """What PROFS's sampler draws: rows per batch, and the representatives of every projection."""

    labels: NDArray[np.int64]
    steps_per_projection: int
    rows: list[NDArray[np.int64]]
    representatives: list[NDArray[np.int64]]


def profs_batches(steps: int = 36) -> Batches:
    labels = np.repeat(np.arange(6), 5)
    sampler = ClassRepresentativeSampler(labels, batch_size=6, images_per_class=2, seed=3)
    rows = [sampler.next_batch() for _ in range(steps)]
    projections = [sampler.representatives(n) for n in range(steps // sampler.steps_per_projection)]
    return Batches(labels, sampler.steps_per_projection, rows, projections)


def profs_pairs() -> tuple[Tensor, Tensor]:
    """Of a batch of four classes with three images each, representatives first: its pairs, all and those of PROFS.

    1 is a positive pair, −1 a negative one, 0 no part of the loss.
    """
    labels = torch.tensor([0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 3, 3])
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.one_hot(labels, 6) + 0.45 * torch.randn(12, 6, generator=generator)
    loss = Contrastive()
    every = loss.pairs(embeddings, labels)
    heads = loss.pairs(embeddings[:4], labels[:4], embeddings, labels)
    heads = hardest_negatives(replace(heads, positive=heads.positive.clone().fill_diagonal_(False)))
    kept = torch.zeros(12, 12)
    kept[:4] = heads.positive.float() - heads.negative.float()
    return every.positive.float() - every.negative.float(), kept


def draw_profs(path: Path) -> None:
    drawn = profs_batches()
    per_class, steps = 5, drawn.steps_per_projection
    with figure(path, 3) as (made, panels):
        for axes in panels:
            axes.remove()
        grid = made.add_gridspec(1, 3, width_ratios=(2.2, 1, 1))
        held, every, kept = (made.add_subplot(grid[0, i]) for i in range(3))
        for projection, representatives in enumerate(drawn.representatives):
            for row in representatives:
                begin = projection * steps - 0.5
                held.fill_between(
                    [begin, begin + steps], row - 0.5, row + 0.5, color=COLOURS[0], alpha=0.2, linewidth=0
                )
        for step, rows in enumerate(drawn.rows):
            heads = len(rows) // 2
            held.scatter([step] * heads, rows[:heads], s=13, color=COLOURS[0], zorder=3)
            held.scatter([step] * heads, rows[heads:], s=7, color=COLOURS[1], zorder=3)
        for edge in range(1, 6):
            held.axhline(edge * per_class - 0.5, color=LIGHT, linewidth=0.8)
        held.set(xlabel="step", yticks=[c * per_class + 2 for c in range(6)], xlim=(-0.5, len(drawn.rows) - 0.5))
        held.set(yticklabels=[f"class {c + 1}" for c in range(6)], ylim=(-0.5, 29.5))
        held.set_title(f"representatives (blue) stay for M = {steps} steps")
        for axes, pairs, title in zip((every, kept), profs_pairs(), ("all pairs", "PROFS's pairs"), strict=True):
            colours = mpl.colors.ListedColormap([COLOURS[1], "#f4f4f4", COLOURS[0]])
            axes.imshow(pairs.numpy(), cmap=colours, vmin=-1, vmax=1)
            axes.set(title=title, xlabel="image of the batch", xticks=[], yticks=[])
            axes.axhline(3.5, color="black", linewidth=0.8)
            axes.axvline(3.5, color="black", linewidth=0.8)
        every.set_ylabel("examples  |  repr.")


# VCPA -----------------------------------------------------------------------------------------------------------------


class Gaussians(NamedTuple):
    """Means and deviations of three proxies ``[batches + 1, 3, 2]``, their uncertainty, and the batches between."""

    mu: Tensor
    sigma: Tensor
    uncertainty: Tensor
    batches: list[tuple[Tensor, Tensor]]


def vcpa_gaussians(batches: int = 36) -> Gaussians:
    """Three classes, of which the last is in every sixth batch only."""
    generator = torch.Generator().manual_seed(1)
    # In two dimensions α and τ must be others than in the paper's 512: the steps would overshoot.
    own = torch.Generator().manual_seed(0)
    loss = VariationalProxyAnchor(num_classes=3, dim=2, tau=12.0, alpha=8.0, generator=own)
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


def draw_vcpa(path: Path) -> None:
    drawn = vcpa_gaussians()
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


# MPA ------------------------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """Proxies ``[3, K, 2]`` that have settled on embeddings ``[N, 2]``, and the way the loss then moves those."""

    proxies: Tensor
    embeddings: Tensor
    labels: Tensor
    moves: Tensor


def mpa_fitted(proxies_per_class: int) -> Fitted:
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


def draw_mpa(path: Path) -> None:
    with figure(path, 3) as (_, panels):
        angles = torch.arange(0.0, 361.0)
        for axes, k, title in zip(panels, (1, 2), ("Proxy-Anchor, K = 1", "MPA, K = 2"), strict=False):
            fitted = mpa_fitted(k)
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


DRAW: dict[str, Callable[[Path], None]] = {
    "ccp": draw_ccp,
    "isa": draw_isa,
    "isa-penalties": draw_isa_penalties,
    "profs": draw_profs,
    "vcpa": draw_vcpa,
    "mpa": draw_mpa,
}


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Draw these pictures, or all."""
    for name in names or DRAW:
        DRAW[name](folder / f"method-{name}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
