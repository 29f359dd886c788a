"""nearkin: deep metric learning with proxies.

The public names are imported when they are first used, so that ``import nearkin`` costs next to nothing.

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
    from nearkin.evaluation import clustering_scores as clustering_scores
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

_HOMES = {
    "Client": "serving.client",
    "Encoder": "encoders",
    "ImageTable": "data.table",
    "Index": "index",
    "Model": "runs.model",
    "NearkinError": "errors",
    "Recipe": "recipe",
    "RunFolder": "runs.folder",
    "build_encoder": "encoders",
    "compare": "studies.compare",
    "clustering_scores": "evaluation",
    "embed_images": "training.embedding",
    "evaluate_backbone": "runs.evaluate",
    "evaluate_run": "runs.evaluate",
    "export": "runs.export",
    "load": "runs.model",
    "load_recipe": "training.recipe_check",
    "load_run": "runs.trained_run",
    "mlrc": "studies.mlrc",
    "read_folder": "data.folder",
    "read_manifest": "data.manifest",
    "read_source": "data.source",
    "reproduce": "studies.reproduce",
    "retrieval_scores": "evaluation",
    "run": "runs.run",
    "train_final": "runs.run",
    "tune": "studies.tune",
}
_PACKAGES = ("evaluation", "losses", "proxies", "samplers")

__all__ = ["__version__", *_HOMES, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    if name in _PACKAGES:
        return importlib.import_module(f"nearkin.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"nearkin.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'nearkin' has no attribute {name!r}")


def _version() -> str:
    """As it was when the package was installed; git tags decide it."""
    from importlib import metadata

    try:
        return metadata.version("nearkin")
    except metadata.PackageNotFoundError:  # files on a path, which pip knows nothing of
        return "0+not.installed"


def __dir__() -> list[str]:
    return sorted(__all__)
