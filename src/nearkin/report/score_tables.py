"""Tables of scores: of one run before and after training, and of groups of runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, RecipeError, did_you_mean
from nearkin.evaluation.protocol import as_tested, select_by
from nearkin.evaluation.scores import is_score, score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED
from nearkin.report.published import SAME_SCORE
from nearkin.report.run_groups import RunGroup
from nearkin.report.table import NOTHING, Line, Part, Table
from nearkin.runs.scores import EnsembleScores, Scores, collapse_notes
from nearkin.training.collapse import is_pretrained, lacks_warmup

CONDITIONS = ("data", "encoder", "protocol", "selection", "seeds", "hardware")
"""The conditions of every score: in the caption where they are the same for all lines, else in a column."""
LEGEND = "R@1: how often the nearest image is of the same class; MAP@R: whether all images of the class rank first"
UNTRAINED = "the backbone as it was before training, without a head"


def run_table(scores: Scores) -> Table:
    """A run's scores before and after training, with protocol, selection rule, seed and hardware.

    A final model has no test classes; its table has the scores of the run that selected its epoch, and says so.
    """
    if (final_of := scores.final_of) is not None:
        table = Table("", ())
        if final_of.scores.test:
            table = run_table(replace(final_of.scores, new_images=None, no_new_images=None))
            table = replace(table, conditions=(f"{final_of.run}: {table.conditions[0]}", *table.conditions[1:]))
        own = filter(None, [f"This model: {scores.length} in {scores.seconds:.0f} s.", scores.on_new_images])
        return Table(table.title, table.parts, (final_of.note, *table.conditions, *own))
    ran = scores.conditions
    parts = [f"{ran.protocol} protocol, {ran.selection}", ran.training_conditions, ran.weights]
    parts += [f"seed {ran.seed}", ran.hardware, f"{scores.length} in {scores.seconds:.0f} s"]
    conditions = ["; ".join(filter(None, parts)) + "."]
    conditions += [f"Untrained: {UNTRAINED}. {LEGEND}."] * bool(scores.untrained)
    conditions += filter(None, [scores.on_new_images])
    columns = {"untrained": scores.untrained, "trained": scores.test}
    if scores.chosen_on_test:
        columns["last epoch"] = scores.last
    return metric_table(f"{ran.data}: {ran.objective}, {ran.test_classes}", columns, *conditions)


def metric_table(title: str, columns: Mapping[str, Mapping[str, Any] | None], *conditions: str) -> Table:
    """One line per score in per cent, one column per set of scores."""
    present = {name: scores for name, scores in columns.items() if scores}
    names = dict.fromkeys(name for scores in present.values() for name in scores if is_score(name))
    cells = []
    for score in map(score_named, names):
        if score.in_percent:
            texts = (score.text(of[score.name]) if score.name in of else NOTHING for of in present.values())
            cells.append([score.heading, *texts])
    return Table(title, (Part.of(["score (%)", *present], cells),), conditions)


def verdict(scores: Scores, recipe: Recipe, folder: Path) -> str | None:
    """Advice where the network collapsed or the printed scores did not improve; else None.

    With pretrained weights it ends with the command that makes a run of the backbone alone, next to ``folder``.
    """
    if scores.collapse is not None:
        return str(scores.collapse)
    before, after = scores.untrained, scores.test
    if not before or not after or not scores.steps:
        return None
    shown = {name: (round(100 * before[name], 1), round(100 * after[name], 1)) for name in COMPARED if name in before}
    worse, better = (
        [f"{name} {was:.1f} → {now:.1f}" for name, (was, now) in shown.items() if sign * (now - was) > 0]
        for sign in (-1, 1)
    )
    if not worse and (better or all(was == 100 for was, _ in shown.values())):
        return None
    line = f"Training did not help: {', '.join(worse)}." if worse else "Training changed nothing."
    if worse and better:
        line = f"Training hurt {', '.join(worse)}, and helped {', '.join(better)}."
    training = recipe.training
    rate = f"training.learning_rate (now {training.learning_rate:g})"
    if not is_pretrained(recipe):
        return (
            f"{line} The network began without pretrained weights: try another {rate}, more training.epochs (now "
            f"{training.epochs}), or give it weights (encoder.weights)."
        )
    was_rising = scores.chosen.get("epoch") == scores.epochs and recipe.protocol.name == "validation"
    epochs = f"{'more' if was_rising else 'fewer'} training.epochs (now {training.epochs})"
    warmup = "training.warmup_epochs=1 (now 0), " if lacks_warmup(recipe) else ""
    recipe_file, output = (shlex.quote(str(path)) for path in (folder / "recipe.yaml", f"{folder}-untrained"))
    return (
        f"{line} Try {warmup}a smaller {rate} or {epochs}, or use the backbone as it is: "
        f"nearkin train {recipe_file} training.epochs=0 encoder.dim=null -o {output}"
    )


@dataclass(frozen=True)
class Entry:
    """A line of the table of groups."""

    title: str
    what: str
    """Such as ``best evaluation`` or ``last epoch``."""
    scores: Mapping[str, Statistic]
    runs: int
    conditions: Mapping[str, str]
    group: int
    recipes: tuple[str, ...]
    test_classes: str


def score_table(groups: Sequence[RunGroup], *, metrics: Sequence[str] | None = None, untrained: bool = False) -> Table:
    """The table of the groups' finished runs, with all scores or those named by ``metrics``.

    ``untrained`` adds the scores before training.
    """
    entries = [entry for index, group in enumerate(groups) for entry in _entries(group, index, untrained=untrained)]
    if not entries:
        raise DataError("none of the runs has a score on test classes: they are not finished, or have no test classes")
    measured = [name for name in dict.fromkeys(n for entry in entries for n in entry.scores) if score_named(name).shown]
    measured.sort(key=lambda name: not score_named(name).in_percent)  # the order of the recipe otherwise
    for name in metrics or ():
        if name not in measured:
            raise RecipeError(f"the runs have no score {name!r}: {did_you_mean(name, measured)}")
    names = tuple(dict.fromkeys(metrics)) if metrics else tuple(measured)
    varying = [key for key in CONDITIONS if len({entry.conditions[key] for entry in entries}) > 1]
    unfinished = [run.folder.path for group in groups for run in group.runs if not run.folder.is_finished]
    return Table(
        "",
        (_part(entries, names, varying),),
        (_caption(entries, names, varying),),
        (
            *(f"Not finished and not counted: {path}." for path in unfinished),
            *(note for group in groups for note in collapse_notes(group.title, group.scores)),
        ),
        tuple(_record(entry, names) for entry in entries),
    )


def score_text(value: Statistic | None, name: str) -> str:
    """``mean ± spread`` in the score's unit."""
    return NOTHING if value is None else score_named(name).text(value.mean, value.spread)


