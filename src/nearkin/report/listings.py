"""Lists of what there is to choose from, read from the code: losses, methods, scores, backbones, figures, keys.

A list is a table for the terminal, records for programs, and a page of ``docs/``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from nearkin import losses
from nearkin.catalogue import keyword_options, plot_names
from nearkin.data.benchmarks import benchmarks
from nearkin.data.source import data_root
from nearkin.encoders.architectures import backbones, families, measured
from nearkin.evaluation import scores
from nearkin.recipe import Recipe
from nearkin.report.figures import figure_module
from nearkin.report.table import NOTHING, markdown_table
from nearkin.training import methods


@dataclass(frozen=True)
class Listing:
    """Records with a heading; ``shown`` are the keys that have a column."""

    title: str
    intro: str
    """The opening of the page."""
    shown: tuple[str, ...]
    records: tuple[Mapping[str, Any], ...]

    def terminal(self) -> Group:
        """For a terminal, however narrow: what a part is and, below it, its other columns. Names are never broken."""
        rows = RichTable.grid(padding=(0, 2))
        rows.add_column(no_wrap=True, style="bold")
        rows.add_column(overflow="fold")
        text = next(key for key in ("summary", "meaning", "title") if key in self.shown)
        for record in self.records:
            rows.add_row(record["name"], Text(_cell(record[text])))
            others = [key for key in self.shown if key not in ("name", text) and record[key]]
            if others:
                rows.add_row("", Text("; ".join(f"{key}: {_cell(record[key])}" for key in others), style="dim"))
        return Group(Text(self.title, style="bold"), rows)

    def page(self) -> str:
        """As Markdown, with names and options as code."""
        code = ("name", "class", "command", "options", "default")
        rows = [[_cell(record[key], code=key in code) for key in self.shown] for record in self.records]
        intro = textwrap.fill(f"{self.intro} `make added` writes this page.", 110)
        return f"# {self.title}\n\n{intro}\n\n{markdown_table([self.shown, *rows])}\n"


def list_losses() -> Listing:
    """The losses and their options."""
    intro = (
        "The files of `src/nearkin/losses/`; the name is the value of `objective.name` in a recipe. A proxy loss is "
        "`Loss(num_classes, dim, *, …)`, called `loss(embeddings, labels)`. A pair loss is `Loss(*, …)`, called "
        "`loss(embeddings, labels, references=None, reference_labels=None)`. A wrapper takes a pair loss."
    )
    records = (
        {"name": name, "class": loss.__name__, "kind": losses.kind(loss), **_described(loss)}
        for name, loss in losses.catalogue().items()
    )
    return Listing("Losses", intro, ("name", "class", "kind", "summary", "options"), tuple(records))


def list_methods() -> Listing:
    """The training methods and their options."""
    intro = (
        "The files of `src/nearkin/training/methods/`, which change the training loop through its hooks. The name is "
        "the value of `method.name` in a recipe."
    )
    known = methods.catalogue().items()
    records = tuple({"name": name, "class": method.__name__, **_described(method)} for name, method in known)
    return Listing("Methods", intro, ("name", "class", "summary", "options"), records)


def list_scores() -> Listing:
    """The scores, a line for each name that a recipe may ask for."""
    intro = (
        "The files of `src/nearkin/evaluation/scores/`. Each, with a number for k, is a name for `protocol.scores`, "
        "which adds it to the scores that the other keys of the protocol ask for."
    )
    records = (
        {
            "name": name,
            "file": file,
            "unit": "%" if score.in_percent else "as it is",
            "digits": score.digits,
            "better": "higher" if score.higher_is_better else "lower",
            "measured": "every evaluation" if score.every_evaluation else "at the end",
            "meaning": meaning,
        }
        for file, score in scores.catalogue().items()
        for name, meaning in score.meanings.items()
    )
    return Listing("Scores", intro, ("name", "unit", "better", "measured", "meaning"), tuple(records))


def list_backbones() -> Listing:
    """The backbones and, with ``<model>`` for a name, the families of other libraries."""
    intro = (
        "The files of `src/nearkin/encoders/architectures/`. The name is the value of `encoder.backbone` in a recipe; "
        "the options go under `encoder.options`. What stands under weights is known to work as `encoder.weights`: "
        "`hub:` needs the extra `hub`, `imagenet` the extra of the summary, and a file has to be brought. "
        "CPU ms is what the network alone takes of one core; two cores take about half of it by the clock. R@1 is that "
        "of the pooled features before any training, one plain crop a photo: on CUB's test classes, and on the second "
        "half of its training classes. ImageNet-21k contains birds. `benchmarks/backbones.py` measures all of it."
    )
    every = measured()
    nothing = dict.fromkeys(every["small"], "")
    builders: list[tuple[str, Callable[..., Any]]] = [*sorted(backbones().items())]
    builders += [(f"{prefix}:<model>", builder) for prefix, builder in sorted(families().items())]
    records = []
    for name, builder in builders:
        figures = every.get(name, nothing)
        known = {"weights": getattr(builder, "weights", figures["weights"]), "licence": getattr(builder, "licence", "")}
        numbers = {key: float(value) if value else "not measured" for key, value in figures.items() if key != "weights"}
        records.append({"name": name, **_described(builder), **known, **numbers})
    shown = ("name", "summary", "weights", "licence", *(key for key in nothing if key != "weights"), "options")
    return Listing("Backbones", intro, shown, tuple(records))


def list_plots() -> Listing:
    """The figures that ``nearkin plot`` draws."""
    intro = (
        "The files of `src/nearkin/report/figures/`, which `nearkin plot` saves and `nearkin report` embeds. The name "
        "is a value of `nearkin plot --only`."
    )
    records = tuple({"name": name, "summary": summary_of(figure_module(name))} for name in plot_names())
    return Listing("Figures", intro, ("name", "summary"), records)


def list_keys() -> Listing:
    """The keys of a recipe, with their values, defaults and meanings."""
    intro = (
        "The fields of the sections in `src/nearkin/recipe/`. A key is written in a recipe under its section, or on "
        "the command line as `key=value`. The options of a [loss](losses.md) or [method](methods.md) are written next "
        "to `objective.name` or `method.name`."
    )
    records: list[dict[str, Any]] = []
    for section, values in vars(Recipe()).items():
        meanings, hints = _field_docstrings(type(values)), typing.get_type_hints(type(values))
        for key, default in vars(values).items():
            if section in ("objective", "method") and key == "options":
                continue  # they are written next to the name
            texts = {"values": values_of(hints[key]), "default": json.dumps(default), "meaning": meanings.get(key)}
            records.append({"name": f"{section}.{key}", **texts})
    return Listing("Keys of a recipe", intro, ("name", "values", "default", "meaning"), tuple(records))


LISTINGS = {
    "losses": list_losses,
    "methods": list_methods,
    "scores": list_scores,
    "backbones": list_backbones,
    "plots": list_plots,
    "keys": list_keys,
}


def values_of(hint: Any) -> str:
    """The values of a type, in words.

    >>> values_of(tuple[int, ...]), values_of(typing.Literal["l2", "ball"] | None)
    ('list of whole numbers', 'l2, ball or null')
    """
    plain = {str: "text", int: "whole number", float: "number", bool: "true, false", type(None): "null"}
    if hint in plain:
        return plain[hint]
    inner = [part for part in typing.get_args(hint) if part is not Ellipsis]
    match typing.get_origin(hint):
        case typing.Literal:
            return ", ".join(inner)
        case builtins.tuple:
            if Ellipsis not in typing.get_args(hint):
                return "two numbers"
            return f"list of {values_of(inner[0])}{'' if typing.get_origin(inner[0]) is typing.Literal else 's'}"
        case types.UnionType | typing.Union:
            return " or ".join(map(values_of, inner))
    return "keys and values"


def _field_docstrings(section: type) -> dict[str, str]:
    """The docstring below each field of a class, on one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    docstrings = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docstrings[field.target.id] = " ".join(str(ast.literal_eval(below.value)).replace("``", "`").split())
    return docstrings


