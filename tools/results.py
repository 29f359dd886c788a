"""Every measured figure of ``README.md``, ``docs/results.md``, ``results/notes/set_ups.md`` and ``recipes/measured.csv``, from ``results/``
and ``benchmarks/results/``.

    python tools/results.py      # or: make results

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->`` and is written here and nowhere else. Its rows
are in ``results/tables.toml``: a name, and what runs of ``results/**/*.jsonl`` must have, such as ``study``, ``group``
and ``row``. A row with ``base``, the name of another row, shows the difference from it with its 95 % interval.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median, mode, stdev
from typing import Any

from nearkin.evaluation.statistics import difference_by_seed

ROOT = Path(__file__).resolve().parents[1]
BACKBONES = ROOT / "recipes" / "backbones.csv"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)
RUNS: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted((ROOT / "results").rglob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]
TABLES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "results" / "tables.toml").read_text(encoding="utf-8"))
RECIPES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "results" / "recipes.toml").read_text(encoding="utf-8"))
RECIPE_SCORES = ("R@1", "MAP@R", "NMI")
DATA = {"cub": "CUB", "cars": "Cars196", "glyphs": "Glyphs", "photos": "photos"}
NOT_RUNS = ("name", "base", "by", "scores", "rows", "best_only")
"""Keys of a row that are not those of a run; the others select its runs."""
CHOSEN_BY = {"conventional": "test classes", "validation": "validation classes", "mlrc": "validation classes"}


def runs(where: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that have these values; of a list any."""
    wanted = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return [run for run in RUNS if all(run.get(key, False) in values for key, values in wanted.items())]


def percent(values: Iterable[float]) -> str:
    """In percent, with the standard deviation where there are several.

    >>> percent([0.70, 0.72]), percent([0.7]), percent([])
    ('71.0\xa0±\xa01.4', '70.0', '–')
    """
    values = list(values)
    shown = f"{100 * mean(values):.1f}" if values else "–"
    return shown if len(values) < 2 else f"{shown}\xa0±\xa0{100 * stdev(values):.1f}"


class Row:
    """A row of a table: its name, its runs, and the rows that it is compared with."""

    def __init__(self, table: dict[str, Any], row: dict[str, Any], data: str) -> None:
        settings = {**table, **row, "data": data}
        self.name, self.base, self.data = row["name"], row.get("base"), data
        self.by: list[str] = settings.get("by", ["seed"])
        self.scores: str = settings.get("scores", "test")
        self.runs = runs({key: value for key, value in settings.items() if key not in NOT_RUNS})

    def values(self, score: str, of: str = "") -> dict[tuple[Any, ...], float]:
        """A score of each run, by what runs of two rows are paired by; of the last epoch where test classes say so."""
        if of == "last" and self.scores != "test":
            return {}
        of = of or self.scores
        held = [run for run in self.runs if of in run and (of != "last" or run["protocol"] == "conventional")]
        values = {tuple(run.get(key) for key in self.by): run[of][score] for run in held}
        if len(values) < len(held):
            raise SystemExit(f"row {self.name!r}: several runs with one {', '.join(self.by)}; add to `by`")
        return values

    def gain(self, base: Row, score: str, of: str = "") -> str:
        """The difference from another row in points with its interval, bold where that leaves out 0."""
        apart = difference_by_seed(self.values(score, of), base.values(score, of))
        if apart is None or self.collapsed or base.collapsed:
            return "–"
        shown = f"{100 * apart.value:+.1f}"
        if apart.interval is not None:
            low, high = apart.interval
            strong = "**" if low > 0 or high < 0 else ""
            shown = f"{strong}{shown}{strong} ({100 * low:+.1f} to {100 * high:+.1f})"
        return shown.replace("-", "−")

    @property
    def collapsed(self) -> str:
        """Behind the name of a row whose network collapsed, so that its difference from its base means nothing."""
        count = sum("collapse" in run for run in self.runs)
        return f" ({'' if count == len(self.runs) else f'{count} of {len(self.runs)} '}collapsed)" if count else ""

    @property
    def chosen_by(self) -> str:
        """What chose the epoch."""
        (protocol,) = {run["protocol"] for run in self.runs}
        return "nothing: the last" if self.scores == "last" else CHOSEN_BY[protocol]

    @property
    def machine(self) -> str:
        """Hardware and date."""
        names = {run.get("hardware", "NVIDIA H200").split(", bf16")[0] for run in self.runs}
        (name,) = {re.sub(r"^CPU, .*?(\d+) cores.*", r"\1 CPU cores", name) for name in names}
        days = sorted({run["date"] for run in self.runs})
        return f"{name.replace('NVIDIA', 'one')}, {days[0]}" + (f" to {days[-1][8:]}" if len(days) > 1 else "")

    @property
    def trained(self) -> list[str]:
        """Backbone, sizes, budget and rate in words, of several the most frequent; what chose the epoch; hardware."""
        recipe = mode(run["recipe"] for run in self.runs)
        return [*recipe.split(", "), f"epoch chosen by the {self.chosen_by}", self.machine]


