"""Draws what each method gains over its base on CUB and Cars196, next to what its paper claims, from ``results/``.

python docs/figures/draw_claims.py            # docs/figures/claims.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from nearkin.evaluation.statistics import Difference, difference_by_seed

RESULTS = Path(__file__).resolve().parents[2] / "results"
RUNS = [json.loads(line) for file in sorted(RESULTS.glob("c*/*.jsonl")) for line in file.open(encoding="utf-8")]
COLOURS = {"above": "#0072b2", "below": "#d55e00", "undecided": "#777777"}


class Claim(NamedTuple):
    """A row of runs that is compared with another of the same studies, and the gain that the paper has, in points."""

    title: str
    studies: str | tuple[str, ...]
    row: str
    base: str
    published: float | None
    """None for the last epoch, of which no paper tells."""
    groups: str | tuple[str, ...] = ()
    """Those that count; none for all."""
    paired_by: tuple[str, ...] = ("seed",)
    """What runs of both rows are paired by."""
    scores: str = "test"
    """The scores that a run reports, or those of its last epoch."""
    data: str = "cub"

    def gain(self) -> Difference:
        """Of R@1 on the test classes."""
        runs = [
            ((run["study"], *(run[key] for key in self.paired_by)), run)
            for run in RUNS
            if run["data"] == self.data
            and run["study"] in _several(self.studies)
            and (not self.groups or run["group"] in _several(self.groups))
        ]
        mine, theirs = (
            {pair: run[self.scores]["R@1"] for pair, run in runs if run["row"] == row} for row in (self.row, self.base)
        )
        found = difference_by_seed(mine, theirs)
        assert found is not None, f"{self.studies} lack {self.row} or {self.base}"
        return found


CCP = "reality-check"
FOLD = ("group", "seed")
LONG = "sixty-epochs"
ISA_STUDIES = ("isa", LONG)
ISA_5 = ("30 epochs, as the authors train", "ISA, halved every 5")
ISA_10 = ("30 epochs, as the authors train, halved every 10", "ISA, halved every 10")
VCPA = ("vcpa", LONG)
VCPA_GROUPS = ("batch 180, the first 15 or 18 of 30 epochs", "VCPA")
CARS = "methods"
MPA = "mpa"
MPA_GROUPS = ("batch 180, 30 epochs", "batch 180, the first 12 of 30 epochs")
PROFS = ("profs", "12 epochs, an evaluation each")
LONGER = "24 epochs, an evaluation every two"
LONGEST = "60 epochs, an evaluation every three"
CLAIMS = (
    Claim("C2-CCP, reality check, pull 2e-4", CCP, "c2_ccp", "c2", 2.7, paired_by=FOLD),
    Claim(
        *("C2-CCP, reality check, pull 0.1", (CCP, "reality-check-again"), "c2_ccp_pull_1e-1", "c2", 2.7),
        paired_by=FOLD,
    ),
    Claim("C1-CCP, reality check, pull 2e-4", CCP, "c1_ccp", "c1", 3.4, paired_by=FOLD),
    Claim("C1-CCP, reality check, pull 0.1", CCP, "c1_ccp_pull_1e-1", "c1", 3.4, paired_by=FOLD),
    Claim("MS-CCP, reality check, pull 2e-4", CCP, "ms_ccp", "ms", 3.9, paired_by=FOLD),
    Claim("MS-CCP, reality check, pull 0.1", CCP, "ms_ccp_pull_1e-1", "ms", 3.9, paired_by=FOLD),
    Claim("VCPA, a tenth of the images", "vcpa-tenth", "vcpa_003", "proxy_anchor", 2.3, "batch 180"),
    Claim("VCPA, divided by all classes", VCPA, "vcpa", "proxy_anchor", 1.4, VCPA_GROUPS),
    Claim("VCPA, divided by present classes", VCPA, "vcpa_present", "proxy_anchor", 1.4, VCPA_GROUPS),
    Claim("MPA", (MPA, LONG), "mpa", "proxy_anchor", 0.5, (*MPA_GROUPS, "MPA")),
    Claim("MPA, the last of 60 epochs", LONG, "mpa", "proxy_anchor", None, "MPA", scores="last"),
    Claim("MPA-DW", (MPA, LONG), "mpa_dw", "proxy_anchor", 0.5, (*MPA_GROUPS, "MPA")),
    Claim("MPA-AP", MPA, "mpa_ap", "proxy_anchor", 0.5),
    Claim("MPA, Cars196", CARS, "mpa", "proxy_anchor_mpa", 0.7, data="cars"),
    Claim("MPA, Cars196, the last of 30 epochs", CARS, "mpa", "proxy_anchor_mpa", None, scores="last", data="cars"),
    Claim("Proxy-ISA, halved every 5", ISA_STUDIES, "proxy_isa", "proxy_anchor", 1.0, ISA_5),
    Claim("the last of 30 or 60 epochs", ISA_STUDIES, "proxy_isa", "proxy_anchor", None, ISA_5, scores="last"),
    Claim("Proxy-ISA, halved every 10", ISA_STUDIES, "proxy_isa", "proxy_anchor", 1.0, ISA_10),
    Claim("the last of 60 epochs", LONG, "proxy_isa", "proxy_anchor", None, ISA_10, scores="last"),
    Claim("Proxy-ISA, Cars196", CARS, "proxy_isa", "proxy_anchor_isa", 2.4, data="cars"),
    Claim("without penalties, Cars196", CARS, "proxy_isa_without_penalties", "proxy_anchor_isa", 2.4, data="cars"),
    Claim(
        *("the last of these 30 epochs", CARS, "proxy_isa_without_penalties", "proxy_anchor_isa", None),
        scores="last",
        data="cars",
    ),
    Claim("C-PROFS", PROFS[0], "c_profs", "contrastive", 1.0, PROFS[1]),
    Claim("C-PROFS+HNCM", PROFS[0], "c_profs_hncm", "contrastive", 1.2, PROFS[1]),
    Claim("C-PROFS+HNCM, margin 0.5, 24 epochs", PROFS[0], "c_profs_hncm_05", "contrastive_05", 1.2, LONGER),
    Claim("with a pull of 0.1", PROFS[0], "c_profs_hncm_05_pull_1e-1", "contrastive_05", 1.2, LONGER),
    Claim(
        *("the last of these 24", PROFS[0], "c_profs_hncm_05_pull_1e-1", "contrastive_05", None, LONGER),
        scores="last",
    ),
    Claim("M-PROFS, 60 epochs", PROFS[0], "m_profs", "margin", 2.4, LONGEST),
    Claim("M-PROFS+HNCM, 60 epochs", PROFS[0], "m_profs_hncm", "margin", 3.2, LONGEST),
    Claim("T-PROFS, 60 epochs", PROFS[0], "t_profs", "triplet", 1.1, LONGEST),
    Claim("the last of these 60", PROFS[0], "t_profs", "triplet", None, LONGEST, scores="last"),
)


def draw(path: Path) -> None:
    gains = [(claim, claim.gain()) for claim in CLAIMS]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.5, 8.8), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="#bbbbbb", linewidth=1, zorder=0)
        for place, (claim, gain) in enumerate(gains):
            assert gain.interval is not None
            assert gain.verdict is not None
            low, high = (100 * end for end in gain.interval)
            colour = COLOURS[gain.verdict]
            axes.plot([low, high], [place, place], color=colour, linewidth=2.5, solid_capstyle="butt")
            axes.plot(100 * gain.value, place, "o", color=colour, markersize=7)
            if claim.published is not None:
                axes.plot(claim.published, place, "D", color="black", markersize=6, fillstyle="none")
        for verdict, colour in COLOURS.items():
            if any(gain.verdict == verdict for _, gain in gains):
                axes.plot([], [], "o-", color=colour, linewidth=2.5, label=f"here, with its 95 % interval: {verdict}")
        axes.plot([], [], "D", color="black", fillstyle="none", linestyle="none", label="claimed by the paper")
        names = [f"{claim.title}  ({_runs(gain)})" for claim, gain in gains]
        axes.set_yticks(range(len(gains)), names)
        axes.invert_yaxis()
        axes.set_xlabel("R@1 above the base trained alike, in points")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        # What is drawn is written into the file, for the test that says when the runs have changed.
        figure.savefig(path, dpi=135, metadata={"Software": None, "Description": description()})


def description() -> str:
    """Every gain with its interval, in words."""
    return "; ".join(f"{claim.title}: {in_words(claim.gain())}" for claim in CLAIMS)


def in_words(gain: Difference) -> str:
    """As the pages write it: the difference in points and its interval."""
    assert gain.interval is not None
    value, low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in (gain.value, *gain.interval))
    return f"{value} ({low} to {high})"


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _runs(gain: Difference) -> str:
    ours, theirs = gain.runs
    return f"{ours} runs" if ours == theirs else f"{ours} and {theirs} runs"


if __name__ == "__main__":
    draw(Path(__file__).parent / "claims.png")
