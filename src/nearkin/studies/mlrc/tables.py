"""The result of a reality check for people, with what its scores hold for."""

from __future__ import annotations

from nearkin.evaluation.statistics import Statistic
from nearkin.report.formats import counted
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.scores import EnsembleScores, FoldModel
from nearkin.studies.mlrc.scoring import METRICS


def mlrc_table(result: EnsembleScores, *, models: bool = False) -> Table:
    """Scores in per cent, mean ± half of the interval where there is one; with ``models`` every single one below."""
    held = result.conditions
    method = "" if held.method == "plain" else f" with {held.method}"
    kinds = (
        ("separate", result.dim, result.separate),
        ("concatenated", result.concatenated_dim, result.concatenated),
    )
    cells = [[kind, str(dim), *(interval_text(scores[name]) for name in METRICS)] for kind, dim, scores in kinds]
    parts = [Part.of(["score (%)", "dimensions", *METRICS], cells)]
    if models:
        headings = ["repeat", "fold", "seed", "epoch", f"{result.select_by} on its fold", *METRICS]
        parts.append(Part.of(headings, [_model_cells(model) for model in result.models], title="Models", texts=0))
    title = f"MLRC on {held.data}: {held.objective}{method}, {held.test_classes}"
    records = tuple(
        {"what": kind, "dim": dim, "metric": name, **scores[name].as_record()}
        for kind, dim, scores in kinds
        for name in METRICS
    )
    return Table(title, tuple(parts), tuple(mlrc_conditions(result)), records=records)


def interval_text(value: Statistic) -> str:
    """``mean ± half of the interval`` in per cent; one repeat has no interval.

    >>> interval_text(Statistic(0.612, interval=(0.6, 0.624))), interval_text(Statistic(0.612))
    ('61.20 ± 1.20', '61.20')
    """
    half = None if value.interval is None else 50 * (value.interval[1] - value.interval[0])
    return Statistic(100 * value.mean, half).text(2)


def mlrc_conditions(result: EnsembleScores) -> list[str]:
    """What the scores hold for: protocol, selection, seeds, hardware; and how they were made."""
    held, folds, repeats, seeds = result.conditions, result.folds, result.repeats, result.seeds
    parts = [
        f"{held.protocol} protocol, {held.selection}",
        f"{folds} folds, {counted(repeats, 'repeat')}, seeds {seeds[0]}–{seeds[-1]}",
        *(said for said in (held.training_conditions, held.weights) if said),
        held.hardware,
        f"recipe {held.recipe}",
    ]
    made = f"Separate: mean of the {folds} models of a repeat. Concatenated: their embeddings side by side"
    if repeats == 1:
        return ["; ".join(parts) + ".", f"{made}. One repeat has no confidence interval."]
    scored, possible = result.combinations.scored, result.combinations.possible
    which = f"all {possible:,}" if scored == possible else f"{scored:,} drawn from the {possible:,}"
    reading = (
        f"{made}, mean over {which} combinations of one repeat per fold. ± is half of the 95 % confidence interval of "
        f"the mean: Student's t over repeats, and for combinations over the models in them."
    )
    return ["; ".join(parts) + ".", reading]


def _model_cells(model: FoldModel) -> list[str]:
    epoch = NOTHING if model.epoch is None else f"{model.epoch:g}"
    scores = [model.chosen_by, *(model.scores[name] for name in METRICS)]
    cells = [NOTHING if score is None else f"{100 * score:.2f}" for score in scores]
    return [str(model.repeat), str(model.fold), str(model.seed), epoch, *cells]
