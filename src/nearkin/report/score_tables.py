"""Tables of scores: seeds of one recipe in a line, best beside last, published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.protocol import SELECTED_ON_TEST, select_by
from nearkin.published.matching import SAME_SCORE, PublishedFigures, published_beside
from nearkin.report.run_groups import RunGroup
from nearkin.studies.study import figure
from nearkin.suggest import did_you_mean

Figures = Mapping[str, Mapping[str, Any]]
"""``{"mean", "spread", "values"}`` by the name of the score, as fractions."""

_PLAIN = {"covering_radius": "covering radius", "inter_class_distance": "distance between classes"}
"""Figures that are no fractions, and what they are called."""
_HIDDEN = ("inter_class_distance", "queries_without_match")
CONDITIONS = ("data", "encoder", "protocol", "selection", "seeds", "hardware")
"""What every figure holds for: in the caption where it is the same for all lines, a column where it is not."""


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    title: str
    what: str
    """Which of the row's figures these are: the best evaluation, the last epoch, or published ones."""
    figures: Figures
    runs: int
    conditions: Mapping[str, str]
    group: int
    recipes: tuple[str, ...] = ()
    published: PublishedFigures | None = None
    published_as: str = ""
    """The protocol under which papers print such figures; empty where they do not."""
    test_classes: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """Lines in the order of the groups, and the names of the scores they show."""

    lines: tuple[Line, ...]
    metrics: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def ours(self) -> list[Line]:
        return [line for line in self.lines if line.published is None]

    @property
    def varying(self) -> list[str]:
        """Conditions that need a column."""
        return [name for name in CONDITIONS if len({line.conditions[name] for line in self.ours}) > 1]

    @property
    def caption(self) -> str:
        """What holds for all lines, and how to read them."""
        first, varying = self.ours[0], self.varying
        shared = {name: first.conditions[name] for name in CONDITIONS if name not in varying}
        seeds = shared.get("seeds", "")
        said = {
            "data": shared.get("data", ""),
            "classes": _same([line.test_classes for line in self.ours]),
            "encoder": shared.get("encoder", ""),
            "protocol": f"{shared['protocol']} protocol" if "protocol" in shared else "",
            "selection": shared.get("selection", ""),
            "seeds": f"{'seeds' if ',' in seeds else 'seed'} {seeds}" if seeds else "",
            "hardware": shared.get("hardware", ""),
        }
        percent = "Scores in per cent" if any(name not in _PLAIN for name in self.metrics) else "Scores"
        several = any(line.runs > 1 for line in self.ours)
        over = "repeats" if all(line.conditions["protocol"] == "mlrc" for line in self.ours) else "seeds"
        spread = f": mean ± sample standard deviation over n {over}" if several else f"; one {over[:-1]}, so no spread"
        reading = f"{percent}{spread}."
        best = any(line.what == "best evaluation" for line in self.ours)
        reading += " The best evaluation was chosen on the test classes themselves, as papers do." if best else ""
        published = any(line.published for line in self.lines)
        reading += " Published lines are as printed in the papers, with their own backbone." if published else ""
        return f"{sentence('; '.join(part for part in said.values() if part))} {reading}"

    @property
    def kinds(self) -> bool:
        """Whether there is more than one kind of line, so that each must say what it is."""
        return len({line.what for line in self.lines}) > 1

    def headings(self) -> list[str]:
        names = ["", *(["figures"] if self.kinds else []), "n"]
        return [*names, *(metric_name(name) for name in self.metrics), *self.varying]

    def is_number(self, column: int) -> bool:
        first = 2 if self.kinds else 1
        return first <= column <= first + len(self.metrics)

    def cells(self, line: Line, *, first: bool = True) -> list[str]:
        """The cells of a line; its title only where it is the first of its group."""
        scores = [cell(line.figures.get(name), name, published=line.published is not None) for name in self.metrics]
        count = "" if line.published is not None else str(line.runs)
        names = [line.title if first else "", *([line.what] if self.kinds else []), count]
        return [*names, *scores, *(line.conditions[name] for name in self.varying)]

    def rows(self) -> list[tuple[Line, list[str]]]:
        """Every line with its cells."""
        found, before = [], None
        for line in self.lines:
            found.append((line, self.cells(line, first=line.group != before)))
            before = line.group
        return found


def score_table(
    groups: Sequence[RunGroup], *, metrics: Sequence[str] | None = None, published: bool = True
) -> ScoreTable:
    """The table of the groups' finished runs.

    Args:
        groups: from :func:`nearkin.report.run_groups.gather_runs`.
        metrics: names of the scores to show, in this order; default: all that were measured.
        published: put published figures below ours where it is certain that they are of the same thing.
    """
    lines: list[Line] = []
    notes = []
    for place, group in enumerate(groups):
        begun = [str(run.folder.path) for run in group.runs if not run.folder.is_finished]
        notes += [f"not finished and not counted: {path}" for path in begun]
        lines += _lines_of(group, place)
    if not lines:
        raise DataError("none of the runs has a score on test classes: they are not finished, or have no test classes")
    measured = list(dict.fromkeys(name for line in lines for name in line.figures if name not in _HIDDEN))
    measured.sort(key=lambda name: name in _PLAIN)  # the order of the recipe otherwise
    for name in metrics or ():
        if name not in measured:
            raise RecipeError(f"the runs have no score {name!r}: {did_you_mean(name, measured)}")
    chosen = tuple(dict.fromkeys(metrics)) if metrics else tuple(measured)
    if published:
        lines = _with_published(lines, groups, chosen)
    return ScoreTable(tuple(lines), chosen, tuple(notes))


