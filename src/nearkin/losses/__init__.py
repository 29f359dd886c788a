"""Losses, one file each. The catalogue is made from the files: adding a loss is adding a file.

A loss derives from :class:`ProxyLoss` (proxy_loss.py) or :class:`PairLoss` (pair_loss.py).
``nearkin.losses.ProxyAnchor``, ``nearkin.losses.Contrastive``, … are exported flat. :func:`catalogue` maps the file
name, which is also the name in recipes and on the command line, to the class.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal

from torch import nn

from nearkin.catalogue import keyword_options as options
from nearkin.catalogue import parts_of
from nearkin.errors import RecipeError, did_you_mean
from nearkin.losses.informative_samples import InformativeSampleWeights
from nearkin.losses.pair_loss import PairLoss, Pairs
from nearkin.losses.pml import PREFIX, PmlLoss, pml_loss
from nearkin.losses.proxy_loss import ProxyLoss

__all__ = ["InformativeSampleWeights", "PairLoss", "Pairs", "ProxyLoss", "catalogue", "kind", "options"]

Kind = Literal["proxy", "pair", "wrapper", "pml"]


@functools.cache
def catalogue() -> dict[str, type[nn.Module]]:
    """Every loss by its file name.

    >>> catalogue()["proxy_anchor"].__name__
    'ProxyAnchor'
    """
    return parts_of(__name__, __path__)


def loss_named(name: str) -> type[nn.Module]:
    """The loss of a recipe's ``objective.name``: one of :func:`catalogue`, or ``pml:`` and a name of that library.

    >>> loss_named("proxy_anchor") is catalogue()["proxy_anchor"]
    True
    """
    if name.startswith(PREFIX):
        return pml_loss(name)
    if name not in catalogue():
        raise RecipeError(f"unknown objective {name!r}: {did_you_mean(name, catalogue())}")
    return catalogue()[name]


def weightings() -> dict[str, type[nn.Module]]:
    """The weightings of pairs by name, for a loss that takes a ``weighting``."""
    return {"isa": InformativeSampleWeights}


def kind(loss: type[nn.Module]) -> Kind:
    """``"proxy"`` (needs classes and dimension), ``"pair"`` (neither), ``"wrapper"`` (a pair loss), or ``"pml"``.

    >>> kind(catalogue()["contrastive"])
    'pair'
    """
    if issubclass(loss, PmlLoss):
        return "pml"
    parameters = inspect.signature(loss).parameters
    if "num_classes" in parameters:
        return "proxy"
    return "wrapper" if "pair_loss" in parameters else "pair"


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for loss in catalogue().values():
        if loss.__name__ == name:
            return loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(loss.__name__ for loss in catalogue().values())])
