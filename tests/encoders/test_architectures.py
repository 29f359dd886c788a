"""One contract for every backbone in the catalogue."""

import pytest
import torch

from nearkin.encoders import Backbone, Preprocessing, backbones
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.vit import VisionTransformer

NAMES = sorted(backbones())
PARAMETERS = {  # torchvision's and the public files' counts without the classifier
    "bn_inception": 11_295_240 - 1_025_000,
    "efficientnet_lite0": 4_652_008 - 1_281_000,
    "efficientnet_lite2": 6_092_072 - 1_281_000,
    "googlenet": 6_624_904 - 1_025_000,
    "resnet18": 11_176_512,
    "resnet50": 23_508_032,
    "resnet50_v1": 23_508_032,
    "vit_tiny": 5_524_416,
    "vit_small": 21_665_664,
    "vit_base": 85_798_656,
    "dinov2_small": 22_056_192,
    "dinov2_base": 86_579_712,
}


@pytest.fixture(params=NAMES, scope="module")
def backbone(request):
    torch.manual_seed(0)
    return build_backbone(request.param)


def images_for(backbone):
    side = min(backbone.input_size, 64)
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_states_how_to_feed_it(backbone):
    assert isinstance(backbone, Backbone)
    assert isinstance(backbone.preprocessing, Preprocessing)
    assert backbone.input_size >= 28
    assert backbone.out_channels > 0


def test_maps_images_to_features_at_several_sizes(backbone):
    backbone.eval()
    for height, width in ((33, 47), (64, 64)):
        with torch.inference_mode():
            features = backbone(torch.randn(1, 3, height, width))
        assert features.shape[:2] == (1, backbone.out_channels)
        assert features.ndim == 4 or isinstance(backbone, VisionTransformer)
        assert torch.isfinite(features).all()


def test_gradient_reaches_every_parameter(backbone):
    backbone.train()
    backbone(images_for(backbone)).square().mean().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_rows_do_not_see_each_other_in_evaluation(backbone):
    backbone.eval()
    images = images_for(backbone)
    with torch.inference_mode():
        together, alone = backbone(images), backbone(images[:1])
    torch.testing.assert_close(together[:1], alone, rtol=1e-3, atol=1e-4)


def test_preprocessing_can_be_replaced_by_name():
    assert build_backbone("resnet18", {"preprocessing": "half"}).preprocessing.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameter_counts(name):
    with torch.device("meta"):
        assert sum(p.numel() for p in build_backbone(name).parameters()) == PARAMETERS[name]
