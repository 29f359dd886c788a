"""Tables of scores: seeds of one recipe in a line, best beside last, published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nearkin.errors import DataError, RecipeError, did_you_mean
from nearkin.evaluation.protocol import as_tested, select_by
from nearkin.evaluation.scores import is_score, score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.report.published import SAME_SCORE, PublishedLine, published_lines
from nearkin.report.run_groups import RunGroup
from nearkin.report.table import NOTHING, Line, Part, Table
from nearkin.runs.scores import EnsembleScores, Scores

CONDITIONS = ("data", "encoder", "protocol", "selection", "seeds", "hardware")
"""What every score holds for: in the caption where it is the same for all lines, a column where it is not."""


@dataclass(frozen=True)
class Entry:
    """A line before it is put into words."""

    title: str
    what: str
    """Which of the group's scores these are: the best evaluation, the last epoch, or published ones."""
    scores: Mapping[str, Statistic]
    runs: int
    conditions: Mapping[str, str]
    group: int
    recipes: tuple[str, ...] = ()
    published: PublishedLine | None = None
    published_as: str = ""
    """The protocol under which papers print such scores; empty where they do not."""
    test_classes: str = ""


def score_table(groups: Sequence[RunGroup], *, metrics: Sequence[str] | None = None, published: bool = True) -> Table:
    """The table of the groups' finished runs.

    Args:
        groups: from :func:`nearkin.report.run_groups.gather_runs`.
        metrics: names of the scores to show, in this order; default: all that were measured.
        published: put published figures below ours where it is certain that they are of the same thing.
    """
    entries = [entry for place, group in enumerate(groups) for entry in _entries(group, place)]
    if not entries:
        raise DataError("none of the runs has a score on test classes: they are not finished, or have no test classes")
    measured = [name for name in dict.fromkeys(n for each in entries for n in each.scores) if score_named(name).shown]
    measured.sort(key=lambda name: not score_named(name).in_percent)  # the order of the recipe otherwise
    for name in metrics or ():
        if name not in measured:
            raise RecipeError(f"the runs have no score {name!r}: {did_you_mean(name, measured)}")
    names = tuple(dict.fromkeys(metrics)) if metrics else tuple(measured)
    if published:
        entries = _with_published(entries, groups, names)
    ours = [entry for entry in entries if entry.published is None]
    varying = [key for key in CONDITIONS if len({entry.conditions[key] for entry in ours}) > 1]
    unfinished = [run.folder.path for group in groups for run in group.runs if not run.folder.is_finished]
    return Table(
        "",
        (_part(entries, names, varying),),
        (_caption(entries, names, varying),),
        tuple(f"Not finished and not counted: {path}." for path in unfinished),
        tuple(_record(entry, names) for entry in entries),
    )


def score_text(value: Statistic | None, name: str) -> str:
    """``mean ± spread`` in the score's unit and digits."""
    return NOTHING if value is None else score_named(name).text(value.mean, value.spread)


