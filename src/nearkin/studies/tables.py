"""The results of a study's rows, as far as their runs are finished, and the table of them.

The table has the scores with last epochs and published values, what chose the epoch, and differences from a base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nearkin.data.benchmarks import benchmarks
from nearkin.evaluation.protocol import SELECTED_ON_TEST, select_by
from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED, Comparison, ScoredRuns, differences_part, how_to_read
from nearkin.report.published import SAME_SCORE, Published
from nearkin.report.score_tables import score_text
from nearkin.report.table import NOTHING, Line, Part, Table, counted, signed
from nearkin.runs.folder import Outcome
from nearkin.runs.scores import EnsembleScores, collapse_notes
from nearkin.studies.study import PlannedRun, Row

ENSEMBLES: dict[str, Literal["separate", "concatenated"]] = {
    "mlrc-mean": "separate",
    "mlrc-ensemble": "concatenated",
    "mlrc": "concatenated",
}
"""Which result of the reality check a published value is: of each model alone, or concatenated."""
TIMES = ("ms/step", "ms/batch", "ms/batch of 180")
PATIENCE = 60
"""Evaluations without a new best after which the CCP paper ends a training; its table I counts them."""
SHOWN = ("R@1", "MAP@R", "nDCG@8", "covering_radius")
MUST_AGREE = {"protocol": "protocols", "selection": "ways of choosing the epoch", "hardware": "hardware"}
MUST_AGREE |= {"data": "data", "budget": "budgets"}
BACKBONES = {"bninception": "BN-Inception", "resnet50": "ResNet-50", "googlenet": "GoogLeNet"}


@dataclass(frozen=True)
class Column:
    """A score, a time or a number of steps; ``part`` is one of the two results of a reality check."""

    metric: str
    part: Literal["", "separate", "concatenated"] = ""
    dim: int | None = None

    @classmethod
    def of(cls, published: Published, mlrc: bool) -> Column:
        """The column that a published value stands in."""
        return cls(published.metric, ENSEMBLES[published.protocol], published.dim) if mlrc else cls(published.metric)

    @property
    def score(self) -> str:
        return SAME_SCORE.get(self.metric, self.metric)

    @property
    def is_score(self) -> bool:
        return self.metric not in (*TIMES, "ksteps")

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown: scores between 0 and 1 are in per cent."""
        return 100.0 if self.is_score and score_named(self.score).in_percent else 1.0

    @property
    def heading(self) -> str:
        if self.dim is not None:
            return f"{self.dim}-d {self.metric}"
        return score_named(self.metric).heading if self.is_score and self.metric == self.score else self.metric


