import pytest
import torch
import transformers

from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.resnet import BasicBlock, Bottleneck, ResNet
from nearkin.encoders.preprocessing import IMAGENET


def names_in_torchvision(depths, convolutions, projected_from):
    """The state dict's keys as torchvision numbers them, written out from its naming scheme."""
    batch_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = {"conv1.weight", *(f"bn1.{part}" for part in batch_norm)}
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            prefix = f"layer{stage}.{block}"
            for index in range(1, convolutions + 1):
                names |= {f"{prefix}.conv{index}.weight", *(f"{prefix}.bn{index}.{part}" for part in batch_norm)}
            if block == 0 and stage >= projected_from:
                names |= {f"{prefix}.downsample.0.weight", *(f"{prefix}.downsample.1.{part}" for part in batch_norm)}
    return names


def structure_of(name, options=None):
    with torch.device("meta"):
        return build_backbone(name, options)


def test_parameter_names_are_torchvision_s():
    assert set(structure_of("resnet50").state_dict()) == names_in_torchvision((3, 4, 6, 3), 3, projected_from=1)
    assert set(structure_of("resnet18").state_dict()) == names_in_torchvision((2, 2, 2, 2), 2, projected_from=2)


def reference(block, stride_in_1x1):
    config = transformers.ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64 * block.expansion * 2**stage for stage in range(4)],
        depths=[1, 2, 1, 1],
        layer_type="bottleneck" if block is Bottleneck else "basic",
        downsample_in_bottleneck=stride_in_1x1,
    )
    return transformers.ResNetModel(config)


def in_reference_s_names(state):
    renamed = {}
    for name, tensor in state.items():
        parts = name.split(".")
        leaf = {"conv": "convolution", "bn": "normalization"}
        if parts[0] in ("conv1", "bn1"):
            renamed[f"embedder.embedder.{leaf[parts[0][:-1]]}.{parts[1]}"] = tensor
            continue
        prefix = f"encoder.stages.{int(parts[0][-1]) - 1}.layers.{parts[1]}"
        if parts[2] == "downsample":
            renamed[f"{prefix}.shortcut.{leaf['conv' if parts[3] == '0' else 'bn']}.{parts[4]}"] = tensor
        else:
            kind, index = parts[2][:-1], int(parts[2][-1]) - 1
            renamed[f"{prefix}.layer.{index}.{leaf[kind]}.{parts[3]}"] = tensor
    return renamed


@pytest.mark.parametrize("block, stride_in_1x1", [(BasicBlock, False), (Bottleneck, False), (Bottleneck, True)])
def test_output_is_that_of_an_independent_implementation(block, stride_in_1x1):
    torch.manual_seed(0)
    ours = ResNet(block, (1, 2, 1, 1), stride_in_1x1=stride_in_1x1)
    for name, buffer in ours.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    theirs = reference(block, stride_in_1x1)
    theirs.load_state_dict(in_reference_s_names(ours.state_dict()))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.eval()(images).last_hidden_state
        torch.testing.assert_close(ours.eval()(images), expected, rtol=1e-4, atol=1e-4)


def test_stride_moves_to_the_first_1x1():
    for name, expected in (("resnet50", [(1, 1), (2, 2)]), ("resnet50_v1", [(2, 2), (1, 1)])):
        backbone = structure_of(name)
        for stage in ("layer2", "layer3", "layer4"):
            block = backbone.get_submodule(f"{stage}.0")
            assert [block.conv1.stride, block.conv2.stride] == expected
            assert block.downsample[0].stride == (2, 2)


def test_v1_has_everything_its_weights_rely_on():
    backbone = structure_of("resnet50_v1")
    assert {m.eps for m in backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}
    assert backbone.preprocessing.mean == (0.48502, 0.45796, 0.40760)
    assert backbone.preprocessing.std == (1.0, 1.0, 1.0)
    assert not backbone.preprocessing.bgr
    assert backbone.preprocessing.scale == 1.0
    assert structure_of("resnet50").preprocessing == IMAGENET


def test_batch_norm_eps_is_an_option_in_any_spelling():
    for name, eps in (("resnet18", 1e-3), ("resnet50_v1", 1e-5)):
        backbone = structure_of(name, {"batch_norm_eps": str(eps)})
        assert {m.eps for m in backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {eps}
