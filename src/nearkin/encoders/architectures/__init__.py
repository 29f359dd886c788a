"""Backbones, one architecture per file. The catalogue is made from the files: adding one is adding a file.

A file has ``BACKBONES``, a mapping from names to builders with keyword-only options, or ``FAMILIES``, a mapping from a
prefix (``hf`` in ``hf:facebook/dinov2-small``) to a builder that also takes the text after the colon. A builder may
have the attributes ``weights``, the value of ``encoder.weights`` for pretrained ones, and ``licence``, theirs.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Mapping

from nearkin.catalogue import keyword_options, modules_of
from nearkin.encoders.backbone import Backbone
from nearkin.encoders.preprocessing import as_preprocessing
from nearkin.errors import RecipeError, did_you_mean
from nearkin.recipe import coerce, recipes_folder

Builder = Callable[..., Backbone]


@functools.cache
def _catalogue(attribute: str) -> dict[str, Builder]:
    modules = modules_of(__name__, __path__).values()
    return {name: builder for module in modules for name, builder in getattr(module, attribute, {}).items()}


def backbones() -> dict[str, Builder]:
    """Every backbone by its name in recipes; each builder takes keyword-only options.

    >>> sorted(backbones())
    ['bn_inception', 'clip_base', 'dino_base', 'dino_small', 'dinov2_base', 'dinov2_small', ...]
    """
    return dict(_catalogue("BACKBONES"))


def families() -> dict[str, Builder]:
    """Builders for other libraries' models by their prefixes, ``hf:<model>`` and ``timm:<model>``.

    >>> sorted(families())
    ['hf', 'timm']
    """
    return dict(_catalogue("FAMILIES"))


def build_backbone(
    name: str, options: Mapping[str, object] | None = None, *, last_stride: int | None = None
) -> Backbone:
    """A backbone by name, freshly initialised.

    ``options`` are the builder's own and ``preprocessing``, since weights from elsewhere may have been trained with
    another one. For ``last_stride`` see :meth:`~nearkin.encoders.backbone.Backbone.set_last_stride`.

    >>> build_backbone("resnet50", {"stride_in_1x1": True}).out_channels
    2048
    """
    prefix, colon, model = name.partition(":")
    if colon and prefix in families():
        if not model:
            raise RecipeError(f"backbone {name!r} needs a model's name after the colon, as in {prefix}:<model>")
        builder: Builder = functools.partial(families()[prefix], model)
    elif name in backbones():
        builder = backbones()[name]
    else:
        valid = [*backbones(), *(f"{family}:<model>" for family in families())]
        raise RecipeError(f"unknown backbone {name!r}; {did_you_mean(name, valid)}")
    values = dict(options or {})
    preprocessing = values.pop("preprocessing", None)
    known = keyword_options(builder)
    for option, value in values.items():
        if option not in known:
            suggestion = did_you_mean(option, [*known, "preprocessing"])
            raise RecipeError(f"backbone {name!r} has no option {option!r}; {suggestion}")
        values[option] = coerce(value, known[option].annotation, f"encoder.options.{option}")
    backbone = builder(**values)
    if preprocessing is not None:
        backbone.preprocessing = as_preprocessing(preprocessing)
    if last_stride is not None:
        backbone.set_last_stride(last_stride)
    return backbone


def default_weights(name: str) -> str | None:
    """The value of ``encoder.weights`` for a backbone's pretrained weights, or None.

    >>> default_weights("vit_tiny"), default_weights("resnet50")
    ('hub:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k', None)
    """
    return getattr(backbones().get(name), "weights", None)


def measured() -> dict[str, dict[str, str]]:
    """The measurements of every backbone in ``backbones.csv``, as text; an empty text is not measured.

    >>> measured()["vit_tiny"]["million parameters"]
    '5.5'
    """
    lines = (recipes_folder() / "backbones.csv").read_text(encoding="utf-8").splitlines()
    return {line.pop("name"): line for line in csv.DictReader(lines)}
