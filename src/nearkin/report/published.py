"""What the papers report, with protocol, backbone and dimension; and which of these values a run compares with."""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe

__all__ = ["DATA_NAMES", "SAME_SCORE", "Published", "PublishedLine", "look_up", "published_lines", "published_names"]

DATA_NAMES = {"cars": "cars196"}
"""Benchmarks that the list of published values calls otherwise."""
SAME_SCORE = {"P@1": "R@1"}
"""Two names of one score."""


@dataclass(frozen=True)
class Published:
    """One value as a paper prints it: scores in per cent, times and steps in the unit that ``metric`` names."""

    paper: str
    """``CCP``, ``ISA``, ``PROFS``, ``VCPA`` or ``MPA``."""
    table: str
    """As the paper numbers it (``VI``, ``4``), ``fig2 …`` for a figure, ``text`` for a value in the running text."""
    method: str
    backbone: str
    dim: int
    protocol: str
    """``conventional``, ``in-distribution``, ``mlrc``, or ``mlrc-mean`` and ``mlrc-ensemble`` where both are given."""
    dataset: str
    metric: str
    value: float
    spread: float | None
    """As the paper gives it, where it does: a standard error (VCPA) or a confidence interval (ISA)."""

    @property
    def text(self) -> str:
        """With the digits that papers print: one, or two where it has two.

        >>> [value.text for value in look_up(paper="MPA", table="7", method="MPA K=8")][:2]
        ['69.1', '67.4']
        """
        digits = 1 if round(self.value, 1) == self.value else 2
        return f"{self.value:.{digits}f}" + ("" if self.spread is None else f" ± {self.spread:g}")


def look_up(**wanted: str | int) -> list[Published]:
    """The values whose fields are as given; without any, all of ``published.csv``, which comes with the package.

    >>> [(line.metric, line.value) for line in look_up(paper="MPA", table="7", method="MPA K=8")][:2]
    [('R@1', 69.1), ('nDCG@2', 67.4)]
    """
    known = {field.name for field in fields(Published)}
    for name in wanted:
        if name not in known:
            raise ValueError(f"published values have no field {name!r}; they have {', '.join(sorted(known))}")
    return [line for line in _every() if all(getattr(line, name) == value for name, value in wanted.items())]


@functools.cache
def _every() -> tuple[Published, ...]:
    text = (importlib.resources.files("nearkin.report") / "published.csv").read_text(encoding="utf-8")
    lines: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    for line in lines:
        line |= {"dim": int(line["dim"]), "value": float(line["value"])}
        line["spread"] = float(line["spread"]) if line["spread"] else None
    return tuple(Published(**line) for line in lines)


_PLAIN = {
    "proxy_anchor": "ProxyAnchor",
    "vcpa": "VCPA",
    "proxy_isa": "ProxyISA",
    "proxy_nca": "ProxyNCA",
    "proxy_nca_pp": "ProxyNCA++",
    "cosine_contrastive": "C1",
    "contrastive": "C2",
    "multi_similarity": "MS",
}
_SEVERAL_PROXIES = {"mpa": "MPA", "mpa_dw": "MPA-DW", "mpa_ap": "MPA-AP"}
_PAIR = {"cosine_contrastive": "C1", "contrastive": "C2", "multi_similarity": "MS", "triplet": "Triplet"}
"""Pair losses in CCP's tables."""
_PROFS = dict(contrastive="C", triplet="T", margin="M", lifted_structure="L", n_pair="N", angular="A")


@dataclass(frozen=True)
class PublishedLine:
    """A line of a published table."""

    paper: str
    table: str
    method: str
    backbone: str
    dim: int
    protocol: str
    values: Mapping[str, Published]
    """By the name of the score."""
    same_backbone: bool

    @property
    def scores(self) -> dict[str, Statistic]:
        """As fractions."""
        return {name: Statistic(value.value, value.spread).scaled(0.01) for name, value in self.values.items()}

    @property
    def texts(self) -> dict[str, str]:
        """As they are printed."""
        return {name: value.text for name, value in self.values.items()}

    @property
    def encoder(self) -> str:
        return f"{self.backbone}, {self.dim}-d"

    @property
    def what(self) -> str:
        """Where it is printed, and with what backbone."""
        source = f"table {self.table}" if not self.table.startswith(("fig", "text")) else self.table
        return f"published: {self.paper}, {source} ({self.encoder})"


def published_lines(recipe: Recipe, protocol: str) -> list[PublishedLine]:
    """Published lines for a run's method on its data, those with its own backbone first.

    Nothing is returned where it is not certain that the same thing was measured: other data, fewer images or other
    labels, another image size, mirror images, a finer feature map, or a method with options that the table's does not
    have.

    Args:
        recipe: the run's.
        protocol: as the list of published values has it: ``conventional`` for the best epoch on the test classes, also
            of In-shop's queries and gallery; ``mlrc-mean`` and ``mlrc-ensemble``.
    """
    source, asked = recipe.data.source, recipe.protocol
    # All training images with their own labels, at the size that papers use.
    usual = asked.train_share == 1 and asked.label_noise == 0 and not asked.flip and recipe.encoder.last_stride != 1
    usual = usual and asked.eval_scale == 1 and {recipe.data.image_size, asked.eval_size} <= {None, 224, 227}
    if source not in ("cub", "cars", "sop", "inshop") or not usual:
        return []
    lines: dict[tuple[str, str, str, str, int], dict[str, Published]] = {}
    for name in published_names(recipe):
        for value in look_up(method=name, dataset=DATA_NAMES.get(source, source), protocol=protocol):
            if "(" in value.table:  # measured under the condition that follows, such as a tenth of the images
                continue
            key = (value.paper, value.table, value.method, value.backbone, value.dim)
            lines.setdefault(key, {})[SAME_SCORE.get(value.metric, value.metric)] = value
    backbone = recipe.encoder.backbone
    backbone = {"bn_inception": "bninception", "resnet50_v1": "resnet50"}.get(backbone, backbone)
    matching = [PublishedLine(*key, protocol, values, key[3] == backbone) for key, values in lines.items()]
    return sorted(matching, key=lambda line: not line.same_backbone)


def published_names(recipe: Recipe) -> list[str]:
    """What papers call a recipe's loss with its method; empty where that is not certain.

    >>> from nearkin.training.recipes import load_recipe
    >>> published_names(load_recipe({"objective": {"name": "vcpa"}}))
    ['VCPA']
    """
    loss, method = recipe.objective, recipe.method
    few = recipe.data.source in ("sop", "inshop")
    if loss.options.get("weighting") is not None:
        return []
    if method.name == "plain" and loss.name in _SEVERAL_PROXIES:
        usual = loss.options.get("proxies_per_class", 10) == (2 if few else 10)
        return [_SEVERAL_PROXIES[loss.name]] if usual else []
    if method.name == "plain" and loss.name in _PLAIN:
        usual = loss.options.get("proxies_per_class", 1) == 1 and loss.options.get("stochastic", True)
        return [_PLAIN[loss.name]] if usual else []
    if method.name == "ccp" and loss.name in _PAIR and method.options.get("anchors", "proxies") == "proxies":
        # In CCP's tables L stands for eight proxies per class, four on the data sets with small classes.
        large = method.options.get("proxies_per_class", 8) == (4 if few else 8)
        return [f"{_PAIR[loss.name]}-CCP-L", f"{_PAIR[loss.name]}-CCP"] if large else []
    if method.name == "profs" and loss.name in _PROFS:
        mined = "-HNCM" if method.options.get("hard_negative_classes") else ""
        return [f"{_PROFS[loss.name]}-PROFS{mined}"]
    return []
