"""Losses, one file each. The catalogue is read off the files: adding a loss is adding a file.

``nearkin.losses.ProxyAnchor``, ``nearkin.losses.Contrastive``, … are exported flat. :func:`catalogue` maps the file
name, which is also the name in recipes and on the command line, to the class.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from typing import Any, Literal

from torch import nn

Kind = Literal["proxy", "pair", "wrapper"]


@functools.cache
def catalogue() -> dict[str, type[nn.Module]]:
    """Every loss by its file name.

    >>> catalogue()["proxy_anchor"].__name__
    'ProxyAnchor'
    """
    found: dict[str, type[nn.Module]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        found[module_info.name] = getattr(module, module.__all__[0])
    return found


def kind(loss: type[nn.Module]) -> Kind:
    """``"proxy"`` (needs classes and dimension), ``"pair"`` (needs neither) or ``"wrapper"`` (needs a pair loss).

    >>> kind(catalogue()["contrastive"])
    'pair'
    """
    parameters = inspect.signature(loss).parameters
    if "num_classes" in parameters:
        return "proxy"
    return "wrapper" if "pair_loss" in parameters else "pair"


def options(loss: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a loss: what a recipe's ``objective`` section may set."""
    parameters = inspect.signature(loss).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for loss in catalogue().values():
        if loss.__name__ == name:
            return loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(loss.__name__ for loss in catalogue().values())])
