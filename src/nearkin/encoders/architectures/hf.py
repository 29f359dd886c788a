"""Models of the transformers library as backbones: ``hf:<model on the hub or local folder>``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.encoders.backbone import Backbone, explain_size_error
from nearkin.encoders.preprocessing import IMAGENET, Preprocessing
from nearkin.errors import DataError, notice, require


class HuggingFaceBackbone(Backbone):
    """Any vision model of transformers: its feature map, or one vector when it works on tokens.

    That vector is the class token if there is one, else the model's own pooling, else the mean of the tokens. For
    images of another size, position embeddings are interpolated if the model supports it.
    """

    def __init__(self, model: nn.Module, *, input_size: int, preprocessing: Preprocessing) -> None:
        super().__init__(out_channels=0, input_size=input_size, preprocessing=preprocessing)
        self.model = model
        interpolates = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        self._for_other_sizes = {"interpolate_pos_encoding": True} if interpolates else {}
        # Configurations have no common name for the number of channels, so a blank image shows it.
        model.eval()
        with torch.no_grad():
            self.out_channels = self(torch.zeros(1, 3, input_size, input_size)).shape[1]
        model.train()  # as every new module

    def forward(self, images: Tensor) -> Tensor:
        usual = images.shape[-2:] == (self.input_size, self.input_size)
        with explain_size_error(self.input_size, images):
            output = self.model(pixel_values=images, **({} if usual else self._for_other_sizes))
        features: Tensor = output.last_hidden_state
        if features.ndim == 4:
            return features
        if hasattr(getattr(self.model, "embeddings", None), "cls_token"):
            return features[:, 0]
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return features.mean(dim=1) if pooled is None else pooled


def build_hf(model: str, *, pretrained: bool = True) -> HuggingFaceBackbone:
    """``hf:<model>``; with ``pretrained=False`` only the architecture, from the model's configuration."""
    transformers = require("transformers", "hf")
    try:
        if pretrained:
            network = transformers.AutoModel.from_pretrained(model)
        else:
            network = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(model))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"cannot load backbone 'hf:{model}' ({reason}); give a model that the hub has and that can be reached "
            "from here, or a local folder written by save_pretrained"
        ) from error
    # Models of images and text, like CLIP, have their image encoder under this name. Some are in half precision.
    network = getattr(network, "vision_model", network).float()
    settings = _processor_settings(model)
    return HuggingFaceBackbone(
        network, input_size=_input_size(settings, network), preprocessing=_preprocessing(settings, model)
    )


def _processor_settings(model: str) -> Mapping[str, Any]:
    """The settings of the model's image processor, read from its file because running it needs torchvision."""
    cached_file = require("transformers.utils", "hf").cached_file
    for file_name in ("preprocessor_config.json", "processor_config.json"):
        try:
            path = cached_file(model, file_name)
        except OSError:
            continue
        settings: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        settings = settings.get("image_processor", settings)
        if "image_mean" in settings or "do_normalize" in settings:
            return settings
    return {}


def _preprocessing(settings: Mapping[str, Any], model: str) -> Preprocessing:
    if not settings:
        notice(f"'hf:{model}' says nothing about its preprocessing; taking ImageNet's (or set option 'preprocessing')")
        return IMAGENET
    normalises = settings.get("do_normalize", True)
    mean = settings.get("image_mean", IMAGENET.mean) if normalises else (0.0, 0.0, 0.0)
    std = settings.get("image_std", IMAGENET.std) if normalises else (1.0, 1.0, 1.0)
    factor = settings.get("rescale_factor", 1.0 / 255.0) if settings.get("do_rescale", True) else 1.0
    if settings.get("rescale_offset", False):
        mean = [value + 1.0 for value in mean]
    bgr = bool(settings.get("do_flip_channel_order", False))
    return Preprocessing(mean=tuple(mean), std=tuple(std), bgr=bgr, scale=255.0 * factor)


def _input_size(settings: Mapping[str, Any], network: nn.Module) -> int:
    key = "crop_size" if settings.get("do_center_crop", False) and "crop_size" in settings else "size"
    size = settings.get(key)
    if isinstance(size, Mapping):
        size = size.get("height", size.get("shortest_edge"))
    size = size or getattr(network.config, "image_size", None) or 224
    return int(size[0] if isinstance(size, list | tuple) else size)


FAMILIES = {"hf": build_hf}