def rows_of(name: str) -> list[Row]:
    """The rows of a table. What has no runs is refused on the first of its data sets and left out on the others."""
    table = TABLES[name]
    data = table.get("data", "cub")
    several = data if isinstance(data, list) else [data]
    rows = [Row(table, row, each) for each in several for row in table["rows"] if "data" not in row]
    rows += [Row(table, row, row["data"]) for row in table["rows"] if "data" in row]
    if missing := [row.name for row in rows if not row.runs and row.data not in several[1:]]:
        raise SystemExit(f"results/tables.toml, {name}: no run for {'; '.join(missing)}")
    return [row for row in rows if row.runs]


def lines(cells: list[list[str]]) -> str:
    """
    >>> print(lines([["", "R@1"], ["MPA", "67.0"]]))
    | | R@1 |
    |---|---|
    | MPA | 67.0 |
    """
    written = [re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in cells]
    return "\n".join([written[0], f"|{'---|' * len(cells[0])}", *written[1:]])


def table(name: str) -> str:
    """A table of ``docs/results.md`` and below it how its rows were trained."""
    rows = rows_of(name)
    by_name = {(row.data, row.name): row for row in rows}
    bases = {row.base for row in rows if row.base}
    last = any(row.values("R@1", "last") for row in rows) and not TABLES[name].get("best_only")
    several = len({row.data for row in rows}) > 1
    head = ["", *(["data"] if several else []), "runs", "R@1", "MAP@R"]
    head += ["R@1 against base", "MAP@R against base"] if bases else []
    head += ["last R@1", *(["against base"] if bases else [])] if last else []
    cells = [head]
    for row in rows:
        line = [row.name + row.collapsed, *([DATA[row.data]] if several else []), str(len(row.runs))]
        line += [percent(row.values(score).values()) for score in ("R@1", "MAP@R")]
        base = by_name[row.data, row.base] if row.base else None
        if bases:
            line += [row.gain(base, score) if base else "" for score in ("R@1", "MAP@R")]
        if last:
            line.append(percent(row.values("R@1", "last").values()))
            line += [row.gain(base, "R@1", "last") if base else ""] if bases else []
        cells.append(line)
    return f"{lines(cells)}\n\n{how_trained(name, rows)}"


def how_trained(name: str, rows: list[Row]) -> str:
    """What all rows of a table have in common, and where the rest is said."""
    common, own = set_ups(rows)
    words = f"All rows: {', '.join(common)}" if common else ""
    each = f"[Set-up of each row](../results/notes/set_ups.md#{name})." if own else ""
    return " ".join(filter(None, (words and f"{words}.", each)))


def set_ups(rows: list[Row]) -> tuple[list[str], dict[str, list[str]]]:
    """How all rows of a table were trained, and what only some had: the words, and the names of the rows."""
    rows = [row for row in rows if row.scores != "untrained"]
    common = [part for part in rows[0].trained if all(part in row.trained for row in rows)]
    several = len({row.data for row in rows}) > 1
    own: dict[str, list[str]] = {}
    for row in rows:
        if rest := ", ".join(part for part in row.trained if part not in common):
            own.setdefault(rest, []).append(f"{row.name} ({DATA[row.data]})" if several else row.name)
    return common, own