def list_datasets(given: Path | None) -> Listing:
    """The benchmarks: where they are below the data root, or are expected and how to get them."""
    root, records = data_root(given), []
    for benchmark in benchmarks().values():
        folder = benchmark.find(root or Path("data"))
        problem = benchmark.problem(folder) if folder else None
        expected = (root or Path("data")) / benchmark.folders[0] if benchmark.folders else None
        location = "comes with nearkin" if benchmark.embedded else folder and str(folder)
        counts = {split: list(pair) for split, pair in benchmark.counts.items()}
        records.append(
            {
                "name": benchmark.name,
                "title": benchmark.title,
                "counts": counts,
                "images (classes)": ", ".join(f"{split} {n:,} ({c:,})" for split, (n, c) in counts.items()),
                "home": benchmark.home,
                "found": location,
                "here": f"{location}, but {problem}" if problem else location,
                "problem": problem,
                "expected in": None if location else str(expected),
                "to get it": None if location and not problem else benchmark.how_to_get,
            }
        )
    where = f"under {root}" if root else "(name their folder with --data-root or NEARKIN_DATA)"
    columns = ("name", "title", "images (classes)", "here", "expected in", "home", "to get it")
    return Listing(f"Benchmarks {where}", "", columns, tuple(records))


def summary_of(part: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _described(part: Callable[..., Any]) -> dict[str, Any]:
    defaults = {name: option.default for name, option in keyword_options(part).items()}
    options = {name: "required" if value is inspect.Parameter.empty else str(value) for name, value in defaults.items()}
    return {"summary": summary_of(part), "options": options}


def _cell(value: Any, *, code: bool = False) -> str:
    quote = "`" if code else ""
    if isinstance(value, Mapping):
        return ", ".join(f"{quote}{key}={option}{quote}" for key, option in value.items()) or NOTHING
    return NOTHING if value is None else f"{quote}{value}{quote}"
