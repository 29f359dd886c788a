import numpy as np
import pytest
import torch

from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.preprocessing import CAFFE_BGR, HALF, IMAGENET, Preprocessing, as_preprocessing
from nearkin.errors import RecipeError

PIXELS = torch.tensor([[[[10, 100, 200]], [[0, 255, 51]]]], dtype=torch.uint8)  # one image, 2 rows, 1 column, RGB


def test_arithmetic_by_hand():
    out = Preprocessing(mean=(0.5, 0.25, 0.0), std=(0.5, 2.0, 1.0))(PIXELS)
    expected = [
        [[10 / 255 * 2 - 1], [-1.0]],
        [[(100 / 255 - 0.25) / 2], [0.375]],
        [[200 / 255], [0.2]],
    ]
    assert out.shape == (1, 3, 2, 1)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[0], torch.tensor(expected))


def test_bn_inception_takes_blue_first_in_255_minus_the_mean():
    assert build_backbone("bn_inception").preprocessing == CAFFE_BGR
    out = CAFFE_BGR(PIXELS)
    expected = [[[200.0 - 104], [51.0 - 104]], [[100.0 - 117], [255.0 - 117]], [[10.0 - 128], [0.0 - 128]]]
    torch.testing.assert_close(out[0], torch.tensor(expected), atol=1e-4, rtol=0)


def test_lite_takes_x_minus_127_over_128():
    out = build_backbone("efficientnet_lite0").preprocessing(PIXELS)
    torch.testing.assert_close(out, (PIXELS.permute(0, 3, 1, 2).float() - 127) / 128)


@pytest.mark.parametrize("preprocessing", [IMAGENET, HALF, CAFFE_BGR])
def test_agrees_with_numpy_on_random_images(preprocessing):
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    x = images.astype(np.float64) / 255 * preprocessing.scale
    x = x[..., ::-1] if preprocessing.bgr else x
    expected = ((x - np.array(preprocessing.mean)) / np.array(preprocessing.std)).transpose(0, 3, 1, 2)
    out = preprocessing(torch.from_numpy(images))
    assert out.is_contiguous()
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=2e-5)


def test_input_is_left_alone():
    before = PIXELS.clone()
    IMAGENET(PIXELS)
    assert torch.equal(PIXELS, before)


def test_first_use_in_inference_mode_does_not_spoil_training():
    preprocessing = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    with torch.inference_mode():
        preprocessing(PIXELS)
    weight = torch.ones(1, requires_grad=True)
    (preprocessing(PIXELS) * weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("images", [torch.zeros(1, 4, 4, 3), torch.zeros(1, 3, 4, 4, dtype=torch.uint8)])
def test_wrong_dtype_or_layout_is_named(images):
    with pytest.raises(ValueError, match=r"uint8 \[B, H, W, 3\], got"):
        HALF(images)


@pytest.mark.parametrize(
    "value, message",
    [
        ("imagnet", "did you mean 'imagenet'"),
        ({"mean": [0, 0, 0], "std": [1, 1, 1], "brg": True}, "did you mean 'bgr'"),
        ({"mean": [0, 0, 0]}, "needs mean and std"),
        ({"mean": [0, 0], "std": [1, 1, 1]}, "mean must be a list of 3 values"),
        ({"mean": [0, 0, "x"], "std": [1, 1, 1]}, "mean must be a number, got 'x'"),
        ({"mean": [0, 0, 0], "std": [1, 0, 1]}, "std and scale must be positive"),
        ({"mean": [0, 0, 0], "std": [1, 1, 1], "scale": 0}, "std and scale must be positive"),
        (7, "must be a name"),
    ],
)
def test_bad_recipes_say_what_is_wrong(value, message):
    with pytest.raises(RecipeError, match=message):
        as_preprocessing(value)


@pytest.mark.parametrize("name", ["small", "resnet18", "resnet50_v1", "bn_inception", "efficientnet_lite0"])
def test_the_mean_pixel_becomes_nothing(name):
    preprocessing = build_backbone(name).preprocessing
    pixel = torch.tensor(preprocessing.mean_pixel, dtype=torch.uint8).view(1, 1, 1, 3)
    one = preprocessing.scale / 255 / min(preprocessing.std)  # what one level of 256 is there
    assert preprocessing(pixel).abs().max() <= 0.51 * one
