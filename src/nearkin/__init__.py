"""nearkin: deep metric learning with proxies.

The public names are imported when they are first used, so that ``import nearkin`` is fast.

>>> import nearkin
>>> nearkin.losses.ProxyAnchor(num_classes=3, dim=4).bank.vectors.shape
torch.Size([3, 1, 4])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin import evaluation as evaluation
    from nearkin import losses as losses
    from nearkin import proxies as proxies
    from nearkin import samplers as samplers
    from nearkin.data.folder import read_folder as read_folder
    from nearkin.data.manifest import read_manifest as read_manifest
    from nearkin.data.source import read_source as read_source
    from nearkin.data.table import ImageTable as ImageTable
    from nearkin.encoders import Encoder as Encoder
    from nearkin.encoders import build_encoder as build_encoder
    from nearkin.errors import NearkinError as NearkinError
    from nearkin.evaluation import retrieval_scores as retrieval_scores
    from nearkin.index import Index as Index
    from nearkin.recipe import Recipe as Recipe
    from nearkin.runs.evaluate import evaluate_backbone as evaluate_backbone
    from nearkin.runs.evaluate import evaluate_run as evaluate_run
    from nearkin.runs.export import export as export
    from nearkin.runs.folder import RunFolder as RunFolder
    from nearkin.runs.model import Model as Model
    from nearkin.runs.model import load as load
    from nearkin.runs.run import run as run
    from nearkin.runs.run import train_final as train_final
    from nearkin.runs.trained_run import load_run as load_run
    from nearkin.serving.client import Client as Client
    from nearkin.studies.compare import compare as compare
    from nearkin.studies.mlrc import mlrc as mlrc
    from nearkin.studies.reproduce import reproduce as reproduce
    from nearkin.studies.tune import tune as tune
    from nearkin.training.embedding import embed_images as embed_images
    from nearkin.training.recipe_check import load_recipe as load_recipe

    __version__: str

_NAMES = {
    "data.folder": "read_folder",
    "data.manifest": "read_manifest",
    "data.source": "read_source",
    "data.table": "ImageTable",
    "encoders": "Encoder build_encoder",
    "errors": "NearkinError",
    "evaluation": "retrieval_scores",
    "index": "Index",
    "recipe": "Recipe",
    "runs.evaluate": "evaluate_backbone evaluate_run",
    "runs.export": "export",
    "runs.folder": "RunFolder",
    "runs.model": "Model load",
    "runs.run": "run train_final",
    "runs.trained_run": "load_run",
    "serving.client": "Client",
    "studies.compare": "compare",
    "studies.mlrc": "mlrc",
    "studies.reproduce": "reproduce",
    "studies.tune": "tune",
    "training.embedding": "embed_images",
    "training.recipe_check": "load_recipe",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("evaluation", "losses", "proxies", "samplers")

__all__ = ["__version__", *_HOMES, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            globals()[name] = metadata.version("nearkin")
        except metadata.PackageNotFoundError:  # files on a path, not installed by pip
            globals()[name] = "0+not.installed"
        return globals()[name]
    if name in _PACKAGES:
        return importlib.import_module(f"nearkin.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"nearkin.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'nearkin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
