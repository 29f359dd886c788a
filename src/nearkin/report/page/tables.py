"""Sections of figures and words: scores, cost, recipes, environments and commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.report.page._parts import Section, code, details, escape, table
from nearkin.report.page.explained import explanation
from nearkin.report.run_groups import RunGroup
from nearkin.report.score_tables import Figures, ScoreTable, cell, figures_of, metric_name
from nearkin.report.tables import baseline_in_words
from nearkin.runs.folder import RunFolder
from nearkin.studies.study import figure
from nearkin.studies.time_plan import side_by_side_of


def scores_section(scores: ScoreTable, groups: Sequence[RunGroup]) -> Section:
    """The table of scores with published figures below ours, what they mean, and what they were before training."""
    rows, before = [], None
    for line, cells in scores.rows():
        kinds = ["published"] if line.published else []
        kinds += ["first"] if line.group != before else []
        before = line.group
        content = "".join(
            f"<td{' class=number' if scores.is_number(place) else ''}>{escape(text)}</td>"
            for place, text in enumerate(cells[1:], 1)
        )
        rows.append(f'<tr class="{" ".join(kinds)}"><th scope="row">{escape(cells[0])}</th>{content}</tr>')
    body = table(
        scores.headings(),
        rows,
        kind="scores kinds" if scores.kinds else "scores",
        caption=scores.caption,
        numbers=scores.is_number,
    )
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in scores.notes)
    return Section("scores", "Scores", body + notes + explanation(scores.metrics) + before_and_after(groups))


def before_and_after(groups: Sequence[RunGroup]) -> str:
    """A table with the scores of the test images before training and after it; empty where no run has both.

    One group has a column for each and one for the change; of several each has a column.
    """
    both = [(group, *_both_scores(group)) for group in groups]
    both = [(group, before, after) for group, before, after in both if before and after]
    names = list(dict.fromkeys(name for _, before, after in both for name in before if name in after))
    if not names:
        return ""
    alone = len(both) == 1
    headings = ["score", *(("untrained", "trained", "change") if alone else (group.title for group, *_ in both))]
    rows = []
    for name in names:
        cells: list[str] = []
        for _, before, after in both:
            pair = [_mean(each.get(name), name) for each in (before, after)]
            cells += [*pair, _change(before.get(name), after.get(name), name)] if alone else [" → ".join(pair)]
        content = "".join(f"<td class=number>{escape(text)}</td>" for text in cells)
        rows.append(f'<tr><th scope="row">{escape(metric_name(name))}</th>{content}</tr>')
    means = ", means over the seeds" if any(len(group.scores) > 1 for group, *_ in both) else ""
    what = f"In per cent{means}; the same test images before the first step of training and after it"
    scored = [each for group, *_ in both for each in group.scores if each.get("untrained")]
    untrained = " or ".join(dict.fromkeys(baseline_in_words(each) for each in scored))
    caption = f"{what}{'.' if alone else ', untrained → trained.'} Untrained: {untrained}."
    return f"<h3>Before and after training</h3>{table(headings, rows, kind='before', caption=caption)}"


def _both_scores(group: RunGroup) -> tuple[Figures, Figures]:
    done = [each for each in group.scores if each.get("untrained") and each.get("test")]
    return figures_of([each["untrained"] for each in done]), figures_of([each["test"] for each in done])


def _mean(value: Mapping[str, Any] | None, name: str) -> str:
    return cell(None if value is None else {**value, "spread": None}, name)


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, name: str) -> str:
    if before is None or after is None:
        return "–"
    text = _mean({"mean": after["mean"] - before["mean"]}, name)
    return text.replace("-", "−") if text.startswith("-") else f"+{text}"


def cost_section(groups: Sequence[RunGroup]) -> Section | None:
    """Time, images per second and memory."""
    rows = []
    for group in groups:
        if not group.scores:
            continue

        def mean(*path: str, scores: Sequence[Any] = group.scores) -> dict[str, Any] | None:
            found = []
            for each in scores:
                value: Any = each
                for key in path:
                    value = value.get(key) if isinstance(value, dict) else None
                found += [] if value is None else [float(value)]
            return figure(found)

        cells = [
            _figure(mean("epochs"), 1),
            _figure(mean("steps"), 0),
            _figure(mean("seconds"), 0, scale=1 / 60 if _is_long(mean("seconds")) else 1)
            + (" min" if _is_long(mean("seconds")) else " s"),
            _figure(mean("cost", "step_ms"), 1),
            _figure(mean("cost", "images_per_second"), 0),
            _figure(mean("cost", "peak_mib"), 0),
            _parameters(group),
        ]
        hardware = " or ".join(sorted({str(each["hardware"]) for each in group.scores})) + _shared(group)
        content = "".join(f"<td class=number>{escape(text)}</td>" for text in cells)
        rows.append(f'<tr><th scope="row">{escape(group.title)}</th>{content}<td>{escape(hardware)}</td></tr>')
    if not rows:
        return None
    headings = ["", "epochs", "steps", "time", "ms per step", "images/s", "peak MiB", "parameters", "hardware"]
    caption = (
        "Means over the seeds. Time is that of the whole run with its evaluations, images per second that of the "
        "training steps alone; memory is the GPU's, or on a CPU the whole process's."
    )
    return Section("cost", "Cost", table(headings, rows, caption=caption, numbers=lambda column: 0 < column < 8))


def reproduce_section(groups: Sequence[RunGroup]) -> Section:
    """The exact recipe, the environment and the command of every group."""
    blocks = []
    for group in groups:
        commands = "\n".join(reproducing_command(run.folder) for run in group.runs)
        body = f"<p>Again, with the recipe that the run left:</p>{code(commands)}"
        environments = [_environment(run.folder) for run in group.runs]
        started = list(dict.fromkeys(each["command"] for each in environments if each and each.get("command")))
        if started:
            body += f"<p>As it was started:</p>{code(chr(10).join(started))}"
        seeds = ", ".join(map(str, group.seeds))
        hashes = ", ".join(str(each["recipe"]) for each in environments if each and each.get("recipe"))
        body += details(
            f"Recipe {hashes}; {'seeds' if len(group.runs) > 1 else 'seed'} {seeds}",
            code(group.recipe.to_yaml().rstrip()),
        )
        for run, each in zip(group.runs, environments, strict=True):
            if each is not None:
                text = json.dumps(each, indent=2, ensure_ascii=False)
                body += details(f"Environment, seed {run.recipe.training.seed}", code(text))
        blocks.append(f"<h3>{escape(group.title)}</h3>{body}")
    return Section("reproduce", "Recipes, environment and commands", "".join(blocks))


def reproducing_command(folder: RunFolder) -> str:
    """A command for a shell that runs a folder's recipe again, beside it."""
    again = folder.path.with_name(f"{folder.path.resolve().name}-again")
    return shlex.join(["nearkin", "train", str(folder.recipe_file), "-o", str(again)])


def _environment(folder: RunFolder) -> dict[str, Any] | None:
    try:
        loaded: dict[str, Any] = json.loads(folder.environment_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return loaded


def _parameters(group: RunGroup) -> str:
    counts = (_environment(group.runs[0].folder) or {}).get("parameters") or {}
    total = sum(int(value) for value in counts.values())
    return f"{total / 1e6:.2f} M" if total else "–"


def _shared(group: RunGroup) -> str:
    """Times of runs that shared the machine are longer than of those that had it to themselves."""
    sharing = max((side_by_side_of(run.folder) for run in group.finished), default=1)
    return f", up to {sharing} runs at a time" if sharing > 1 else ""


def _is_long(value: dict[str, Any] | None) -> bool:
    return value is not None and value["mean"] >= 600


def _figure(value: dict[str, Any] | None, digits: int, *, scale: float = 1) -> str:
    if value is None:
        return "–"
    spread = f" ± {scale * value['spread']:,.{digits}f}" if value["spread"] else ""
    return f"{scale * value['mean']:,.{digits}f}{spread}"


def score_text(value: float) -> str:
    """A fraction in per cent."""
    return cell({"mean": value, "spread": None}, "R@1")
