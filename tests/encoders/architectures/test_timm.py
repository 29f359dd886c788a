import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures import build_backbone
from nearkin.errors import DataError, MissingExtraError, RecipeError


class Fake(nn.Module):
    """What timm's ``create_model`` returns, as far as it matters here: 6 features, in one of timm's layouts."""

    def __init__(self, layout, pretrained_cfg):
        super().__init__()
        self.num_features = 6
        self.pretrained_cfg = pretrained_cfg
        self.num_prefix_tokens = 1 if layout == "class token" else 0
        self.layout = layout
        self.conv = nn.Conv2d(3, 6, 4, stride=4)

    def forward(self, x):
        assert self.layout != "fixed" or x.shape[-1] == 96, "Input height (16) doesn't match model (96)."
        x = self.conv(x)
        if self.layout in ("map", "fixed"):
            return x
        if self.layout == "channels last":
            return x.permute(0, 2, 3, 1)
        return x.flatten(2).transpose(1, 2)


@pytest.fixture
def timm(monkeypatch):
    calls = []

    def create_model(name, **arguments):
        calls.append((name, arguments))
        if name == "absent":
            raise RuntimeError("Unknown model (absent)")
        layout, _, bare = name.partition("/")
        full = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "input_size": (3, 96, 96)}
        return Fake(layout, {} if bare else full)

    module = SimpleNamespace(create_model=create_model, calls=calls)
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layout", ["map", "channels last"])
def test_feature_map_has_channels_first(timm, layout):
    backbone = build_backbone(f"timm:{layout}")
    torch.testing.assert_close(backbone(images()), backbone.model.conv(images()))


@pytest.mark.parametrize("layout", ["class token", "tokens"])
def test_tokens_become_one_vector(timm, layout):
    backbone = build_backbone(f"timm:{layout}")
    tokens = backbone.model.conv(images()).flatten(2)
    expected = tokens[:, :, 0] if layout == "class token" else tokens.mean(dim=2)
    torch.testing.assert_close(backbone(images()), expected)


def test_a_network_of_one_size_says_which(timm):
    backbone = build_backbone("timm:fixed")
    assert backbone(torch.zeros(1, 3, 96, 96)).shape == (1, 6, 24, 24)
    with pytest.raises(RecipeError, match=r"made for images of 96 × 96 pixels and cannot take 16 × 16 \(Input height"):
        backbone(images())


def test_asks_for_a_model_without_classifier_and_pooling(timm):
    build_backbone("timm:map")
    build_backbone("timm:map", {"pretrained": False})
    common = {"num_classes": 0, "global_pool": ""}
    assert timm.calls == [("map", {"pretrained": True, **common}), ("map", {"pretrained": False, **common})]


def test_preprocessing_and_size_are_the_model_s(timm):
    backbone = build_backbone("timm:map")
    assert (backbone.preprocessing.mean, backbone.preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (backbone.out_channels, backbone.input_size) == (6, 96)
    bare = build_backbone("timm:map/bare")
    assert (bare.preprocessing.mean, bare.input_size) == ((0.485, 0.456, 0.406), 224)


def test_local_weights_fill_the_wrapped_model(timm, tmp_path):
    source = nn.Conv2d(3, 6, 4)
    torch.save({f"conv.{name}": tensor for name, tensor in source.state_dict().items()}, tmp_path / "net.pth")
    encoder = build_encoder("timm:map", weights=tmp_path / "net.pth", options={"pretrained": False})
    assert torch.equal(encoder.backbone.model.conv.weight, source.weight)


def test_unknown_model_is_a_data_error(timm):
    with pytest.raises(DataError, match=r"cannot load backbone 'timm:absent' \(Unknown model \(absent\)\)"):
        build_backbone("timm:absent")


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[timm\]'"):
        build_backbone("timm:resnet18")
