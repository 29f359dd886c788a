"""What there is to choose from, read off the files: losses, methods, scores, backbones, benchmarks, plots.

Each list is a table for the terminal, records for programs, and a page of ``docs/``.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin import losses
from nearkin.catalogue import keyword_options, plot_names
from nearkin.data.benchmarks import benchmarks
from nearkin.encoders.architectures import backbones, families
from nearkin.evaluation import scores
from nearkin.recipe import Recipe
from nearkin.report.formats import markdown_table
from nearkin.report.table import NOTHING, Part, Table
from nearkin.training import methods


@dataclass(frozen=True)
class Listing:
    """Records with a heading; ``shown`` are the keys that have a column."""

    title: str
    intro: str
    """Opens the page, and says how it is written."""
    shown: tuple[str, ...]
    records: tuple[Mapping[str, Any], ...]

    def table(self) -> Table:
        cells = [[_cell(record[key]) for key in self.shown] for record in self.records]
        return Table(self.title, (Part.of(self.shown, cells, texts=len(self.shown)),), records=self.records)

    def page(self) -> str:
        """As Markdown; names and options are code."""
        code = ("name", "class", "command", "options", "default")
        rows = [[_cell(record[key], code=key in code) for key in self.shown] for record in self.records]
        return f"# {self.title}\n\n{self.intro}\n\n{markdown_table([self.shown, *rows])}\n"


def list_losses() -> Listing:
    """The losses, their kinds and options."""
    intro = (
        "Read off the files in `src/nearkin/losses/` by `nearkin losses --markdown > docs/losses.md`. Proxy\n"
        "losses are `Loss(num_classes, dim, *, …)`, called `loss(embeddings, labels)`; pair losses are\n"
        "`Loss(*, …)`, called `loss(embeddings, labels, references=None, reference_labels=None)`; a wrapper\n"
        "takes a pair loss. The name is that of a recipe's `objective.name`."
    )
    records = (
        {"name": name, "class": loss.__name__, "kind": losses.kind(loss), **_described(loss)}
        for name, loss in losses.catalogue().items()
    )
    return Listing("Losses", intro, ("name", "class", "kind", "summary", "options"), tuple(records))


def list_methods() -> Listing:
    """The training methods and their options."""
    intro = (
        "Read off the files in `src/nearkin/training/methods/` by `nearkin methods --markdown`: what "
        "changes the one training loop through its hooks. The name is that of a recipe's `method.name`; every\n"
        "method goes with the losses that its check admits."
    )
    records = (
        {"name": name, "class": method.__name__, **_described(method)} for name, method in methods.catalogue().items()
    )
    return Listing("Methods", intro, ("name", "class", "summary", "options"), tuple(records))


def list_scores() -> Listing:
    """The scores, a line for each name that a recipe may ask for."""
    intro = (
        "Read off the files in `src/nearkin/evaluation/scores/` by `nearkin scores --markdown >\n"
        "docs/scores.md`. Each, with a number for k, is a name for `protocol.scores`, which measures it\n"
        "besides what the other keys of the protocol ask for."
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
    """The backbones and, with ``<model>`` for a name, the families that others have trained."""
    intro = (
        "Read off the files in `src/nearkin/encoders/architectures/` by `nearkin backbones --markdown >\n"
        "docs/backbones.md`. The name is that of a recipe's `encoder.backbone`, the options go under\n"
        "`encoder.options`."
    )
    builders: list[tuple[str, Callable[..., Any]]] = [*sorted(backbones().items())]
    builders += [(f"{prefix}:<model>", builder) for prefix, builder in sorted(families().items())]
    records = tuple({"name": name, **_described(builder)} for name, builder in builders)
    return Listing("Backbones", intro, ("name", "summary", "options"), records)


def list_plots() -> Listing:
    """The figures that ``nearkin plot`` draws."""
    intro = (
        "Read off the files in `src/nearkin/report/figures/` by `nearkin plots --markdown > docs/plots.md`. The name\n"
        "is what `nearkin plot --only` takes."
    )
    modules = {name: f"nearkin.report.figures.{name.replace('-', '_')}" for name in plot_names()}
    records = tuple(
        {"name": name, "summary": summary_of(importlib.import_module(path))} for name, path in modules.items()
    )
    return Listing("Figures", intro, ("name", "summary"), records)


def list_keys() -> Listing:
    """The keys of a recipe, what they may be and what they are where a recipe leaves them out."""
    intro = (
        "Read off `src/nearkin/recipe/recipe.py` by `nearkin keys --markdown > docs/recipe_keys.md`. Each stands in\n"
        "a recipe under its section, or on the command line as `key=value`. Beside `objective.name` and `method.name`\n"
        "stand the options of that [loss](losses.md) or [method](methods.md)."
    )
    recipe = Recipe()
    records: list[dict[str, Any]] = []
    for section in dataclasses.fields(recipe):
        values = getattr(recipe, section.name)
        meanings, kinds = _field_docstrings(type(values)), typing.get_type_hints(type(values))
        for each in dataclasses.fields(values):
            if section.name in ("objective", "method") and each.name == "options":
                continue  # they stand beside the name
            record = {
                "name": f"{section.name}.{each.name}",
                "values": values_of(kinds[each.name]),
                "default": json.dumps(getattr(values, each.name)),
                "meaning": meanings.get(each.name),
            }
            records.append(record)
    return Listing("Keys of a recipe", intro, ("name", "values", "default", "meaning"), tuple(records))


def values_of(kind: Any) -> str:
    """What a key of some type may be, in words.

    >>> values_of(tuple[int, ...]), values_of(typing.Literal["l2", "ball"] | None)
    ('list of whole numbers', 'l2, ball or null')
    """
    plain = {str: "text", int: "whole number", float: "number", bool: "true, false", type(None): "null"}
    if kind in plain:
        return plain[kind]
    inner = [each for each in typing.get_args(kind) if each is not Ellipsis]
    match typing.get_origin(kind):
        case typing.Literal:
            return ", ".join(inner)
        case builtins.tuple:
            return f"list of {values_of(inner[0])}s" if Ellipsis in typing.get_args(kind) else "two numbers"
        case types.UnionType | typing.Union:
            return " or ".join(map(values_of, inner))
    return "keys and values"


def _field_docstrings(section: type) -> dict[str, str]:
    """What stands below each field of a class, on one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).replace("``", "`").split())
    return found


