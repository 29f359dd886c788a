"""Published values that belong beside a run: only where method, data, protocol and score are surely the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearkin.evaluation.statistics import Statistic
from nearkin.published.values import DATA_NAMES, SAME_SCORE, Published, look_up
from nearkin.recipe import Recipe

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
        return {name: Statistic(each.value, each.spread).scaled(0.01) for name, each in self.values.items()}

    @property
    def texts(self) -> dict[str, str]:
        """As they are printed."""
        return {name: each.text for name, each in self.values.items()}

    @property
    def encoder(self) -> str:
        return f"{self.backbone}, {self.dim}-d"

    @property
    def what(self) -> str:
        """Where it is printed, and with what backbone."""
        place = f"table {self.table}" if not self.table.startswith(("fig", "text")) else self.table
        return f"published: {self.paper}, {place} ({self.encoder})"


def published_beside(recipe: Recipe, protocol: str) -> list[PublishedLine]:
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
    usual = usual and asked.test_scale == 1 and {recipe.data.image_size, asked.test_size} <= {None, 224, 227}
    if source not in ("cub", "cars", "sop", "inshop") or not usual:
        return []
    lines: dict[tuple[str, str, str, str, int], dict[str, Published]] = {}
    for name in published_names(recipe):
        for each in look_up(method=name, dataset=DATA_NAMES.get(source, source), protocol=protocol):
            if "(" in each.table:  # measured under the condition that follows, such as a tenth of the images
                continue
            key = (each.paper, each.table, each.method, each.backbone, each.dim)
            lines.setdefault(key, {})[SAME_SCORE.get(each.metric, each.metric)] = each
    own = recipe.encoder.backbone
    own = {"bn_inception": "bninception", "resnet50_v1": "resnet50"}.get(own, own)
    found = [PublishedLine(*key, protocol, values, key[3] == own) for key, values in lines.items()]
    return sorted(found, key=lambda each: not each.same_backbone)


def published_names(recipe: Recipe) -> list[str]:
    """What papers call a recipe's loss with its method; empty where that is not certain.

    >>> published_names(Recipe.from_mapping({"objective": {"name": "vcpa"}}))
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
        own = loss.options.get("proxies_per_class", 1) == 1 and loss.options.get("stochastic", True)
        return [_PLAIN[loss.name]] if own else []
    if method.name == "ccp" and loss.name in _PAIR and method.options.get("anchors", "proxies") == "proxies":
        # In CCP's tables L stands for eight proxies per class, four on the data sets with small classes.
        large = method.options.get("proxies_per_class", 8) == (4 if few else 8)
        return [f"{_PAIR[loss.name]}-CCP-L", f"{_PAIR[loss.name]}-CCP"] if large else []
    if method.name == "profs" and loss.name in _PROFS:
        mined = "-HNCM" if method.options.get("hard_negative_classes") else ""
        return [f"{_PROFS[loss.name]}-PROFS{mined}"]
    return []
