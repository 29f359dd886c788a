import torch
from torch import nn
from torch.nn import functional as F

from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.googlenet import Inception
from nearkin.encoders.preprocessing import IMAGENET


def test_parameter_names_are_torchvision_s():
    batch_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    blocks = ["conv1", "conv2", "conv3"]
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        branches = ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1")
        blocks += [f"inception{name}.{branch}" for branch in branches]
    expected = {f"{block}.conv.weight" for block in blocks}
    expected |= {f"{block}.bn.{part}" for block in blocks for part in batch_norm}
    assert set(build_backbone("googlenet").state_dict()) == expected


def test_shapes_of_some_published_tensors():
    state = build_backbone("googlenet").state_dict()
    assert state["conv3.conv.weight"].shape == (192, 64, 3, 3)
    assert state["inception3a.branch3.1.conv.weight"].shape == (32, 16, 3, 3)
    assert state["inception4d.branch2.1.conv.weight"].shape == (288, 144, 3, 3)
    assert state["inception5b.branch4.1.conv.weight"].shape == (128, 832, 1, 1)


def test_map_of_a_full_size_crop():
    with torch.device("meta"):
        assert build_backbone("googlenet").eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)


def test_inception_block_against_plain_functions():
    torch.manual_seed(0)
    block = Inception(6, (4, 3, 5, 2, 7, 8)).eval()
    state = block.state_dict()

    def conv(x, name):
        weight = state[f"{name}.conv.weight"]
        x = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
        return F.relu(x / (1 + 1e-3) ** 0.5)

    x = torch.randn(2, 6, 7, 7)
    expected = [
        conv(x, "branch1"),
        conv(conv(x, "branch2.0"), "branch2.1"),
        conv(conv(x, "branch3.0"), "branch3.1"),
        conv(F.max_pool2d(x, 3, stride=1, padding=1), "branch4.1"),
    ]
    torch.testing.assert_close(block(x), torch.cat(expected, dim=1))


def test_preprocessing_is_imagenet_s_followed_by_torchvision_s_own_conversion():
    images = torch.randint(0, 256, (1, 4, 4, 3), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET.mean, IMAGENET.std))
    converted = IMAGENET(images) * (std / 0.5) + (mean - 0.5) / 0.5
    torch.testing.assert_close(build_backbone("googlenet").preprocessing(images), converted, rtol=1e-4, atol=1e-5)


def test_batch_norm_eps():
    norms = [m for m in build_backbone("googlenet").modules() if isinstance(m, nn.BatchNorm2d)]
    assert {m.eps for m in norms} == {1e-3}
