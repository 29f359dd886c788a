"""Models of the timm library as backbones: ``timm:<model>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.encoders.backbone import Backbone, explain_size_error
from nearkin.encoders.preprocessing import IMAGENET, Preprocessing
from nearkin.errors import DataError, require


class TimmBackbone(Backbone):
    """Any timm model: its feature map, or one vector when it works on tokens (class token, else their mean)."""

    def __init__(self, model: nn.Module, *, out_channels: int, input_size: int, preprocessing: Preprocessing) -> None:
        super().__init__(out_channels=out_channels, input_size=input_size, preprocessing=preprocessing)
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        with explain_size_error(self.input_size, images):
            features: Tensor = self.model(images)
        if features.ndim == 3:
            has_class_token = getattr(self.model, "num_prefix_tokens", 0) > 0
            return features[:, 0] if has_class_token else features.mean(dim=1)
        # Swin and its relatives put the channels last.
        if features.ndim == 4 and features.shape[1] != self.out_channels:
            return features.permute(0, 3, 1, 2)
        return features


def build_timm(model: str, *, pretrained: bool = True) -> TimmBackbone:
    """``timm:<model>``; with ``pretrained=False`` only the architecture, freshly initialised."""
    timm = require("timm", "timm")
    try:
        network = timm.create_model(model, pretrained=pretrained, num_classes=0, global_pool="")
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot load backbone 'timm:{model}' ({reason}); give a name from timm.list_models() whose weights can "
            "be reached from here, or set the option pretrained=false and weights to a local file"
        ) from error
    config: Mapping[str, Any] = network.pretrained_cfg
    return TimmBackbone(
        network,
        out_channels=network.num_features,
        input_size=int(config.get("input_size", (3, 224, 224))[-1]),
        preprocessing=Preprocessing(
            mean=tuple(config.get("mean", IMAGENET.mean)), std=tuple(config.get("std", IMAGENET.std))
        ),
    )


FAMILIES = {"timm": build_timm}