@dataclass(frozen=True)
class RowResult(ScoredRuns):
    """A row with all its runs."""

    row: Row
    runs: tuple[PlannedRun, ...]

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(planned.outcome for planned in self.runs)

    @cached_property
    def ensemble(self) -> EnsembleScores | None:
        """What the models of a reality check come to; None before all are trained, and of other rows."""
        return EnsembleScores.read(self.runs[0].folder.path.parents[1]) if self.row.mlrc else None

    @property
    def title(self) -> str:  # type: ignore[override]
        return self.row.title

    @property
    def seeds(self) -> list[int]:
        """Of the runs that the row's scores are made of."""
        if self.row.mlrc:
            return [] if self.ensemble is None else list(self.ensemble.seeds)
        return [planned.seed for planned in self.finished]

    @property
    def repeats(self) -> int:
        """How many runs, or repeats of the reality check, a score is the mean of."""
        return len(self.seeds) if self.ensemble is None else self.ensemble.repeats

    @property
    def problems(self) -> list[Outcome]:
        """Outcomes of runs that have not finished; none of a row that cannot be run here."""
        return [] if self.row.problem else [outcome for outcome in self.outcomes if outcome.status != "finished"]

    @property
    def status(self) -> str:
        """In a word: ``finished``, ``skipped``, ``failed`` or ``not run``, of some runs or of all."""
        ended = [outcome.status for outcome in self.problems if outcome.status != "unfinished"]
        worst = "skipped" if self.row.problem else next(reversed(ended), "")
        if self.seeds:
            return f"some {worst}" if worst else "finished"
        return worst or "not run"

    @property
    def published(self) -> dict[Column, Published]:
        return {Column.of(value, self.row.mlrc): value for value in self.row.published}

    def value(self, column: Column) -> Statistic | None:
        """What the finished runs have for a column: a score as a fraction, milliseconds, or thousands of steps."""
        if column.part:
            return getattr(self.ensemble, column.part, {}).get(column.score)
        if column.metric in TIMES:
            return Statistic.of(scores.cost.step_ms for scores in self.scores if scores.cost.step_ms is not None)
        if column.metric == "ksteps":
            every = PATIENCE * (self.row.recipe.training.evaluate_every_steps or 0)
            ends = [(scores.steps, scores.chosen.get("step", scores.steps) + every) for scores in self.scores]
            return Statistic.of(min(map(float, end)) / 1000 for end in ends)
        return self.test(column.score)

    def difference(self, column: Column) -> float | None:
        """Ours minus the published value, in its unit."""
        ours, published = self.value(column), self.published.get(column)
        return None if ours is None or published is None else column.scale * ours.mean - published.value

    def test(self, name: str) -> Statistic | None:
        """A score of the reported weights on the test classes."""
        return Statistic.of_key((scores.test for scores in self.scores), name)

    def test_by_run(self, name: str) -> dict[Any, float]:
        """Of a reality check the mean score of a repeat's models, by repeat."""
        if not self.row.mlrc:
            return super().test_by_run(name)
        return {} if self.ensemble is None else dict(enumerate(self.ensemble.separate[name].values))

    def last(self, name: str) -> Statistic | None:
        """The last epoch's score; None where it is not also on the test classes, as the reported one is."""
        if self.row.recipe.protocol.name not in SELECTED_ON_TEST:
            return None
        return Statistic.of_key((scores.last for scores in self.scores), name)

    @property
    def select_by(self) -> str:
        return select_by(self.row.recipe.protocol)

    def validated(self, name: str) -> tuple[Statistic, Statistic] | None:
        """A score at the chosen epoch on validation and on test classes; None where test classes chose the epoch."""
        if self.row.recipe.protocol.name in SELECTED_ON_TEST or self.row.mlrc:
            return None
        both = [scores for scores in self.scores if name in scores.chosen and name in (scores.test or {})]
        validation = Statistic.of_key((scores.best for scores in both), name)
        test = Statistic.of_key((scores.test for scores in both), name)
        return (validation, test) if validation and test else None

    @property
    def chosen_epochs(self) -> list[float]:
        return [scores.chosen["epoch"] for scores in self.scores if scores.chosen.get("epoch") is not None]

    @property
    def at_once(self) -> list[int]:
        """How many runs shared the machine."""
        return sorted({outcome.parallel_runs for outcome in self.outcomes if outcome.status == "finished"})

    def condition(self, name: str) -> list[str]:
        """The values that finished runs have for one of their :class:`~nearkin.runs.scores.Conditions`."""
        conditions = [scores.conditions for scores in self.scores]
        if self.row.mlrc:
            conditions = [] if self.ensemble is None else [self.ensemble.conditions]
        values = (getattr(of_run, name) for of_run in conditions)
        return sorted({str(value) for value in values if value is not None})


def results_of(runs: Sequence[PlannedRun]) -> list[RowResult]:
    """Runs by their rows; a folder that holds a run of another recipe is an error."""
    rows = {planned.row.path: planned.row for planned in runs if not planned.was_changed(allow=False)}
    return [RowResult(row, tuple(run for run in runs if run.row.path == path)) for path, row in rows.items()]


STEP = Column("ms/step")
Results = Sequence[RowResult]
Columns = Mapping[str, Sequence[Column]]


def study_table(title: str, results: Results, columns: Columns | None = None, remarks: Iterable[str] = ()) -> Table:
    """A part for each data set, in which a method stands below its base, indented.

    The columns are the usual scores that some run has, unless they are given by data set; ``remarks`` are further
    conditions, in sentences.
    """
    parts: list[Part] = []
    for data, rows in by_data(results).items():
        shown = columns[data] if columns else usual_columns(rows)
        parts += [_scores(rows, shown, data), _chosen(rows), differences_part(_compared(rows))]
    return Table(
        title,
        tuple(part for part in parts if part.lines),
        (*conditions_of(results), *remarks),
        tuple(warnings_of(results)),
        tuple(score_records(results, columns)),
    )


def study_record(folder: Path, table: Table, results: Results) -> dict[str, Any]:
    """Everything that is known, for programs."""
    rows = []
    for result in results:
        recipe = result.row.recipe
        record: dict[str, Any] = {key: getattr(result.row, key) for key in ("name", "title", "base", "problem")}
        record |= {
            "data": result.row.data or recipe.data.source,
            "recipe": recipe.as_mapping(),
            "status": result.status,
            "problems": [dataclasses.asdict(problem) for problem in result.problems],
            "seeds": result.seeds,
            "folders": [str(planned.folder.path) for planned in result.runs],
            "chosen_epochs": result.chosen_epochs,
            "runs_at_once": result.at_once,
        }
        if pair := result.validated(result.select_by):
            validation, test = (score.as_record() for score in pair)
            record["chosen"] = {"score": result.select_by, "validation": validation, "test": test}
        rows.append(record)
    return {
        "folder": str(folder),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "title": table.title,
        "conditions": list(table.conditions),
        "warnings": list(table.notes),
        "rows": rows,
        "scores": list(table.records),
    }


def score_records(results: Results, columns: Columns | None = None) -> list[dict[str, Any]]:
    """One for every row and score, with all digits: the published unit for those that are published, else fractions."""
    records = []
    for data, rows in by_data(results).items():
        shown = columns[data] if columns else [*usual_columns(rows), STEP]
        for result, _ in families(rows):
            compared = compared_with_base(result, rows)
            runs = zip(result.finished, result.scores, strict=True)
            collapsed = [str(run.seed) for run, scores in runs if scores.collapse is not None]
            for column in shown:
                ours, last = result.value(column), result.last(column.score)
                published = result.published.get(column)
                difference = compared.differences.get(column.score) if compared and column.is_score else None
                low, high = (difference and difference.interval) or (None, None)
                records.append(
                    {
                        "row": result.row.name,
                        "title": result.row.title,
                        "data": data or result.row.recipe.data.source,
                        **{f"at {symbol}": value for symbol, value in result.row.at.items()},
                        "metric": column.metric,
                        "part": column.part or None,
                        "dim": column.dim,
                        "mean": ours and ours.mean,
                        "spread": ours and ours.spread,
                        "interval": ours and ours.interval and [f"{end:g}" for end in ours.interval],
                        "values": ours and [f"{value:g}" for value in ours.values],
                        "last epoch": last and last.mean,
                        "published": published and published.value,
                        "published spread": published and published.spread,
                        "minus published": result.difference(column),
                        "compared with": difference and compared and compared.base,
                        "difference": difference and difference.value,
                        "interval low": low,
                        "interval high": high,
                        "verdict": difference and difference.verdict,
                        "collapsed": collapsed,
                        "more seeds": difference and difference.more_seeds,
                        "status": result.status,
                        "seeds": [str(seed) for seed in result.seeds],
                        "budget": budget_text(result.row.recipe),
                        **{key: result.condition(key) for key in ("protocol", "selection", "hardware", "recipe")},
                    }
                )
    return records


def by_data(results: Results) -> dict[str, list[RowResult]]:
    names = dict.fromkeys(result.row.data for result in results)
    return {data: [result for result in results if result.row.data == data] for data in names}


def usual_columns(results: Results) -> list[Column]:
    return [Column(name) for name in SHOWN if any(result.test(name) for result in results)]


