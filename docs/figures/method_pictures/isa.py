"""Proxy-ISA: the weights of a class's samples by their similarity, and where a sample is informative."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from method_pictures._plane import COLOURS, GREY, figure
from nearkin.losses import InformativeSampleWeights


def weights_of(seen: int, average: float, similarities: Tensor) -> tuple[Tensor, Tensor]:
    """ω⁺ and ω⁻ of a class of which so many samples were seen and whose memory is that similar to its proxy."""
    weighting = at_state(seen, average)
    columns = similarities[:, None].expand(-1, 2)
    own = weighting.weights(columns, torch.zeros(len(similarities), dtype=torch.int64))
    assert own is not None
    return own.positive, own.negative[:, 0]


def band_of(seen: int, average: float) -> tuple[float, float]:
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


def draw(path: Path) -> None:
    similarities = torch.linspace(-1, 1, 401)
    with figure(path, 3) as (_, (positive, negative, band)):
        for seen, colour in zip((5, 50, 400), COLOURS, strict=True):
            own, others = weights_of(seen, 0.6, similarities)
            positive.plot(similarities, own, color=colour, label=f"{seen} samples seen")
            negative.plot(similarities, others, color=colour)
        positive.set(title="weight of a positive", xlabel="similarity to the proxy", ylabel="ω⁺", ylim=(0, 2.2))
        positive.legend(frameon=False, fontsize=8, loc="lower right")
        negative.set(title="weight of a negative", xlabel="similarity to the proxy", ylabel="ω⁻", ylim=(0, 1.1))
        counts = np.unique(np.geomspace(1, 600, 80).astype(int))
        for average, colour, name in ((0.9, COLOURS[2], "mean in memory 0.9"), (0.2, COLOURS[1], "mean in memory 0.2")):
            low, high = np.array([band_of(int(n), average) for n in counts]).T
            band.fill_between(counts, low, high, color=colour, alpha=0.25, linewidth=0, label=name)
            band.plot(counts, low, color=colour)
            band.plot(counts, high, color=colour)
        band.set(title="where a sample is informative", xlabel="samples of the class seen", ylabel="similarity")
        band.set(xscale="log", ylim=(-1.9, 0.6))
        band.text(1.3, 0.35, "too easy", color=GREY, fontsize=8)
        band.text(1.3, -1.5, "outlier", color=GREY, fontsize=8)
        band.legend(frameon=False, fontsize=8, loc="lower right")
