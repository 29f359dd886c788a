import pytest
import torch
from torch import nn

from nearkin.encoders import Encoder, build_encoder
from nearkin.encoders.backbone import Backbone
from nearkin.encoders.encoder import Pool
from nearkin.encoders.preprocessing import HALF
from nearkin.errors import DataError, RecipeError


def pixels(count=4, side=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return build_encoder("small", dim=16)


def test_parts_are_chained_in_order(encoder):
    encoder.eval()
    images = pixels()
    x = (images.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    features = encoder.backbone(x).mean(dim=(2, 3)) @ encoder.head.weight.T + encoder.head.bias
    expected = features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder(x), expected, rtol=1e-4, atol=1e-5)


def test_head_is_kaiming_normal_by_fan_out_with_zero_bias():
    torch.manual_seed(0)
    encoder = build_encoder("small", dim=512)
    assert isinstance(encoder.head, nn.Linear)
    assert encoder.head.weight.shape == (512, encoder.backbone.out_channels)
    assert encoder.head.weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.03)
    assert not encoder.head.bias.any()


def test_without_dim_the_embedding_is_the_normalised_pooled_feature():
    encoder = build_encoder("small", dim=None).eval()
    assert encoder.dim == encoder.backbone.out_channels
    assert list(encoder.head_parameters()) == []
    features = encoder.backbone(HALF(pixels())).mean(dim=(2, 3))
    torch.testing.assert_close(encoder(pixels()), features / features.norm(dim=1, keepdim=True))


def test_ball_leaves_short_vectors_alone():
    encoder = build_encoder("small", dim=16, normalisation="ball").eval()
    with torch.no_grad():
        encoder.head.weight.mul_(1e-3)
        short = encoder(pixels()).norm(dim=1)
        encoder.head.weight.mul_(1e6)
        long = encoder(pixels()).norm(dim=1)
    assert (short < 0.5).all()
    torch.testing.assert_close(long, torch.ones(4))


class Pooled(Backbone):
    def __init__(self):
        super().__init__(out_channels=3, input_size=8, preprocessing=HALF)

    def forward(self, images):
        return images.amax(dim=(2, 3))


def test_pooling_is_skipped_for_a_backbone_that_pools_itself():
    encoder = Encoder(Pooled(), Pool(torch.mean), dim=None, normalisation="ball")
    images = torch.zeros(2, 3, 8, 8)
    images[:, :, 0, 0] = 0.5
    torch.testing.assert_close(encoder(images), torch.full((2, 3), 0.5))


@pytest.mark.parametrize("pooling", ["avg", "gem"])
def test_bfloat16_autocast_gives_float32_unit_vectors(pooling):
    torch.manual_seed(0)
    encoder = build_encoder("small", dim=16, pooling=pooling)
    seen = []
    encoder.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = encoder(pixels())
    assert seen == [torch.bfloat16]
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4), rtol=0, atol=1e-6)
    embeddings[:, 0].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


def batch_norms(module):
    return [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_statistics_but_trains_scale_and_shift(frozen):
    torch.manual_seed(0)
    encoder = build_encoder("resnetv2_20", dim=8, freeze_batch_norm=frozen)
    encoder.eval()
    encoder.train()
    before = {name: b.clone() for name, b in encoder.backbone.named_buffers()}
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
    scales = [m.weight.clone() for m in batch_norms(encoder.backbone)]
    encoder(pixels(side=16))[:, 0].sum().backward()
    optimiser.step()
    changed = {name for name, b in encoder.backbone.named_buffers() if not torch.equal(b, before[name])}
    assert changed == (set() if frozen else set(before))
    assert encoder.training
    assert all(m.training != frozen for m in batch_norms(encoder.backbone))
    assert any(not torch.equal(m.weight, old) for m, old in zip(batch_norms(encoder.backbone), scales, strict=True))


def test_frozen_batch_norm_holds_from_the_start():
    encoder = build_encoder("small", dim=8, freeze_batch_norm=True)
    assert not any(m.training for m in batch_norms(encoder.backbone))


def test_parameters_are_split_between_backbone_and_head_without_loss():
    encoder = build_encoder("small", dim=8, pooling="gem")
    backbone, head = list(encoder.backbone.parameters()), list(encoder.head_parameters())
    assert {id(p) for p in backbone}.isdisjoint(id(p) for p in head)
    assert {id(p) for p in [*backbone, *head]} == {id(p) for p in encoder.parameters()}
    assert sorted(p.numel() for p in head) == [1, 8, 8 * encoder.backbone.out_channels]


def test_channels_last_gives_the_same_embeddings():
    torch.manual_seed(0)
    plain = build_encoder("small", dim=8).eval()
    torch.manual_seed(0)
    last = build_encoder("small", dim=8, channels_last=True).eval()
    seen = []
    last.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(last(pixels()), plain(pixels()), rtol=1e-4, atol=1e-5)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_state_dict_round_trip():
    torch.manual_seed(0)
    first = build_encoder("small", dim=8, pooling="gem")
    first(pixels())
    second = build_encoder("small", dim=8, pooling="gem")
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(pixels()), second.eval()(pixels()))