def set_ups_page() -> str:
    """How the rows of every table were trained."""
    parts = [
        "# How the rows of the results were trained\n\n"
        "Written by `make results`; [results](../../docs/results.md) has the scores. Each run's full recipe and command are in its line of `results/`."
    ]
    for name in (name for name in TABLES if name not in BLOCKS):
        common, own = set_ups(rows_of(name))
        parts.append(f"## {name}\n\nAll rows: {', '.join(common)}.")
        if own:
            cells = [["; ".join(dict.fromkeys(names)).replace("**", ""), rest] for rest, names in own.items()]
            parts.append(lines([["rows", "what else"], *cells]))
    return "\n\n".join(parts) + "\n"


def readme_table() -> str:
    """The table of ``README.md``, which also says for each row how the epoch was chosen, and where and when it ran."""
    rows = rows_of("readme")
    by_name = {row.name: row for row in rows}
    cells = [["data", "configuration", "epoch chosen by", "runs", "hardware, date", "R@1", "MAP@R"]]
    for row in rows:
        recall, precision = (percent(row.values(score).values()) for score in ("R@1", "MAP@R"))
        if row.base:
            recall += f" ({row.gain(by_name[row.base], 'R@1').replace(' (', ', ')}"
        cells.append(
            [
                DATA[row.data],
                row.name + row.collapsed,
                row.chosen_by,
                str(len(row.runs)),
                row.machine,
                recall,
                precision,
            ]
        )
    return lines(cells)


def demo() -> str:
    """What the picture's run scored."""
    (run,) = runs({"data": "glyphs", "study": "demo"})
    before, after = (100 * run[part]["R@1"] for part in ("untrained", "test"))
    return (
        f"*`make demo` on characters that training has never seen. Before training {before:.0f} % of the images have a nearest neighbour\n"
        f"of their own class, after it {after:.0f} %. Green: same class, red: another.*"
    )


def milliseconds(value: float) -> str:
    """
    >>> milliseconds(2.96), milliseconds(24.4)
    ('3.0 ms', '24 ms')
    """
    return f"{value:.{1 if value < 10 else 0}f} ms"


def speed() -> str:
    """Times beside those of a peer, from one run each."""
    losses, on_gpu, search, scores, embed, gallery = (
        "2026-11-19-losses-cpu.json",
        "2026-11-19-losses-h200.json",
        "2026-11-19-search-cpu.json",
        "2026-11-19-evaluation-cpu.json",
        "2026-11-16-embed-cpu.json",
        "2026-11-19-own-photos-vit-to-gallery.txt",
    )

    def read(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))

    def loss(file: str, name: str, classes: int) -> list[str]:
        run = next(run for run in read(file) if run["loss"] == name and run["size"].endswith(f"C={classes}"))
        return [milliseconds(run[side]["median_ms"]) for side in ("ours", "theirs")]

    def scored(file: str, case: str) -> list[str]:
        run = next(run for run in read(file) if run["case"] == case)
        return [f"{wall:.2g} s" for wall, _ in run["seconds"].values()]

    anchor, anchor_on_gpu = loss(losses, "ProxyAnchor", 11318), loss(on_gpu, "ProxyAnchor", 11318)
    small, large = scored(scores, "sop"), scored(scores, "large-classes")
    one, many = (
        next(
            [milliseconds(run["ms"][side]) for side in ("nearkin", "faiss")]
            for run in read(search)["results"]
            if run["vectors"] == "around kinds" and run["queries"] == count
        )
        for count in (1, 64)
    )
    sides = {each["side"]: median(turn["cpu_ms_per_image"] for turn in each["rounds"]) for each in read(embed)}
    log = (ROOT / "benchmarks" / "results" / gallery).read_text(encoding="utf-8")
    train, index, serve = re.findall(r"^ {4}\w.*? (\d+ s)$", log, flags=re.M)[:3]
    rows = [
        ("1,000 photos to the gallery with a ViT-Tiny: train, index, serve", "2 CPU cores", gallery, f"{train}, {index}, {serve}", "–"),
        ("Proxy-Anchor forward and backward, 11,318 classes", "2 CPU cores", losses, anchor[0], f"pytorch-metric-learning {anchor[1]}"),
        ("the same", "one H200", on_gpu, anchor_on_gpu[0], f"pytorch-metric-learning {anchor_on_gpu[1]}"),
        ("one exact search among 100,000 vectors of 512-d", "2 CPU cores", search, one[0], f"faiss, exact {one[1]}"),
        ("64 of them together", "2 CPU cores", search, many[0], f"faiss, exact {many[1]}"),
        ("eight exact scores of 60,502 vectors, 11,316 classes", "2 CPU cores", scores, small[0], f"faiss, twelve neighbours only, {small[1]}"),
        ("the same of 60,000 vectors, ten classes", "2 CPU cores", scores, large[0], f"faiss, twelve neighbours only, {large[1]}"),
        ("embedding a photo, EfficientNet-lite0, processor time", "1 CPU core", embed, f"{sides['nearkin']:.0f} ms", f"plain torch {sides['plain torch']:.0f} ms"),
    ]  # fmt: skip
    head = ["", "hardware, date", "nearkin", "peer, same run"]
    return lines([head, *([what, f"{where}, {file[:10]}", ours, theirs] for what, where, file, ours, theirs in rows)])


BLOCKS = {"demo": demo, "results": readme_table, "speed": speed}
"""Of the README; every other block is a table of ``results/tables.toml``."""


def written(text: str) -> str:
    """A page with its figures as the files have them."""
    return BLOCK.sub(lambda block: f"{block[1]}{BLOCKS.get(block[2], lambda: table(block[2]))()}\n{block[4]}", text)


def measured_csv() -> str:
    """The mean scores of the recipes in ``results/recipes.toml``, for ``nearkin list recipes``."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", *RECIPE_SCORES, "runs", "note", "published"])
    for name, settings in RECIPES.items():
        where = {"data": name.partition("/")[0], **settings}
        note, published = where.pop("note", ""), where.pop("published", "")
        if not (found := runs(where)):
            raise SystemExit(f"results/recipes.toml, {name}: no such run")
        scores = [[run["test"][score] for run in found if score in run["test"]] for score in RECIPE_SCORES]
        means = [f"{100 * mean(values):.1f}" if len(values) == len(found) else "" for values in scores]
        writer.writerow([name, *means, len(found), note, published])
    return text.getvalue()


def backbones() -> str:
    """``recipes/backbones.csv``, which ``nearkin list backbones`` shows: the newest figures of every backbone."""
    newest: dict[str, dict[str, Any]] = {}
    for file in sorted((ROOT / "benchmarks" / "results").glob("*-backbones*.json")):
        for name, figures in json.loads(file.read_text(encoding="utf-8"))["backbones"].items():
            newest[name] = newest.get(name, {}) | figures
    lines = ["name,weights,million parameters,CPU ms a photo,R@1 on CUB,R@1 on the held-out half"]
    for name, figures in sorted(newest.items()):
        scores = [f"{100 * figures[part]['R@1']:.1f}" if part in figures else "" for part in ("cub", "held_out_half")]
        parameters, time = f"{figures['parameters'] / 1e6:.1f}", f"{figures['cpu_ms_a_photo']:.3g}"
        lines.append(",".join([name, figures.get("weights", ""), parameters, time, *scores]))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    (ROOT / "recipes" / "measured.csv").write_text(measured_csv(), encoding="utf-8")
    (ROOT / "results" / "notes" / "set_ups.md").write_text(set_ups_page(), encoding="utf-8")
    BACKBONES.write_text(backbones(), encoding="utf-8")
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        page.write_text(written(before), encoding="utf-8")
        print(
            f"{page.name} {'has the figures of the files' if written(before) == before else 'was brought up to date'}"
        )
