import pytest
import torch
from torch.nn import functional as F

from nearkin.encoders.architectures import build_backbone

HALVING = ("3c", "4e")
BLOCKS = ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b")


def convolution_names():
    names = ["conv1_7x7_s2", "conv2_3x3_reduce", "conv2_3x3"]
    for block in BLOCKS:
        parts = ["3x3_reduce", "3x3", "double_3x3_reduce", "double_3x3_1", "double_3x3_2"]
        parts += [] if block in HALVING else ["1x1", "pool_proj"]
        names += [f"inception_{block}_{part}" for part in parts]
    return names


def test_parameter_names_are_the_public_file_s():
    expected = {f"{name}.{part}" for name in convolution_names() for part in ("weight", "bias")}
    batch_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected |= {f"{name}_bn.{part}" for name in convolution_names() for part in batch_norm}
    assert set(build_backbone("bn_inception").state_dict()) == expected
    assert len(convolution_names()) == 69


def test_shapes_of_some_published_tensors():
    state = build_backbone("bn_inception").state_dict()
    assert state["inception_3c_double_3x3_2.weight"].shape == (96, 96, 3, 3)
    assert state["inception_4a_1x1.weight"].shape == (224, 576, 1, 1)
    assert state["inception_4e_3x3.weight"].shape == (192, 128, 3, 3)
    assert state["inception_5a_1x1.weight"].shape == (352, 1056, 1, 1)
    assert state["inception_5b_pool_proj.weight"].shape == (128, 1024, 1, 1)


def reference(state, x):
    """The network in plain functions on the state dict, in evaluation mode."""

    def conv(x, name, stride=1):
        weight = state[f"{name}.weight"]
        x = F.conv2d(x, weight, state[f"{name}.bias"], stride=stride, padding=weight.shape[-1] // 2)
        mean, var, scale, shift = (
            state[f"{name}_bn.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp_min(0)

    x = F.max_pool2d(conv(x, "conv1_7x7_s2", 2), 3, 2, ceil_mode=True)
    x = F.max_pool2d(conv(conv(x, "conv2_3x3_reduce"), "conv2_3x3"), 3, 2, ceil_mode=True)
    for name in BLOCKS:
        block = f"inception_{name}"
        stride = 2 if name in HALVING else 1
        three = conv(conv(x, f"{block}_3x3_reduce"), f"{block}_3x3", stride)
        double = conv(conv(x, f"{block}_double_3x3_reduce"), f"{block}_double_3x3_1")
        double = conv(double, f"{block}_double_3x3_2", stride)
        if stride == 2:
            x = torch.cat([three, double, F.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
        else:
            pooled = (
                F.max_pool2d(x, 3, 1, 1)
                if name == "5b"
                else F.conv2d(F.pad(x, (1, 1, 1, 1)), x.new_full((x.shape[1], 1, 3, 3), 1 / 9), groups=x.shape[1])
            )
            x = torch.cat([conv(x, f"{block}_1x1"), three, double, conv(pooled, f"{block}_pool_proj")], 1)
    return x


def test_output_against_plain_functions():
    torch.manual_seed(0)
    backbone = build_backbone("bn_inception").eval().double()  # in float32 seventy layers leave three digits
    for name, tensor in backbone.state_dict().items():
        if "_bn." in name and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
        elif name.endswith(".bias"):
            tensor.normal_()
    images = torch.randn(1, 3, 96, 96, dtype=torch.float64)
    with torch.inference_mode():
        expected = reference(backbone.state_dict(), images)
        torch.testing.assert_close(backbone(images), expected, rtol=1e-9, atol=1e-9)
    assert expected.std() > 0.05


@pytest.mark.parametrize("side", [224, 227])
def test_map_of_a_full_size_crop(side):
    with torch.device("meta"):
        assert build_backbone("bn_inception").eval()(torch.zeros(1, 3, side, side)).shape == (1, 1024, 7, 7)
