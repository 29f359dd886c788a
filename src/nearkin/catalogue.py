"""Catalogues read off the files of a package: one part, one file, the file's name is the part's name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any


def modules_of(package: str, path: Iterable[str]) -> dict[str, ModuleType]:
    """The modules of ``package`` whose name does not begin with an underscore, by that name."""
    names = [info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_")]
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def parts_of(package: str, path: Iterable[str]) -> dict[str, type]:
    """The first public name of every module of ``package`` that has an ``__all__``: without one it is no part."""
    parts = {name: module for name, module in modules_of(package, path).items() if hasattr(module, "__all__")}
    return {name: getattr(module, module.__all__[0]) for name, module in parts.items()}


def keyword_options(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a part's constructor: what a recipe may set.

    >>> from nearkin.losses.contrastive import Contrastive
    >>> keyword_options(Contrastive)["neg_margin"].default
    0.5
    """
    parameters = inspect.signature(part, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


PLOT_FORMATS = ("png", "pdf", "svg")


def plot_names() -> list[str]:
    """What ``nearkin plot`` can draw, a file of ``report/figures`` each; they are not imported, only looked for."""
    folder = Path(__file__).parent / "report" / "figures"
    return sorted(file.stem.replace("_", "-") for file in folder.glob("[!_]*.py"))