def statistics_of(parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Statistic]:
    """Mean and spread of every score over the runs that have it."""
    names = dict.fromkeys(name for part in parts for name in part or () if is_score(name))
    found = {name: Statistic.of_key(parts, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _part(entries: Sequence[Entry], names: Sequence[str], varying: Sequence[str]) -> Part:
    """Every line says what it is where there is more than one kind of them."""
    kinds = len({entry.what for entry in entries}) > 1
    lines, before = [], None
    for entry in entries:
        first, before = entry.group != before, entry.group
        if entry.published is None:
            numbers = [str(entry.runs), *(score_text(entry.scores.get(name), name) for name in names)]
        else:
            numbers = ["", *(entry.published.texts.get(name, NOTHING) for name in names)]
        words = [entry.title if first else "", *([entry.what] if kinds else [])]
        cells = (*words, *numbers, *(entry.conditions[key] for key in varying))
        lines.append(Line(cells, "published" if entry.published else "", begins_group=first and kinds))
    headings = ["", *(["scores"] if kinds else []), "n", *(score_named(name).heading for name in names), *varying]
    return Part(tuple(headings), tuple(lines), texts=2 if kinds else 1, numbers=1 + len(names))


def _caption(entries: Sequence[Entry], names: Sequence[str], varying: Sequence[str]) -> str:
    """What holds for all lines, and how to read them."""
    ours = [entry for entry in entries if entry.published is None]
    shared = {key: ours[0].conditions[key] for key in CONDITIONS if key not in varying}
    seeds = shared.get("seeds", "")
    said = [
        shared.get("data", ""),
        _same([entry.test_classes for entry in ours]),
        shared.get("encoder", ""),
        f"{shared['protocol']} protocol" if "protocol" in shared else "",
        shared.get("selection", ""),
        f"{'seeds' if ',' in seeds else 'seed'} {seeds}" if seeds else "",
        shared.get("hardware", ""),
    ]
    held = "; ".join(part for part in said if part)
    over = "repeats" if all(entry.conditions["protocol"] == "mlrc" for entry in ours) else "seeds"
    several = any(entry.runs > 1 for entry in ours)
    spread = f": mean ± sample standard deviation over n {over}" if several else f"; one {over[:-1]}, so no spread"
    reading = f"{'Scores in per cent' if any(score_named(name).in_percent for name in names) else 'Scores'}{spread}."
    if any(entry.what == "best evaluation" for entry in ours):
        reading += " The best evaluation was chosen on the test classes themselves, as papers do."
    if any(entry.published for entry in entries):
        reading += " Published lines are as printed in the papers, with their own backbone."
    return f"{held[:1].upper()}{held[1:]}. {reading}"


def _entries(group: RunGroup, place: int) -> list[Entry]:
    """The reported scores of a group and, where the test classes chose the epoch, those of the last one."""
    final = [each.final_of.run for each in group.scores if each.final_of]
    # A final model has no score of its own; it is shown with that of the run whose epoch it took, and says so.
    own = [each.final_of.scores if each.final_of else each for each in group.scores]
    scores = [each for each in own if each.test]
    if not scores:
        return []
    held = [each.conditions for each in scores]
    protocol, selection = _same([each.protocol for each in held]), _same([each.selection for each in held])
    if protocol == "mlrc":
        rule = f"best {select_by(group.recipe.protocol)} on each model's held-out fold"
        selection = as_tested(rule, group.recipe.protocol)
    encoder = group.recipe.encoder
    conditions = {
        "data": ", ".join([group.data, *sorted({each.training_conditions or "" for each in held} - {""})]),
        "encoder": ", ".join(
            [encoder.backbone]
            + ([] if encoder.dim is None else [f"{encoder.dim}-d"])
            + ([] if encoder.last_stride is None else [f"last stride {encoder.last_stride}"])
            + sorted({each.weights for each in held if each.weights})
        ),
        "protocol": protocol,
        "selection": selection,
        "seeds": ", ".join(map(str, sorted({each.seed for each in held}))),
        "hardware": _same([each.hardware for each in held]),
    }
    on_test = scores[0].chosen_on_test
    entry = Entry(
        title=f"{group.title} (final model: scores of {' and '.join(final)})" if final else group.title,
        what=_which(scores[0], selection),
        scores=statistics_of([each.test for each in scores]),
        runs=len(scores),
        conditions=conditions,
        group=place,
        recipes=tuple(each.recipe for each in held),
        published_as="conventional" if on_test else "",
        test_classes=_same([each.test_classes for each in held]),
    )
    if protocol == "mlrc":
        models = replace(entry, what=f"mean of {len(scores)} models")
        return [models] if group.ensemble is None else _ensemble_entries(models, group.ensemble)
    if not on_test:
        return [entry]
    last = {name: value for name, value in statistics_of([s.last for s in scores]).items() if name in entry.scores}
    section = group.recipe.protocol
    rule = "last epoch of a training that followed the test classes" if section.monitor_test else "last epoch"
    lasting = conditions | {"selection": as_tested(rule, section)}
    both = [entry, replace(entry, what="last epoch", scores=last, conditions=lasting, published_as="")]
    return [each for each in both if each.scores]


def _which(scores: Scores, selection: str) -> str:
    if scores.chosen_on_test:
        return "best evaluation"
    return "last epoch" if selection.startswith("last epoch") else "chosen epoch"


def _ensemble_entries(entry: Entry, ensemble: EnsembleScores) -> list[Entry]:
    """The models of the folds one by one, and their embeddings side by side."""
    mean, concatenated = f"mean of {ensemble.folds} models", f"{ensemble.folds} models concatenated"
    return [
        replace(
            entry,
            what=f"{what}, {dim}-d",
            scores={SAME_SCORE.get(name, name): value for name, value in scores.items()},
            runs=ensemble.repeats,
            conditions={**entry.conditions, "encoder": f"{ensemble.backbone}, {dim}-d"},
            published_as=published_as,
        )
        for scores, dim, what, published_as in (
            (ensemble.separate, ensemble.dim, mean, "mlrc-mean"),
            (ensemble.concatenated, ensemble.concatenated_dim, concatenated, "mlrc-ensemble"),
        )
    ]


def _with_published(entries: Sequence[Entry], groups: Sequence[RunGroup], names: Sequence[str]) -> list[Entry]:
    """Published lines below all of ours for the same group."""
    found: list[Entry] = []
    for place, group in enumerate(groups):
        own = [entry for entry in entries if entry.group == place]
        found += own
        for entry in own:
            for line in published_lines(group.recipe, entry.published_as) if entry.published_as else ():
                scores = {name: value for name, value in line.scores.items() if name in names}
                if scores:
                    given = {"data": entry.conditions["data"], "encoder": line.encoder, "protocol": line.protocol}
                    held = {key: given.get(key, "as published") for key in CONDITIONS}
                    found.append(Entry(entry.title, line.what, scores, 0, held, place, published=line))
    return found


def _record(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """All conditions, and scores as fractions with all their digits."""
    record: dict[str, Any] = {"title": entry.title, "figures": entry.what, "n": entry.runs or None}
    for name in names:
        value = entry.scores.get(name)
        record[name] = None if value is None else value.mean
        record[f"{name} spread"] = None if value is None else value.spread
    return record | dict(entry.conditions) | {"recipes": " ".join(entry.recipes)}


def _same(values: Sequence[str]) -> str:
    return " or ".join(sorted(set(values)))
