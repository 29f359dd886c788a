import json
import sys

import pytest
import torch
import transformers

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.hf import HuggingFaceBackbone
from nearkin.encoders.preprocessing import IMAGENET
from nearkin.errors import DataError, MissingExtraError, RecipeError

SIDE = 32
SETTINGS = {
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
    "size": {"height": SIDE, "width": SIDE},
}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TINY_IMAGE = {**TINY, "image_size": SIDE, "patch_size": 8}


def save(folder, model, settings=SETTINGS, file_name="preprocessor_config.json"):
    torch.manual_seed(0)
    model.save_pretrained(folder)
    if settings is not None:
        (folder / file_name).write_text(json.dumps(settings), encoding="utf-8")
    return f"hf:{folder}"


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**TINY_IMAGE))


def resnet():
    return transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 24], depths=[1, 1]))


def swin():
    config = transformers.SwinConfig(
        image_size=SIDE, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    return transformers.SwinModel(config)


def clip():
    text = {**TINY, "vocab_size": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=TINY_IMAGE))


def images():
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def test_class_token_of_a_vit(tmp_path):
    model = vit().eval()
    backbone = build_backbone(save(tmp_path, model)).eval()
    with torch.no_grad():
        expected = model(pixel_values=images()).last_hidden_state[:, 0]
        torch.testing.assert_close(backbone(images()), expected)
    assert backbone.out_channels == 16
    assert backbone.input_size == SIDE


def test_the_whole_backbone_is_built_in_training_mode(tmp_path):
    assert all(module.training for module in build_backbone(save(tmp_path, vit())).modules())


def test_feature_map_of_a_resnet(tmp_path):
    model = resnet().eval()
    backbone = build_backbone(save(tmp_path, model)).eval()
    with torch.no_grad():
        torch.testing.assert_close(backbone(images()), model(pixel_values=images()).last_hidden_state)
    assert backbone.out_channels == 24


def test_own_pooling_where_there_is_no_class_token(tmp_path):
    model = swin().eval()
    backbone = build_backbone(save(tmp_path, model)).eval()
    with torch.no_grad():
        torch.testing.assert_close(backbone(images()), model(pixel_values=images()).pooler_output)
    assert backbone.out_channels == 16


def test_mean_of_tokens_where_nothing_pools(tmp_path):
    model = swin().eval()
    model.pooler = None
    backbone = HuggingFaceBackbone(model, input_size=SIDE, preprocessing=IMAGENET).eval()
    with torch.no_grad():
        torch.testing.assert_close(backbone(images()), model(pixel_values=images()).last_hidden_state.mean(1))


def test_image_half_of_clip(tmp_path):
    model = clip().eval()
    backbone = build_backbone(save(tmp_path, model)).eval()
    with torch.no_grad():
        expected = model.vision_model(pixel_values=images()).pooler_output
        torch.testing.assert_close(backbone(images()), expected)
    assert not any("text" in name for name, _ in backbone.named_parameters())


@pytest.mark.parametrize(
    "changes, mean, std, bgr, scale",
    [
        ({}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), False, 1.0),
        ({"do_normalize": False}, (0, 0, 0), (1, 1, 1), False, 1.0),
        ({"do_rescale": False}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), False, 255.0),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True}, (1.1, 1.2, 1.3), (0.4, 0.5, 0.6), False, 2.0),
        ({"do_flip_channel_order": True}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), True, 1.0),
    ],
)
def test_preprocessing_is_read_from_the_processor_s_file(tmp_path, changes, mean, std, bgr, scale):
    preprocessing = build_backbone(save(tmp_path, resnet(), SETTINGS | changes)).preprocessing
    assert preprocessing.mean == pytest.approx(mean)
    assert preprocessing.std == pytest.approx(std)
    assert preprocessing.bgr is bgr
    assert preprocessing.scale == pytest.approx(scale)