def list_datasets(root: Path | None) -> Listing:
    """The benchmarks, and what is found of them below ``root``."""
    records = []
    for benchmark in benchmarks().values():
        folder = benchmark.find(root or Path("data"))
        problem = benchmark.problem(folder) if folder else None
        place = "comes with nearkin" if benchmark.embedded else (str(folder) if folder else None)
        counts = {split: list(pair) for split, pair in benchmark.counts.items()}
        records.append(
            {
                "name": benchmark.name,
                "title": benchmark.title,
                "counts": counts,
                "images (classes)": ", ".join(f"{split} {n:,} ({c:,})" for split, (n, c) in counts.items()),
                "home": benchmark.home,
                "found": place,
                "here": problem or place,
                "problem": problem,
            }
        )
    where = f"under {root}" if root else "(no data root given)"
    return Listing(f"Benchmarks {where}", "", ("name", "title", "images (classes)", "here"), tuple(records))


def summary_of(part: Any) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _described(part: Callable[..., Any]) -> dict[str, Any]:
    return {"summary": summary_of(part), "options": option_texts(keyword_options(part))}


def option_texts(parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
    return {key: "required" if each.default is each.empty else str(each.default) for key, each in parameters.items()}


def _cell(value: Any, *, code: bool = False) -> str:
    quote = "`" if code else ""
    if isinstance(value, Mapping):
        return ", ".join(f"{quote}{key}={each}{quote}" for key, each in value.items()) or NOTHING
    return NOTHING if value is None else f"{quote}{value}{quote}"
