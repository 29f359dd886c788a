"""Draws what each method and each product of runs adds to ``cub/best``, from ``results/``.

python docs/figures/draw_products.py            # docs/figures/products.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearkin.evaluation.statistics import Difference, difference_by_seed

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "results" / "cub" / "best.jsonl"
RUNS = [json.loads(line) for line in RESULTS.open(encoding="utf-8")]
COLOURS = {"above": "#0072b2", "below": "#d55e00", "undecided": "#777777", None: "#009e73"}
"""By verdict; None is one product of all seeds, which has no spread."""
THREE = "proxy_anchor, variational_mpa_2, mpa"
SEEDS = "{}, seeds 0, 1 and 2"


class Part(NamedTuple):
    """A row of runs, or a product of several, that is compared with Proxy-Anchor."""

    title: str
    product: str
    of: str


PARTS = (
    Part("MPA", "run", "mpa"),
    Part("Proxy-ISA without penalties", "run", "proxy_isa_without_penalties"),
    Part("MPA, variational proxies", "run", "variational_mpa_2"),
    Part("Proxy-Anchor in CCP's chain", "run", "ccp"),
    Part("mean of three methods' weights", "mean of the weights", THREE),
    Part("three methods concatenated", "concatenated", THREE),
    Part("three seeds of MPA concatenated", "concatenated", SEEDS.format("mpa")),
    Part("three seeds of Proxy-Anchor concatenated", "concatenated", SEEDS.format("proxy_anchor")),
)


def scores_of(product: str, of: str, *, flip: bool) -> dict[Any, dict[str, float]]:
    """By seed; of a product of all seeds one, under None. Runs as they were trained are another study."""
    if product == "run" and not flip:
        return {run["seed"]: run["test"] for run in RUNS if (run["study"], run["row"]) == ("best-methods", of)}
    made, wanted = [run for run in RUNS if run["study"] == "best-products"], (product, of, flip)
    return {run["seed"]: run["test"] for run in made if (run["product"], run["of"], run["flip"]) == wanted}


def gain(part: Part, score: str, *, flip: bool) -> Difference | float:
    """Above Proxy-Anchor, by seed; of one product above the mean of its seeds."""
    mine, base = scores_of(part.product, part.of, flip=flip), scores_of("run", "proxy_anchor", flip=flip)
    if list(mine) == [None]:
        return mine[None][score] - sum(each[score] for each in base.values()) / len(base)
    found = difference_by_seed(*({seed: each[score] for seed, each in side.items()} for side in (mine, base)))
    assert found is not None, f"no runs of {part}"
    return found


def draw(path: Path) -> None:
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, score in ((left, "R@1"), (right, "MAP@R")):
            draw_score(axes, score)
        left.set_yticks(range(len(PARTS)), [part.title for part in PARTS])
        left.invert_yaxis()
        for verdict, colour in COLOURS.items():
            name = f"three seeds, 95 % interval: {verdict}" if verdict else "one product of all seeds"
            left.plot([], [], "o-" if verdict else "o", color=colour, linewidth=2.5, label=name)
        left.plot([], [], "s", color="black", fillstyle="none", label="mirror images, 352 px (circles: 256 px)")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        # What is drawn is written into the file, for the test that says when the runs have changed.
        figure.savefig(path, dpi=150, metadata={"Software": None, "Description": description()})


def draw_score(axes: Axes, score: str) -> None:
    axes.axvline(0, color="#bbbbbb", linewidth=1, zorder=0)
    for place, part in enumerate(PARTS):
        for flip, above in ((False, -0.15), (True, 0.15)):
            found = gain(part, score, flip=flip)
            value = found.value if isinstance(found, Difference) else found
            colour = COLOURS[found.verdict if isinstance(found, Difference) else None]
            if isinstance(found, Difference) and found.interval is not None:
                axes.plot([100 * end for end in found.interval], [place + above] * 2, color=colour, linewidth=2)
            marker = {"marker": "s", "fillstyle": "none"} if flip else {"marker": "o"}
            axes.plot(100 * value, place + above, color=colour, markersize=6, **marker)
    axes.set_xlabel(f"{score} above Proxy-Anchor, in points")


def description() -> str:
    """Every gain, in points."""
    lines = []
    for part in PARTS:
        gains = [gain(part, score, flip=flip) for flip in (False, True) for score in ("R@1", "MAP@R")]
        values = [found.value if isinstance(found, Difference) else found for found in gains]
        lines.append(f"{part.title}: {', '.join(f'{100 * value:+.2f}' for value in values)}")
    return "; ".join(lines)


if __name__ == "__main__":
    draw(FOLDER / "products.png")