def test_an_encoder_s_own_checkpoint_fills_another_s_backbone(tmp_path):
    first = build_encoder("small", dim=8)
    torch.save(first.state_dict(), tmp_path / "encoder.pth")
    second = build_encoder("small", dim=32, weights=tmp_path / "encoder.pth")
    for name, tensor in first.backbone.state_dict().items():
        assert torch.equal(second.backbone.state_dict()[name], tensor)
    assert second.weights_report.unexpected == ()


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 8, 8, 3),
        torch.zeros(3, 8, 8),
        torch.zeros(2, 3, 8, 8, dtype=torch.int32),
    ],
)
def test_wrong_images_are_named(encoder, images):
    with pytest.raises(ValueError, match=r"images must be uint8 \[B, H, W, 3\].*got torch"):
        encoder(images)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"backbone": "resnet5"}, "unknown backbone 'resnet5'; did you mean 'resnet50'"),
        ({"backbone": "small", "pooling": "gam"}, "unknown pooling 'gam'; did you mean 'gem'"),
        ({"backbone": "small", "normalisation": "l3"}, "unknown normalisation 'l3'; did you mean 'l2'"),
        ({"backbone": "small", "dim": 0}, "dim must be at least 1"),
        ({"backbone": "resnet50", "options": {"stride_in_1x2": True}}, "did you mean 'stride_in_1x1'"),
        ({"backbone": "resnet50", "options": {"stride_in_1x1": "yes"}}, "must be true or false"),
        ({"backbone": "small", "weights": "imagenet"}, "'small' does not bring ImageNet weights"),
        ({"backbone": "hf:"}, "needs a model's name after the colon"),
    ],
)
def test_bad_recipes_say_what_is_wrong(arguments, message):
    with pytest.raises(RecipeError, match=message):
        build_encoder(**arguments)


def test_absent_weights_are_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"absent.safetensors does not exist"):
        build_encoder("small", weights=tmp_path / "absent.safetensors")


def test_a_glorot_head_is_uniform_by_both_fans_and_may_lack_a_bias():
    torch.manual_seed(0)
    encoder = build_encoder("small", dim=512, head_init="glorot", head_bias=False)
    bound = (6 / (512 + encoder.backbone.out_channels)) ** 0.5
    weight = encoder.head.weight
    assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    assert encoder.head.bias is None
    assert [p.shape for p in encoder.head_parameters()] == [weight.shape]
    with_bias = build_encoder("small", dim=8, head_init="glorot")
    assert not with_bias.head.bias.any()


def test_without_normalisation_lengths_stay_and_the_encoder_is_as_it_was():
    torch.manual_seed(0)
    encoder = build_encoder("small", dim=16, normalisation="ball").eval()
    with torch.no_grad():
        encoder.head.weight.mul_(100)
    before = encoder(pixels())
    raw = encoder.without_normalisation()
    features = encoder.backbone(HALF(pixels())).mean(dim=(2, 3)) @ encoder.head.weight.T + encoder.head.bias
    torch.testing.assert_close(raw(pixels()), features, rtol=1e-4, atol=1e-4)
    assert raw(pixels()).norm(dim=1).min() > 1
    assert torch.equal(encoder(pixels()), before)
    raw.train()
    assert not encoder.training
    assert raw.head is encoder.head


@pytest.mark.parametrize("backbone", ["resnet18", "small", "efficientnet_lite0"])
@pytest.mark.parametrize("statistics", [True, False])
def test_frozen_scale_and_shift_take_no_gradient_and_leave_the_others_theirs(backbone, statistics):
    """Folded into the convolutions or not, all other gradients are those of an encoder whose scale and shift train."""
    gradients = []
    for frozen in (True, False):
        torch.manual_seed(0)
        encoder = build_encoder(backbone, dim=8, freeze_batch_norm=statistics, freeze_batch_norm_affine=frozen).double()
        norms = {f"backbone.{n}" for n, m in encoder.backbone.named_modules() if isinstance(m, nn.BatchNorm2d)}
        assert norms
        for name, parameter in encoder.named_parameters():
            assert parameter.requires_grad != (frozen and name.rpartition(".")[0] in norms), name
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (encoder(x) * torch.arange(8.0)).sum().backward()
        gradients.append({n: p.grad for n, p in encoder.named_parameters() if n.rpartition(".")[0] not in norms})
        assert all((p.grad is None) == (not p.requires_grad) for p in encoder.parameters())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(
            gradient, gradients[1][name], rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )
