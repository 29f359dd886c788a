"""Catalogues of a package's files: one part per file, with the name of the file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any


def modules_of(package: str, path: Iterable[str]) -> dict[str, ModuleType]:
    """The modules of ``package`` by name, without those whose name begins with an underscore."""
    names = [info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_")]
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def parts_of(package: str, path: Iterable[str]) -> dict[str, type]:
    """The first name in the ``__all__`` of every module of ``package`` that has one."""
    parts = {name: module for name, module in modules_of(package, path).items() if hasattr(module, "__all__")}
    return {name: getattr(module, module.__all__[0]) for name, module in parts.items()}


def keyword_options(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a part's constructor, which a recipe may set.

    >>> from nearkin.losses.contrastive import Contrastive
    >>> keyword_options(Contrastive)["neg_margin"].default
    0.5
    """
    parameters = inspect.signature(part, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


PLOT_FORMATS = ("png", "pdf", "svg")


def plot_names() -> list[str]:
    """The figures of ``nearkin plot``: the files of ``report/figures``, without importing them."""
    folder = Path(__file__).parent / "report" / "figures"
    return sorted(file.stem.replace("_", "-") for file in folder.glob("[!_]*.py"))