def families(results: Results) -> list[tuple[RowResult, int]]:
    """Every row with its base above it, and how many bases it has among those that are shown."""
    known = {result.row.name for result in results}

    def below(base: str | None, depth: int) -> list[tuple[RowResult, int]]:
        members = []
        for result in results:
            if (result.row.base if result.row.base in known else None) == base:
                members += [(result, depth), *below(result.row.name, depth + 1)]
        return members

    return below(None, 0)


def compared_with_base(result: RowResult, results: Results) -> Comparison | None:
    """A row's differences from its base or, where it names none, from the first row that has none."""
    others, named = [other for other, _ in families(results)], result.row.base
    base = next((row for row in others if row.row.name == named or (named is None and row.row.base is None)), None)
    return None if base is None or base is result else Comparison.of(result, base)


def conditions_of(results: Results) -> list[str]:
    """The conditions of every score: protocol, selection, seeds, budget, hardware; and how to read the scores."""
    done = [result for result in results if result.seeds]
    published = [value for result in results for value in result.row.published]
    backbones = " and ".join(sorted({BACKBONES.get(value.backbone, value.backbone) for value in published}))
    protocols = " and ".join(sorted({value.protocol for value in published}))
    theirs = [f"Published: {backbones}, {protocols} protocol."] if published else []
    if not done:
        return ["No run has finished.", *theirs]
    seeds = sorted({seed for result in done for seed in result.seeds})
    sharing = max((number for result in done for number in result.at_once), default=1)
    parts = [
        f"{' and '.join(values_of(done, 'protocol'))} protocol, {' or '.join(values_of(done, 'selection'))}",
        *_values_by_row(done, "training_conditions"),
        *_values_by_row(done, "weights"),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        *_values_by_row(done, "budget"),
        " and ".join(values_of(done, "hardware")) + (f", up to {sharing} runs at a time" if sharing > 1 else ""),
    ]
    repeats = {result.repeats for result in done}
    reading = f"Mean ± sample standard deviation over n runs{', none with one' if 1 in repeats else ''}."
    reading = "One run of each row, so no spread." if repeats == {1} else reading
    compared = [comparison for rows in by_data(results).values() for comparison in _compared(rows)]
    return ["; ".join(parts) + ".", *theirs, f"{reading} {how_to_read(compared)}".strip()]


