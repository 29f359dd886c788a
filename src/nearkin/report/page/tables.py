"""Sections of numbers and words: scores, cost, recipes, environments and commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape

from nearkin.errors import DataError
from nearkin.evaluation.scores import is_score, score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.report.formats import html_table, signed
from nearkin.report.page._parts import code, details
from nearkin.report.run_groups import RunGroup
from nearkin.report.score_tables import score_table, statistics_of
from nearkin.report.table import NOTHING, Part
from nearkin.runs.environment import Environment
from nearkin.runs.folder import RunFolder
from nearkin.runs.outcome import Outcome


def scores_section(groups: Sequence[RunGroup]) -> str:
    """The table of scores with published figures below ours, what they mean, and what they were before training."""
    scores = score_table(groups)
    (part,) = scores.parts
    kind = "scores kinds" if part.texts > 1 else "scores"
    body = html_table(part, kind=kind, caption=" ".join(scores.conditions))
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in scores.notes)
    return body + notes + explanation(list(scores.records[0])) + before_and_after(groups)


def explanation(metrics: Sequence[str]) -> str:
    """What the scores mean, in plain words, for whoever is sent a report and not a paper."""
    headings: dict[str, list[str]] = {}
    for score in map(score_named, filter(is_score, metrics)):
        headings.setdefault(score.meaning, []).append(score.heading)
    listed = "".join(
        f"<dt>{escape(', '.join(names))}</dt><dd>{escape(meaning)}</dd>" for meaning, names in headings.items()
    )
    opening = "Every test image in turn is a query and looks for images of its own kind among the others."
    return details("What the scores mean", f"<p>{escape(opening)}</p><dl>{listed}</dl>") if listed else ""


def before_and_after(groups: Sequence[RunGroup]) -> str:
    """A table with the scores of the test images before training and after it; empty where no run has both.

    One group has a column for each and one for the change; of several each has a column.
    """
    both = []
    for group in groups:
        done = [each for each in group.scores if each.untrained and each.test]
        if done:
            starts, ends = [each.untrained for each in done], [each.test for each in done]
            both.append((group, statistics_of(starts), statistics_of(ends)))
    names = list(dict.fromkeys(name for _, before, after in both for name in before if name in after))
    if not names:
        return ""
    alone = len(both) == 1
    headings = ["score", *(("untrained", "trained", "change") if alone else (group.title for group, *_ in both))]
    lines = []
    for score in map(score_named, names):
        cells = [score.heading]
        for _, before, after in both:
            was, now = before.get(score.name), after.get(score.name)
            pair = [NOTHING if each is None else score.text(each.mean) for each in (was, now)]
            cells += pair if alone else [" → ".join(pair)]
        if alone:  # then every score has both
            change = after[score.name].mean - before[score.name].mean
            cells.append(signed((100 if score.in_percent else 1) * change, score.digits))
        lines.append(cells)
    means = ", means over the seeds" if any(len(group.scores) > 1 for group, *_ in both) else ""
    what = f"In per cent{means}; the same test images before the first step of training and after it"
    caption = (
        f"{what}{'.' if alone else ', untrained → trained.'} Untrained: the backbone before training, without a head."
    )
    return f"<h3>Before and after training</h3>{html_table(Part.of(headings, lines), kind='before', caption=caption)}"


def cost_section(groups: Sequence[RunGroup]) -> str:
    """Time, images per second and memory."""
    lines = []
    for group in groups:
        if not group.scores:
            continue
        minutes = sum(each.seconds for each in group.scores) >= 600 * len(group.scores)
        unit = (1 / 60, "min") if minutes else (1, "s")
        seconds = Statistic.of(each.seconds * unit[0] for each in group.scores)
        costs = [each.cost.__dict__ for each in group.scores]
        parameters = sum(_environment(group.runs[0].folder).parameters.values())
        cells = [
            _number(Statistic.of(each.epochs for each in group.scores), 1),
            _number(Statistic.of(each.steps for each in group.scores), 0),
            f"{_number(seconds, 0)} {unit[1]}",
            _number(Statistic.of_key(costs, "step_ms"), 1),
            _number(Statistic.of_key(costs, "images_per_second"), 0),
            _number(Statistic.of_key(costs, "peak_mib"), 0),
            f"{parameters / 1e6:.2f} M" if parameters else NOTHING,
        ]
        hardware = " or ".join(sorted({each.conditions.hardware for each in group.scores})) + _shared(group)
        lines.append([group.title, *cells, hardware])
    headings = ["", "epochs", "steps", "time", "ms per step", "images/s", "peak MiB", "parameters", "hardware"]
    caption = (
        "Means over the seeds. Time is that of the whole run with its evaluations, images per second that of the "
        "training steps alone; memory is the GPU's, or on a CPU the whole process's."
    )
    return html_table(Part.of(headings, lines, numbers=7), caption=caption) if lines else ""


def reproduce_section(groups: Sequence[RunGroup]) -> str:
    """The exact recipe, the environment and the command of every group."""
    blocks = []
    for group in groups:
        commands = []
        for run in group.runs:
            folder = run.folder
            beside = folder.path.with_name(f"{folder.path.resolve().name}-again")
            commands.append(shlex.join(["nearkin", "train", str(folder.recipe_file), "-o", str(beside)]))
        body = f"<p>Again, with the recipe that the run left:</p>{code(chr(10).join(commands))}"
        environments = [_environment(run.folder) for run in group.runs]
        started = list(dict.fromkeys(each.command for each in environments if each.command))
        if started:
            body += f"<p>As it was started:</p>{code(chr(10).join(started))}"
        seeds = ", ".join(str(run.recipe.training.seed) for run in group.runs)
        hashes = ", ".join(each.recipe for each in environments if each.recipe)
        body += details(
            f"Recipe {hashes}; {'seeds' if len(group.runs) > 1 else 'seed'} {seeds}",
            code(group.recipe.to_yaml().rstrip()),
        )
        for run, each in zip(group.runs, environments, strict=True):
            if each.started:
                text = json.dumps(dict(each), indent=2, ensure_ascii=False)
                body += details(f"Environment, seed {run.recipe.training.seed}", code(text))
        blocks.append(f"<h3>{escape(group.title)}</h3>{body}")
    return "".join(blocks)


def _environment(folder: RunFolder) -> Environment:
    try:
        return folder.environment()
    except DataError:  # damaged, it is as good as none
        return Environment()


def _shared(group: RunGroup) -> str:
    """Times of runs that shared the machine are longer than of those that had it to themselves."""
    ended = (Outcome.read(run.name, run.recipe.training.seed, run.folder) for run in group.finished)
    sharing = max((outcome.side_by_side for outcome in ended), default=1)
    return f", up to {sharing} runs at a time" if sharing > 1 else ""


def _number(value: Statistic | None, digits: int) -> str:
    """A spread of nothing is not worth the room."""
    if value is None:
        return NOTHING
    return (value if value.spread else Statistic(value.mean)).text(digits)