def statistics_of(parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Statistic]:
    """Mean and spread of every score over the runs that have it."""
    names = dict.fromkeys(name for part in parts for name in part or () if is_score(name))
    return {name: value for name in names if (value := Statistic.of_key(parts, name)) is not None}


def _part(entries: Sequence[Entry], names: Sequence[str], varying: Sequence[str]) -> Part:
    """Lines with a column for which scores they are, unless that is the same for all."""
    several = len({entry.what for entry in entries}) > 1
    lines, previous = [], None
    for entry in entries:
        first, previous = entry.group != previous, entry.group
        numbers = [str(entry.runs), *(score_text(entry.scores.get(name), name) for name in names)]
        words = [entry.title if first else "", *[entry.what] * several]
        cells = (*words, *numbers, *(entry.conditions[key] for key in varying))
        lines.append(Line(cells, begins_group=first and several))
    headings = ["", *["scores"] * several, "n", *(score_named(name).heading for name in names), *varying]
    return Part(tuple(headings), tuple(lines), texts=2 if several else 1, numbers=1 + len(names))


def _caption(entries: Sequence[Entry], names: Sequence[str], varying: Sequence[str]) -> str:
    """The conditions of all lines, and how to read them."""
    shared = {key: entries[0].conditions[key] for key in CONDITIONS if key not in varying}
    classes = " or ".join(sorted({entry.test_classes for entry in entries}))
    data = "; ".join(filter(None, (shared.pop("data", None), classes)))
    seeds = "seeds" if "," in shared.get("seeds", "") else "seed"
    words = {"protocol": "{} protocol", "seeds": f"{seeds} {{}}"}
    conditions = "; ".join([data, *(words.get(key, "{}").format(value) for key, value in shared.items() if value)])
    over = "repeats" if all(entry.conditions["protocol"] == "mlrc" for entry in entries) else "seeds"
    several = any(entry.runs > 1 for entry in entries)
    spread = f": mean ± sample standard deviation over n {over}" if several else f"; one {over[:-1]}, so no spread"
    reading = f"{'Scores in per cent' if any(score_named(name).in_percent for name in names) else 'Scores'}{spread}."
    if any(entry.what == "untrained" for entry in entries):
        reading += f" Untrained: {UNTRAINED}."
    if any(entry.what == "best evaluation" for entry in entries):
        reading += " The best evaluation was selected on the test classes themselves, as papers do."
    return f"{conditions[:1].upper()}{conditions[1:]}. {reading}"