def warnings_of(results: Results) -> list[str]:
    """What makes rows hard to compare, and which runs are missing and why."""
    done = [result for result in results if result.seeds]
    lines = []
    for rows in by_data(done).values():
        mixed = {what: _values_by_row(rows, condition) for condition, what in MUST_AGREE.items()}
        lines += [f"Mixed {what}: {'; '.join(values)}." for what, values in mixed.items() if len(values) > 1]
    if len({number for result in done for number in result.at_once}) > 1:
        lines.append("Mixed load: some runs had the machine to themselves and some did not; do not compare ms/step.")
    if len({tuple(result.seeds) for result in done}) > 1:
        lines.append("Not every row has the same seeds.")
    lines += [note for result in done for note in collapse_notes(result.row.title, result.scores)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        name = result.row.title + (f" on {result.row.data}" if result.row.data else "")
        if result.row.problem:
            reasons.setdefault(("skipped", result.row.problem), []).append(name)
        for problem in result.problems:
            key = problem.status, problem.reason or "no reason given"
            reasons.setdefault(key, []).append(f"{name} seed {problem.seed}")
    for (status, reason), runs in reasons.items():
        more = f" and {len(runs) - 6} more" if len(runs) > 6 else ""
        lines.append(f"{status}: {', '.join(runs[:6])}{more}: {reason}")
    return lines


def budget_text(recipe: Recipe) -> str:
    training = recipe.training
    limit = "" if training.max_steps is None else f", at most {training.max_steps} steps"
    return f"{counted(training.epochs, 'epoch')}{limit}, batch {training.batch_size}, {training.optimiser}"


def value_text(value: Statistic | None, column: Column) -> str:
    """Steps of 100 ms and more are shown in whole milliseconds."""
    if value is None or column.is_score:
        return score_text(value, column.score)
    return value.text(int(value.mean < 100))


def values_of(results: Results, condition: str) -> list[str]:
    """The values that some run has for one of its conditions."""
    return sorted({value for result in results for value in result.condition(condition)})


def _values_by_row(results: Results, condition: str) -> list[str]:
    """Values of a condition, or of the budget, with the rows that have them, where others do not."""
    rows: dict[str, list[str]] = {}
    for result in results:
        values = [budget_text(result.row.recipe)] if condition == "budget" else result.condition(condition)
        for value in values:
            rows.setdefault(value, []).append(result.row.title)
    return [value if len(of) == len(results) else f"{value} ({', '.join(of)})" for value, of in sorted(rows.items())]


def _scores(results: Results, columns: Sequence[Column], data: str) -> Part:
    """Ours, below it the last epoch's where the test classes chose the epoch, the published value, the difference."""
    budgets = {budget_text(result.row.recipe) for result in results}
    timed = [STEP] if STEP not in columns and any(result.value(STEP) for result in results) else []
    shown, lines = [*columns, *timed], []
    for result, depth in families(results):
        values = {column: value_text(result.value(column), column) for column in shown}
        repeats = str(result.repeats) if result.seeds else result.status
        entries = [(f"{'· ' * depth}{result.marked_title}", repeats, "", values)]
        last = {column: score_text(result.last(column.score), column.score) for column in columns if column.is_score}
        if result.seeds and set(last.values()) - {NOTHING}:
            entries.append(("", "last epoch", "last", last))
        if result.published:
            published = {column: value.text for column, value in result.published.items()}
            entries.append(("", "published", "published", published))
        differences = {key: signed(value) for key in columns if (value := result.difference(key)) is not None}
        if differences:
            entries.append(("", "difference", "difference", differences))
        for title, what, kind, texts in entries:
            budget = [budget_text(result.row.recipe) if title else ""] * (len(budgets) > 1)
            cells = (title, what, *(texts.get(column, NOTHING) for column in shown), *budget)
            lines.append(Line(cells, kind, begins_group=len(entries) > 1 and bool(title)))
    headings = ("", "n", *(column.heading for column in shown), *["budget"] * (len(budgets) > 1))
    title = benchmarks()[data].title if data in benchmarks() else data
    worded = any(result.published or not result.seeds for result in results)
    return Part(headings, tuple(lines), title=title, texts=1 + worded, numbers=len(shown) + (not worded))


def _chosen(results: Results) -> Part:
    """Validation scores at the epochs that were chosen, first the one that chose them, and those epochs."""
    rows = [(result, depth) for result, depth in families(results) if result.validated(result.select_by)]
    chose = dict.fromkeys(result.select_by for result, _ in rows)
    names = [*chose, *(name for name in COMPARED if name not in chose and any(row.validated(name) for row, _ in rows))]
    cells = []
    for result, depth in rows:
        pairs = [result.validated(name) if name in (result.select_by, *COMPARED) else None for name in names]
        scores = [score_text(pair and pair[0], name) for pair, name in zip(pairs, names, strict=True)]
        epochs = ", ".join(f"{epoch:.3g}" for epoch in result.chosen_epochs)
        cells.append([f"{'· ' * depth}{result.marked_title}", *scores, epochs])
    headings = ["", *(f"validation {name}" for name in names), "epochs"]
    return Part.of(headings, cells, title="How the epoch was chosen")


def _compared(results: Results) -> list[Comparison]:
    """Rows compared with their bases; rows of a paper, which name none, only where that gives intervals."""
    compared = [compared_with_base(result, results) for result, _ in families(results)]
    known = [comparison for comparison in compared if comparison is not None]
    if any(result.row.published for result in results):
        known = [row for row in known if any(difference.interval for difference in row.differences.values())]
    return known