def cell(value: Mapping[str, Any] | None, name: str, *, published: bool = False) -> str:
    """A figure in per cent, with its spread where it has one; published ones with the digits they were printed with.

    >>> cell({"mean": 0.6571, "spread": 0.0042}, "R@1"), cell({"mean": 0.6571, "spread": None}, "R@1")
    ('65.7 ± 0.4', '65.7')
    """
    if value is None:
        return "–"
    if published:
        return str(value["text"])
    scale, digits = (1, 3) if name in _PLAIN else (100, 1)
    spread = "" if value["spread"] is None else f" ± {scale * value['spread']:.{digits}f}"
    return f"{scale * value['mean']:.{digits}f}{spread}"


def metric_name(name: str) -> str:
    return _PLAIN.get(name, name)


def _lines_of(group: RunGroup, place: int) -> list[Line]:
    """The reported figures of a group and, where the test classes chose the epoch, those of the last one."""
    final = [each["final_of"]["run"] for each in group.scores if "final_of" in each]
    # A final model has no score of its own; it is shown with that of the run whose epoch it took, and says so.
    scores = [each["final_of"]["scores"] if "final_of" in each else each for each in group.scores]
    scores = [each for each in scores if each["test"]]
    if not scores:
        return []
    protocol = _same([str(each["protocol"]) for each in scores])
    selection = _same([str(each["selection"]) for each in scores])
    if protocol == "mlrc":
        selection = f"best {select_by(group.recipe.protocol)} on each model's held-out fold"
    conditions = {
        "data": group.data + _training_conditions(group),
        "encoder": encoder_text(group),
        "protocol": protocol,
        "selection": selection,
        "seeds": ", ".join(map(str, sorted({int(each["seed"]) for each in scores}))),
        "hardware": _same([str(each["hardware"]) for each in scores]),
    }
    shared: dict[str, Any] = {
        "title": f"{group.title} (final model: scores of {' and '.join(final)})" if final else group.title,
        "group": place,
        "recipes": tuple(str(each["recipe"]) for each in scores),
        "test_classes": _same([str(each["test_classes"]) for each in scores]),
    }
    figures = figures_of([each["test"] for each in scores])
    chosen_on_test = protocol in SELECTED_ON_TEST and selection != "last epoch"
    if protocol == "mlrc" and group.mlrc is not None:
        return _mlrc_lines(group.mlrc, conditions, shared)
    what = "best evaluation" if chosen_on_test else "last epoch" if selection == "last epoch" else "chosen epoch"
    what = f"mean of {len(scores)} models" if protocol == "mlrc" else what
    lines = [Line(what=what, figures=figures, runs=len(scores), conditions=conditions, **shared)]
    if chosen_on_test:
        lines[0] = replace(lines[0], published_as="conventional")
        last = {name: value for name, value in figures_of([each["last"] for each in scores]).items() if name in figures}
        lasting = conditions | {"selection": "last epoch"}
        lines.append(Line(what="last epoch", figures=last, runs=len(scores), conditions=lasting, **shared))
    return [line for line in lines if line.figures]


def _mlrc_lines(mlrc: Mapping[str, Any], conditions: Mapping[str, str], shared: Mapping[str, Any]) -> list[Line]:
    """The models of the folds one by one, and their embeddings side by side."""
    lines = []
    for key, dim, what, published_as in (
        ("separate", "dim", f"mean of {mlrc['folds']} models", "mlrc-mean"),
        ("concatenated", "concatenated_dim", f"{mlrc['folds']} models concatenated", "mlrc-ensemble"),
    ):
        figures = {SAME_SCORE.get(name, name): value for name, value in mlrc[key].items()}
        encoder = f"{mlrc['backbone']}, {mlrc[dim]}-d"
        lines.append(
            Line(
                what=f"{what}, {mlrc[dim]}-d",
                figures=figures,
                runs=int(mlrc["repeats"]),
                conditions={**conditions, "encoder": encoder},
                published_as=published_as,
                **shared,
            )
        )
    return lines


def figures_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and spread of every score over the runs that have it."""
    names = dict.fromkeys(name for part in parts for name in part if _is_score(name))
    found = {name: figure([float(part[name]) for part in parts if part.get(name) is not None]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _with_published(lines: Sequence[Line], groups: Sequence[RunGroup], metrics: Sequence[str]) -> list[Line]:
    """Published lines below all of ours for the same group."""
    found: list[Line] = []
    for place, group in enumerate(groups):
        own = [line for line in lines if line.group == place]
        found += own
        for line in own:
            for each in published_beside(group.recipe, line.published_as) if line.published_as else ():
                figures = {name: value for name, value in each.figures.items() if name in metrics}
                if figures:
                    given = {"data": line.conditions["data"], "encoder": each.encoder, "protocol": each.protocol}
                    conditions = {name: given.get(name, "as published") for name in CONDITIONS}
                    found.append(Line(line.title, each.what, figures, 0, conditions, place, published=each))
    return found


def _training_conditions(group: RunGroup) -> str:
    protocol = group.recipe.protocol
    share = f", {100 * protocol.train_share:g} % of the training images" if protocol.train_share < 1 else ""
    return share + (f", {100 * protocol.label_noise:g} % of the labels replaced" if protocol.label_noise else "")


def encoder_text(group: RunGroup) -> str:
    """Backbone and dimension."""
    encoder = group.recipe.encoder
    return encoder.backbone if encoder.dim is None else f"{encoder.backbone}, {encoder.dim}-d"


def _is_score(name: str) -> bool:
    return "@" in name or name in ("NMI", "F1", *_PLAIN)


def _same(values: Sequence[str]) -> str:
    return " or ".join(sorted(set(values)))


def sentence(text: str) -> str:
    """With a capital at the start and a full stop at the end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
