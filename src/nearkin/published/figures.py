"""What the papers report: every figure of their tables, with the protocol, backbone and dimension it holds for."""

from __future__ import annotations

import csv
import functools
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass, fields

__all__ = ["Published", "look_up", "published_rows", "published_value"]


@dataclass(frozen=True)
class Published:
    """One figure as a paper prints it: scores in per cent, times and steps in the unit that ``metric`` names."""

    paper: str
    """``CCP``, ``ISA``, ``PROFS``, ``VCPA`` or ``MPA``."""
    table: str
    """As the paper numbers it (``VI``, ``4``), ``fig2 …`` for a figure, ``text`` for a figure in the running text."""
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

        >>> [row.text for row in look_up(paper="MPA", table="7", method="MPA K=8")][:2]
        ['69.1', '67.4']
        """
        digits = 1 if round(self.value, 1) == self.value else 2
        return f"{self.value:.{digits}f}" + ("" if self.spread is None else f" ± {self.spread:g}")


def published_rows() -> list[Published]:
    """Every published figure, in the order of the file ``figures.csv`` that comes with the package.

    >>> rows = published_rows()
    >>> len(rows), rows[0].method, rows[0].value
    (1068, 'C1', 68.84)
    """
    return list(_rows())


def look_up(**wanted: str | int) -> list[Published]:
    """The figures whose fields have the values given.

    >>> [(row.metric, row.value) for row in look_up(paper="MPA", table="7", method="MPA K=8")][:2]
    [('R@1', 69.1), ('nDCG@2', 67.4)]
    """
    known = {field.name for field in fields(Published)}
    for name in wanted:
        if name not in known:
            raise ValueError(f"published figures have no field {name!r}; they have {', '.join(sorted(known))}")
    return [row for row in _rows() if all(getattr(row, name) == value for name, value in wanted.items())]


def published_value(**wanted: str | int) -> float | None:
    """The one figure that fits, None where there is none; several are an error, as the choice would be a guess.

    >>> published_value(paper="VCPA", table="1", method="VCPA", dataset="cub", metric="R@1")
    69.9
    """
    found = look_up(**wanted)
    if len(found) > 1:
        raise ValueError(f"{len(found)} published figures fit {wanted}: name more fields")
    return found[0].value if found else None


@functools.cache
def _rows() -> tuple[Published, ...]:
    file = importlib.resources.files("nearkin.published") / "figures.csv"
    return tuple(_read(file.read_text(encoding="utf-8")))


def _read(text: str) -> Iterator[Published]:
    for row in csv.DictReader(text.splitlines()):
        yield Published(
            paper=row["paper"],
            table=row["table"],
            method=row["method"],
            backbone=row["backbone"],
            dim=int(row["dim"]),
            protocol=row["protocol"],
            dataset=row["dataset"],
            metric=row["metric"],
            value=float(row["value"]),
            spread=float(row["spread"]) if row["spread"] else None,
        )
