"""From a recipe's data section to a transform."""

from __future__ import annotations

from typing import Any

from nearkin.data.transforms import Transform, transform_from
from nearkin.recipe import DataSection


def transform_of(section: DataSection) -> Transform:
    """The transform that a recipe names; another image size keeps the evaluation crop's share of the image.

    >>> transform_of(DataSection(transform="standard", image_size=112)).resize
    128
    """
    overrides: dict[str, Any] = {}
    if section.image_size is not None:
        preset = transform_from(section.transform)
        overrides |= {"size": section.image_size, "resize": round(preset.resize * section.image_size / preset.size)}
    if section.crop_scale is not None:
        overrides["scale"] = section.crop_scale
    return transform_from(section.transform, **overrides)