@pytest.mark.parametrize(
    "changes, size",
    [
        ({"size": {"shortest_edge": 40}}, 40),
        ({"size": 64}, 64),
        ({"do_center_crop": True, "crop_size": {"height": 48, "width": 48}}, 48),
        ({"do_center_crop": False, "crop_size": {"height": 48, "width": 48}}, SIDE),
    ],
)
def test_size_is_the_crop_where_one_is_taken(tmp_path, changes, size):
    assert build_backbone(save(tmp_path, resnet(), SETTINGS | changes)).input_size == size


def test_preprocessing_inside_a_processor_for_image_and_text(tmp_path):
    name = save(tmp_path, vit(), {"image_processor": SETTINGS}, "processor_config.json")
    assert build_backbone(name).preprocessing.mean == (0.1, 0.2, 0.3)


def test_model_that_says_nothing_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match="says nothing about its preprocessing"):
        backbone = build_backbone(save(tmp_path, vit(), settings=None))
    assert backbone.preprocessing == IMAGENET
    assert backbone.input_size == SIDE


def test_weights_are_the_saved_ones_unless_only_the_architecture_is_asked_for(tmp_path):
    model = vit()
    name = save(tmp_path, model)
    saved = model.layernorm.weight.detach().uniform_(2, 3).clone()
    model.save_pretrained(tmp_path)
    assert torch.equal(build_backbone(name).model.layernorm.weight, saved)
    assert torch.equal(build_backbone(name, {"pretrained": False}).model.layernorm.weight, torch.ones(16))


def test_half_precision_checkpoint_becomes_float32(tmp_path):
    backbone = build_backbone(save(tmp_path, vit().half()))
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
    assert backbone(images()).dtype == torch.float32


def test_encoder_on_tokens_needs_no_pooling(tmp_path):
    encoder = build_encoder(save(tmp_path, vit()), dim=5, pooling="gem")
    embeddings = encoder(torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8))
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))
    assert embeddings.shape == (2, 5)


def test_local_weights_fill_the_wrapped_model(tmp_path):
    name = save(tmp_path, resnet())
    source = resnet()
    torch.save(source.state_dict(), tmp_path / "other.pth")
    encoder = build_encoder(name, weights=tmp_path / "other.pth")
    expected = source.state_dict()["embedder.embedder.convolution.weight"]
    assert torch.equal(encoder.backbone.model.embedder.embedder.convolution.weight, expected)


def test_folder_without_a_model_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot load backbone 'hf:.*local folder written by save_pretrained"):
        build_backbone(f"hf:{tmp_path}")


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[hf\]'"):
        build_backbone("hf:any/model")


@pytest.mark.parametrize("make", [vit, clip], ids=["vit", "clip"])
def test_position_embeddings_are_interpolated_for_larger_images(tmp_path, make):
    model = make().eval()
    vision = getattr(model, "vision_model", model)
    backbone = build_backbone(save(tmp_path, model)).eval()
    large = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for shown, options in ((large, {"interpolate_pos_encoding": True}), (images(), {})):
            output = vision(pixel_values=shown, **options)
            expected = output.last_hidden_state[:, 0] if make is vit else output.pooler_output
            torch.testing.assert_close(backbone(shown), expected, rtol=1e-4, atol=1e-4)


def test_a_network_of_one_size_says_which(tmp_path, monkeypatch):
    backbone = build_backbone(save(tmp_path, vit()))
    monkeypatch.setattr(backbone, "_for_other_sizes", {})
    said = r"made for images of 32 × 32 pixels and cannot take 48 × 40 .*data\.image_size=32 and protocol\.eval_scale=1"
    with pytest.raises(RecipeError, match=said):
        backbone(torch.zeros(1, 3, 48, 40))
    with pytest.raises(ValueError, match="channel"):  # another fault of the right size stays what it is
        backbone(torch.zeros(1, 4, SIDE, SIDE))
