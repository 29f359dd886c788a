import torch
from torch import nn
from torch.nn import functional as F

from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.resnetv2_20 import PreActivationBlock


def test_twenty_weighted_layers_with_the_classifier():
    backbone = build_backbone("resnetv2_20")
    three_by_three = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(three_by_three) == 19
    assert [m.out_channels for m in three_by_three] == [16] * 7 + [32] * 6 + [64] * 6


def test_map_of_a_digit():
    assert build_backbone("resnetv2_20")(torch.randn(2, 3, 28, 28)).shape == (2, 64, 7, 7)


def test_shortcut_without_projection_carries_the_raw_input():
    block = PreActivationBlock(4, 4, stride=1).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 4, 5, 5)
    assert torch.equal(block(x), x)


def test_projected_shortcut_starts_from_the_activation():
    block = PreActivationBlock(4, 8, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 4, 6, 6)
    activated = F.relu(x / (1 + 1e-5) ** 0.5)
    expected = F.conv2d(activated, block.projection.weight, stride=2)
    torch.testing.assert_close(block(x), expected)
