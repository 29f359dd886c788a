"""BN-Inception, the standard backbone of deep metric learning, with the parameter names of its public weight file."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, conv_bn_relu, initialise_convolutions
from nearkin.encoders.preprocessing import CAFFE_BGR

BLOCKS = {  # channels of the branches, reductions before their convolutions; the blocks with zeros halve the map
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


class BNInception(Backbone):
    """Inception with batch-norm (Ioffe & Szegedy, ICML 2015), 1024 channels, without its classifier.

    Convolutions have a bias although batch-norm makes it redundant, and the modules are flat, as in the weight file
    that the field's papers start from (converted from Caffe).
    """

    folds_batch_norm = True
    last_stage = ("inception_4e_3x3", "inception_4e_double_3x3_2")

    def __init__(self) -> None:
        super().__init__(out_channels=1024, input_size=224, preprocessing=CAFFE_BGR)
        self._add("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64)
        self._add("conv2_3x3", 64, 192, kernel=3)
        channels = 192
        for name, widths in BLOCKS.items():
            channels = self._add_inception(f"inception_{name}", channels, widths)
        initialise_convolutions(self)

    def _add(self, name: str, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _add_inception(self, block: str, inputs: int, widths: tuple[int, int, int, int, int, int]) -> int:
        one, three_reduced, three, double_reduced, double, pooled = widths
        stride = 1 if one else 2
        if one:
            self._add(f"{block}_1x1", inputs, one)
        self._add(f"{block}_3x3_reduce", inputs, three_reduced)
        self._add(f"{block}_3x3", three_reduced, three, kernel=3, stride=stride)
        self._add(f"{block}_double_3x3_reduce", inputs, double_reduced)
        self._add(f"{block}_double_3x3_1", double_reduced, double, kernel=3)
        self._add(f"{block}_double_3x3_2", double, double, kernel=3, stride=stride)
        if pooled:
            self._add(f"{block}_pool_proj", inputs, pooled)
        return one + three + double + (pooled or inputs)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self._run(images, "conv1_7x7_s2"), 3, stride=2, ceil_mode=True)
        x = self._run(x, "conv2_3x3_reduce", "conv2_3x3")
        x = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        for name, (one, *_) in BLOCKS.items():
            x = self._run_inception(x, f"inception_{name}", halves=not one)
        return x

    def _run(self, x: Tensor, *names: str) -> Tensor:
        for name in names:
            x = conv_bn_relu(x, getattr(self, name), getattr(self, f"{name}_bn"))
        return x

    def _run_inception(self, x: Tensor, block: str, *, halves: bool) -> Tensor:
        three = self._run(x, f"{block}_3x3_reduce", f"{block}_3x3")
        double = self._run(x, f"{block}_double_3x3_reduce", f"{block}_double_3x3_1", f"{block}_double_3x3_2")
        if halves:
            stride: tuple[int, int] = getattr(self, f"{block}_3x3").stride
            # On maps with an odd side, which crops of 224 and 227 do not have, only padding gives branches one size.
            padding = (x.shape[-2] % 2, x.shape[-1] % 2) if stride == (2, 2) else (1, 1)
            pooled = F.max_pool2d(x, 3, stride=stride, padding=padding, ceil_mode=True)
            return torch.cat([three, double, pooled], dim=1)
        # Only the last block pools by maximum.
        pool = F.max_pool2d if block.endswith("5b") else F.avg_pool2d
        pooled = self._run(pool(x, 3, stride=1, padding=1), f"{block}_pool_proj")
        return torch.cat([self._run(x, f"{block}_1x1"), three, double, pooled], dim=1)


BACKBONES = {"bn_inception": BNInception}
