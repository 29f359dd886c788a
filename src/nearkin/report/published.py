"""What the papers report, with protocol, backbone and dimension."""

from __future__ import annotations

import csv
import functools
import importlib.resources
from dataclasses import dataclass
from typing import Any

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
    """``conventional``, ``in-distribution``, or of the reality check ``mlrc-mean`` and ``mlrc-ensemble``."""
    dataset: str
    metric: str
    value: float
    spread: float | None
    """As the paper gives it, where it does: a standard error (VCPA) or a confidence interval (ISA)."""

    @property
    def text(self) -> str:
        """With the digits that papers print: one, or two where it has two."""
        digits = 1 if round(self.value, 1) == self.value else 2
        return f"{self.value:.{digits}f}" + ("" if self.spread is None else f" ± {self.spread:g}")


def look_up(**wanted: str | int) -> list[Published]:
    """The values whose fields are as given; without any, all of ``published.csv``, which comes with the package.

    >>> [(line.metric, line.value) for line in look_up(paper="MPA", table="7", method="MPA K=8")][:2]
    [('R@1', 69.1), ('nDCG@2', 67.4)]
    """
    return [line for line in _every() if all(getattr(line, name) == value for name, value in wanted.items())]


@functools.cache
def _every() -> tuple[Published, ...]:
    text = (importlib.resources.files("nearkin.report") / "published.csv").read_text(encoding="utf-8")
    lines: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    for line in lines:
        line |= {"dim": int(line["dim"]), "value": float(line["value"])}
        line["spread"] = float(line["spread"]) if line["spread"] else None
    return tuple(Published(**line) for line in lines)
