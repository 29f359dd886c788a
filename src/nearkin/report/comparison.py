"""A comparison for people: tables for the terminal, Markdown and CSV, and a picture, each with its conditions."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin.report.formats import csv_text, markdown_table
from nearkin.report.plots._style import end_at_all
from nearkin.runs.folder import write_atomically
from nearkin.studies.study import rank_correlation

Summary = Sequence[Mapping[str, Any]]
"""What :func:`nearkin.studies.study.summarise` returns."""

HEADINGS = {"R@1": "R@1", "MAP@R": "MAP@R", "nDCG@8": "nDCG@8", "covering_radius": "covering radius"}
MARKS = {"above": "▲", "below": "▼", "within the spread": "≈", None: ""}
RUNS_TO_CORRELATE, GOOD_CORRELATION = 8, 0.5
BASE, METHOD, BAND = "#555555", "#1f6fb4", "#ebebeb"


def comparison_table(summary: Summary) -> Group:
    """The comparison for a terminal, narrow enough for eighty columns."""
    parts: list[Any] = [Text(title_of(summary), style="bold")]
    for title, lines in _tables(summary):
        heading, *rows = lines
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for number, name in enumerate(heading):
            table.add_column(name.replace(" ", "\n"), justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell.replace(" ± ", "±"), style=_style(cell)) for cell in row))
        parts += [Text(title, style="bold")] if title else []
        parts.append(table)
    parts += [Text(line, style="dim") for line in conditions(summary)]
    parts += [Text(line, style="yellow") for line in warnings_of(summary)]
    return Group(*parts)


def comparison_markdown(summary: Summary) -> str:
    """The comparison as Markdown."""
    lines = [f"# {title_of(summary)}", "", *conditions(summary)]
    for title, rows in _tables(summary):
        lines += ["", f"## {title}"] if title else []
        lines += ["", markdown_table(rows)]
    if said := warnings_of(summary):
        lines += ["", "## Mind", "", *(f"- {line}" for line in said)]
    return "\n".join(lines) + "\n"


def comparison_csv(summary: Summary) -> str:
    """One line per row, figures as fractions with all their digits, mean and spread in columns of their own."""
    names = [name for name in HEADINGS if any(name in row["metrics"] for row in summary)]
    lasts = [name for name in HEADINGS if any(name in row["last"] for row in summary)]
    records = []
    for row in families(summary):
        record: dict[str, Any] = {key: row[key] for key in ("name", "title", "base", "budget")}
        record["seeds"] = " ".join(map(str, row["seeds"]))
        figures = {name: row["metrics"].get(name) for name in names}
        figures |= {f"last {name}": row["last"].get(name) for name in lasts} | {"step_ms": row["step_ms"]}
        for name, value in figures.items():
            record[name] = None if value is None else value["mean"]
            record[f"{name} spread"] = None if value is None else value["spread"]
        for name, compared in row.get("against", {}).items():
            record[f"{name} minus base"] = compared["difference"]
            record[f"{name} verdict"] = compared["verdict"]
        record |= {key: "; ".join(row[key]) for key in ("data", "protocol", "selection", "hardware")}
        record["recipes"] = " ".join(row["recipes"])
        records.append(record)
    return csv_text(records)


def comparison_json(summary: Summary) -> dict[str, Any]:
    """Everything that is known, for programs."""
    return {
        "title": title_of(summary),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "conditions": conditions(summary),
        "warnings": warnings_of(summary),
        "rows": [dict(row) for row in families(summary)],
    }


def write_comparison(summary: Summary, folder: str | Path) -> list[Path]:
    """Write ``comparison.md``, ``.csv`` and ``.json``, and ``comparison.png`` where there is anything to draw."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "comparison.md": comparison_markdown(summary),
        "comparison.csv": comparison_csv(summary),
        "comparison.json": json.dumps(comparison_json(summary), indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    files = [folder / name for name in contents]
    if any(row["metrics"] for row in summary):
        files.append(draw_comparison(summary, folder / "comparison.png"))
    return files


def draw_comparison(summary: Summary, file: Path) -> Path:
    """A dot for every row with a bar for its spread and a small dot for each seed, a method below its base.

    The grey band is the spread of the base, from its own line down to the last of its methods.
    """
    from matplotlib.figure import Figure

    rows = [row for row in families(summary) if row["metrics"]]
    names = [name for name in ("R@1", "MAP@R") if any(name in row["metrics"] for row in rows)]
    figure = Figure(figsize=(4.0 + 3.4 * len(names), 1.8 + 0.3 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(panels, names, strict=True):
        for place, row in enumerate(rows):
            value = row["metrics"].get(name)
            if value is None:
                continue
            colour = METHOD if row["depth"] else BASE
            followers = _followers(rows, place)
            if followers:
                _draw_base(axis, value, place, place + followers)
            axis.plot([100 * x for x in value["values"]], [place] * len(value["values"]), ".", color=colour, alpha=0.4)
            bar = None if value["spread"] is None else 100 * value["spread"]
            axis.errorbar(100 * value["mean"], place, xerr=bar, fmt="o", color=colour, capsize=3, markersize=6)
        axis.set_title(f"{name} (%)", fontsize=10)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.margins(x=0.08)
        left, right = axis.get_xlim()
        axis.set_xlim(max(left, 0.0), right)
        end_at_all(axis, "x")
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    titles = ["    " * row["depth"] + row["title"] + _fewer_seeds(row, rows) for row in rows]
    panels[0].set_yticks(range(len(rows)), titles, ha="left", fontsize=9)
    # Labels that start at one line show by their indent what belongs to what; the longest decides how far out it is.
    panels[0].tick_params(axis="y", pad=5.6 * max(len(title) for title in titles))
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.suptitle(title_of(rows), fontsize=11)
    figure.supxlabel("\n".join(textwrap.wrap(conditions(rows)[0], 105)), fontsize=7, color="#555555")
    figure.savefig(file, dpi=130, facecolor="white")
    return file


def families(summary: Summary) -> list[dict[str, Any]]:
    """Every row with its base above it; ``depth`` says how many bases a row has among those that are shown."""
    known = {row["name"] for row in summary}

    def below(base: str | None, depth: int) -> list[dict[str, Any]]:
        found = []
        for row in summary:
            if (row["base"] if row["base"] in known else None) == base:
                found += [{**row, "depth": depth}, *below(row["name"], depth + 1)]
        return found

    return below(None, 0)


def _tables(summary: Summary) -> list[tuple[str, list[list[str]]]]:
    """Scores; best beside last epoch, or what chose the epoch; rows beside their base. Titles, headings, cells."""
    tables = [("", score_lines(summary)), ("Best and last epoch", last_lines(summary))]
    tables.append(("How the epoch was chosen", chosen_lines(summary)))
    tables.append(("Against their base", base_lines(summary)))
    return [(title, lines) for title, lines in tables if len(lines) > 1]


def score_lines(summary: Summary) -> list[list[str]]:
    """Headings and cells of the scores: mean ± spread, in per cent, the covering radius as it is."""
    rows = families(summary)
    names = [name for name in HEADINGS if any(name in row["metrics"] for row in rows)]
    lines = [["", "n", *(HEADINGS[name] for name in names), "ms/step"]]
    for row in rows:
        cells = [figure_text(row["metrics"].get(name), name) for name in names]
        lines.append([_indented(row), str(len(row["seeds"])), *cells, figure_text(row["step_ms"], "step_ms")])
    return lines


def last_lines(summary: Summary) -> list[list[str]]:
    """Headings and cells of the best evaluation beside the last, of the rows that have both."""
    rows = [row for row in families(summary) if row["last"]]
    names = [name for name in HEADINGS if any(name in row["last"] for row in rows)]
    lines = [["", *(f"{which} {name}" for name in names for which in ("best", "last"))]]
    for row in rows:
        cells = [figure_text(row[which].get(name), name) for name in names for which in ("metrics", "last")]
        lines.append([_indented(row), *cells])
    return lines


def chosen_lines(summary: Summary) -> list[list[str]]:
    """Headings and cells of the validation scores by which epochs were chosen, and of those epochs."""
    rows = [row for row in families(summary) if row.get("chosen")]
    names = list(dict.fromkeys(row["chosen"]["score"] for row in rows))
    lines = [["", *(f"validation {name}" for name in names), "epochs"]]
    for row in rows:
        chosen = row["chosen"]
        cells = [figure_text(chosen["validation"] if chosen["score"] == name else None, name) for name in names]
        epochs = ", ".join(f"{epoch:.3g}" for epoch in row.get("best_epochs", ()) if epoch is not None)
        lines.append([_indented(row), *cells, epochs])
    return lines


def base_lines(summary: Summary) -> list[list[str]]:
    """Headings and cells of the differences to the base, in points, with what the spread makes of them."""
    rows = [row for row in families(summary) if row.get("against")]
    names = list(dict.fromkeys(name for row in rows for name in row["against"]))
    titles = {row["name"]: row["title"] for row in summary}
    lines = [["", "base", *names]]
    for row in rows:
        cells = [_difference_text(row["against"].get(name)) for name in names]
        lines.append([row["title"], titles[row["base"]], *cells])
    return lines


def figure_text(value: Mapping[str, Any] | None, name: str) -> str:
    """``mean ± spread`` with the digits that suit the figure; one seed has no spread.

    >>> figure_text({"mean": 0.6571, "spread": 0.0042}, "R@1"), figure_text({"mean": 0.5, "spread": None}, "R@1")
    ('65.7 ± 0.4', '50.0')
    >>> figure_text({"mean": 41.37, "spread": 0.52}, "step_ms"), figure_text({"mean": 284.2, "spread": 11.6}, "step_ms")
    ('41.4 ± 0.5', '284 ± 12')
    """
    if value is None:
        return "–"
    # Of a long step the tenth of a millisecond says nothing and takes room.
    scale, digits = {"covering_radius": (1, 3), "step_ms": (1, int(value["mean"] < 100))}.get(name, (100, 1))
    spread = "" if value["spread"] is None else f" ± {scale * value['spread']:.{digits}f}"
    return f"{scale * value['mean']:.{digits}f}{spread}"


def title_of(summary: Summary) -> str:
    data = _said(summary, "data")
    classes = _said(summary, "test_classes")
    return f"Comparison on {', '.join(data) or 'no finished run'}" + (f", {'; '.join(classes)}" if classes else "")


def conditions(summary: Summary) -> list[str]:
    """What every figure holds for: protocol, selection, seeds, budget, hardware; and how to read it."""
    rows = [row for row in summary if row["seeds"]]
    seeds = sorted({seed for row in rows for seed in row["seeds"]})
    sharing = sorted({number for row in rows for number in row["side_by_side"]})
    parts = [
        f"{' and '.join(_said(rows, 'protocol'))} protocol, {' or '.join(_said(rows, 'selection'))}",
        *sorted({said for row in rows for said in row.get("training_conditions", ())}),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        " or ".join(dict.fromkeys(str(row["budget"]) for row in rows)),
        " and ".join(_said(rows, "hardware"))
        + (f", up to {sharing[-1]} runs at a time" if max(sharing, default=1) > 1 else ""),
    ]
    if not rows:
        return ["No run has finished."]
    numbers = {len(row["seeds"]) for row in rows}
    reading = "One seed, so no spread."
    if numbers != {1}:
        reading = f"Mean ± sample standard deviation over n seeds{', none with one' if 1 in numbers else ''}."
    if any(compared["verdict"] for row in rows for compared in row.get("against", {}).values()):
        reading += " ▲ above the base, ▼ below, ≈ within the spread: the root of the sum of both variances."
    return ["; ".join(parts) + ".", reading]


def warnings_of(summary: Summary) -> list[str]:
    """What makes figures of one table hard to compare, and which runs are missing from it and why."""
    rows = [row for row in summary if row["seeds"]]
    lines = []
    for key, what in (
        ("protocol", "protocols"),
        ("selection", "ways of choosing the epoch"),
        ("hardware", "hardware"),
        ("data", "data"),
    ):
        if len(_said(rows, key)) > 1:
            by_value = {
                value: ", ".join(str(row["title"]) for row in rows if value in row[key]) for value in _said(rows, key)
            }
            listing = "; ".join(f"{value} ({titles})" for value, titles in by_value.items())
            lines.append(f"Mixed {what}: {listing}.")
    if len({number for row in rows for number in row["side_by_side"]}) > 1:
        lines.append("Mixed load: some runs had the machine to themselves and some did not; do not compare ms/step.")
    if len({tuple(row["seeds"]) for row in rows}) > 1:
        lines.append("Not every row has the same seeds.")
    lines += _doubts_about_validation(rows)
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in summary:
        for problem in row["problems"]:
            reason = (problem["status"], problem["reason"] or "no reason given")
            reasons.setdefault(reason, []).append(f"{row['title']} seed {problem['seed']}")
    return lines + [f"{status}: {', '.join(runs)}: {reason}" for (status, reason), runs in reasons.items()]


def _doubts_about_validation(rows: Summary) -> list[str]:
    """A line where validation classes put the runs in another order than the test classes do."""
    chosen = [row["chosen"] for row in rows if row.get("chosen")]
    if len({each["score"] for each in chosen}) != 1:
        return []
    validation, test = (
        [value for each in chosen for value in each[which]["values"]] for which in ("validation", "test")
    )
    if len(validation) < RUNS_TO_CORRELATE:
        return []
    rho = rank_correlation(validation, test)
    if not rho < GOOD_CORRELATION:
        return []
    score = chosen[0]["score"]
    return [
        f"The validation classes put these {len(validation)} runs in another order than the test classes (rank "
        f"correlation of {score} {rho:.2f}): what they choose, an epoch or a setting, may be far from the best. "
        f"More of them help (protocol.validation_share), or another score (protocol.select_by)."
    ]


def _said(summary: Summary, key: str) -> list[str]:
    return sorted({value for row in summary for value in row[key]})


def _difference_text(compared: Mapping[str, Any] | None) -> str:
    if compared is None:
        return "–"
    points = f"{100 * compared['difference']:+.1f}".replace("-", "−")
    return f"{points} {MARKS[compared['verdict']]}".strip()


def _style(cell: str) -> str:
    return "green" if "▲" in cell else ("red" if "▼" in cell else "")


def _indented(row: Mapping[str, Any]) -> str:
    return f"{'· ' * row['depth']}{row['title']}"


def _followers(rows: Sequence[Mapping[str, Any]], place: int) -> int:
    """How many rows below ``place`` belong to it."""
    depth, count = rows[place]["depth"], 0
    for row in rows[place + 1 :]:
        if row["depth"] <= depth:
            break
        count += 1
    return count


def _draw_base(axis: Any, value: Mapping[str, Any], first: int, last: int) -> None:
    middle, half = 100 * value["mean"], 100 * (value["spread"] or 0.0)
    axis.fill_betweenx([first - 0.4, last + 0.4], middle - half, middle + half, color=BAND, zorder=0.5, linewidth=0)
    axis.plot([middle, middle], [first, last + 0.4], "--", color=BASE, linewidth=0.9, zorder=0.6)


def _fewer_seeds(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    most = max(len(other["seeds"]) for other in rows)
    return f" ({len(row['seeds'])} of {most} seeds)" if len(row["seeds"]) < most else ""