def _entries(group: RunGroup, index: int, *, untrained: bool) -> list[Entry]:
    """The reported scores of a group and, where the test classes selected the epoch, those of the last epoch."""
    final = [run.final_of.run for run in group.scores if run.final_of]
    # A final model has no test classes; it is shown with the scores of the run that selected its epoch, and says so.
    reported = [run.final_of.scores if run.final_of else run for run in group.scores]
    scores = [run for run in reported if run.test]
    if not scores:
        return []

    def values(name: str) -> list[str]:
        return sorted({str(value) for run in scores if (value := getattr(run.conditions, name))})

    protocol, selection = " or ".join(values("protocol")), " or ".join(values("selection"))
    if protocol == "mlrc":
        rule = f"best {select_by(group.recipe.protocol)} on each model's held-out fold"
        selection = as_tested(rule, group.recipe.protocol)
    encoder = group.recipe.encoder
    head = [encoder.backbone, *[f"{encoder.dim}-d"] * (encoder.dim is not None)]
    head += [f"last stride {encoder.last_stride}"] * (encoder.last_stride is not None)
    conditions = {
        "data": ", ".join([group.data, *values("training_conditions")]),
        "encoder": ", ".join([*head, *values("weights")]),
        "protocol": protocol,
        "selection": selection,
        "seeds": ", ".join(map(str, sorted({run.conditions.seed for run in scores}))),
        "hardware": " or ".join(values("hardware")),
    }
    on_test = scores[0].chosen_on_test
    entry = Entry(
        title=f"{group.title} (final model: scores of {' and '.join(final)})" if final else group.marked_title,
        what="best evaluation" if on_test else "last epoch" if selection.startswith("last epoch") else "selected epoch",
        scores=statistics_of([run.test for run in scores]),
        runs=len(scores),
        conditions=conditions,
        group=index,
        recipes=tuple(run.conditions.recipe for run in scores),
        test_classes=" or ".join(values("test_classes")),
    )
    if protocol == "mlrc":
        models = replace(entry, what=f"mean of {len(scores)} models")
        return [models] if group.ensemble is None else _ensemble_entries(models, group.ensemble)
    entries = [entry]
    if untrained:
        before = statistics_of([run.untrained for run in scores])
        entries = [replace(entry, what="untrained", scores=before), entry]
    if on_test:
        last = {name: value for name, value in statistics_of([s.last for s in scores]).items() if name in entry.scores}
        section = group.recipe.protocol
        rule = "last epoch of a training that followed the test classes" if section.monitor_test else "last epoch"
        lasting = conditions | {"selection": as_tested(rule, section)}
        entries.append(replace(entry, what="last epoch", scores=last, conditions=lasting))
    return [entry for entry in entries if entry.scores]


def _ensemble_entries(entry: Entry, ensemble: EnsembleScores) -> list[Entry]:
    """The models of the folds one by one, and their embeddings concatenated."""
    entries = []
    for measured, dim, what in (
        (ensemble.separate, ensemble.dim, f"mean of {ensemble.folds} models"),
        (ensemble.concatenated, ensemble.concatenated_dim, f"{ensemble.folds} models concatenated"),
    ):
        scores = {SAME_SCORE.get(name, name): value for name, value in measured.items()}
        conditions = {**entry.conditions, "encoder": f"{ensemble.backbone}, {dim}-d"}
        what = f"{what}, {dim}-d"
        entries.append(replace(entry, what=what, scores=scores, runs=ensemble.repeats, conditions=conditions))
    return entries


def _record(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """All conditions, and scores as fractions with all their digits."""
    record: dict[str, Any] = {"title": entry.title, "scores": entry.what, "n": entry.runs}
    for name in names:
        value = entry.scores.get(name)
        record |= {name: value and value.mean, f"{name} spread": value and value.spread}
    return record | dict(entry.conditions) | {"recipes": " ".join(entry.recipes)}
