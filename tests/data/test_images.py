from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data import images
from nearkin.data.images import (
    UnreadableImageError,
    decode,
    decode_bytes,
    image_extensions,
    register_heic,
)
from nearkin.errors import DataError

RED, GREEN, BLUE, WHITE, BLACK = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def photo(height: int = 48, width: int = 64, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def png_with_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_rgb_is_unchanged(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    array = decode(save(Image.fromarray(pixels), tmp_path / "a.png"))
    assert array.dtype == np.uint8
    assert array.flags.writeable
    np.testing.assert_array_equal(array, pixels)


def test_greyscale_has_three_equal_channels(tmp_path):
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    array = decode(save(Image.fromarray(grey), tmp_path / "a.png"))
    np.testing.assert_array_equal(array, np.stack([grey] * 3, axis=2))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 257, 128 * 257, 65535], [1, 256, 300, 40000]], dtype=np.uint16)
    array = decode(save(Image.fromarray(values), tmp_path / f"a.{suffix}"))
    expected = [[0, 1, 128, 255], [0, 1, 1, round(40000 / 257)]]
    np.testing.assert_array_equal(array[:, :, 0], expected)
    np.testing.assert_array_equal(array[:, :, 0], array[:, :, 2])


def test_thirty_two_bits_and_floats_are_stretched(tmp_path):
    wide = np.array([[-1_000_000, 500_000, 1_000_000]], dtype=np.int32)
    assert decode(save(Image.fromarray(wide), tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 191, 255]
    floats = np.array([[0.25, 0.5, np.nan, 1.25]], dtype=np.float32)
    assert decode(save(Image.fromarray(floats), tmp_path / "b.tif"))[0, :, 0].tolist() == [51, 102, 0, 255]
    constant = np.full((2, 2), 7.0, dtype=np.float32)
    assert decode(save(Image.fromarray(constant), tmp_path / "c.tif")).max() == 0


def test_palette(tmp_path):
    image = Image.new("P", (3, 1))
    image.putpalette(RED + GREEN + BLUE)
    for column in range(3):
        image.putpixel((column, 0), column)
    assert decode(save(image, tmp_path / "a.png")).tolist() == [[RED, GREEN, BLUE]]
    assert decode(save(image, tmp_path / "b.png", transparency=1)).tolist() == [[RED, WHITE, BLUE]]
    assert decode(save(image, tmp_path / "c.png", transparency=bytes([255, 255, 0]))).tolist() == [[RED, GREEN, WHITE]]


def test_transparent_images_are_laid_on_white(tmp_path):
    rgba = np.array([[[255, 0, 0, 255], [9, 9, 9, 0], [0, 0, 0, 128]]], dtype=np.uint8)
    for suffix in ("png", "tif", "webp"):
        array = decode(save(Image.fromarray(rgba), tmp_path / f"a.{suffix}", lossless=True))
        assert array.tolist() == [[RED, WHITE, [127, 127, 127]]], suffix
    grey_alpha = np.array([[[50, 255], [50, 0]]], dtype=np.uint8)
    path = save(Image.fromarray(grey_alpha), tmp_path / "la.png")
    assert Image.open(path).mode == "LA"
    assert decode(path).tolist() == [[[50, 50, 50], WHITE]]


def test_colour_key_transparency_of_rgb(tmp_path):
    image = Image.fromarray(np.array([[RED, GREEN]], dtype=np.uint8))
    assert decode(save(image, tmp_path / "a.png", transparency=(0, 255, 0))).tolist() == [[RED, WHITE]]


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk(tmp_path, suffix):
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    array = decode(save(cmyk, tmp_path / f"a.{suffix}"))
    assert array.shape == (16, 16, 3)
    assert np.abs(array.astype(int) - RED).max() <= 3


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    for suffix in ("gif", "webp", "png"):
        path = save(frames[0], tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
        assert Image.open(path).n_frames == 3
        assert (decode(path) == RED).all(), suffix


# Where the camera's top-left, top-right, bottom-left and bottom-right pixels belong when the image stands upright.
STORED = {
    1: "ab/cd", 2: "ba/dc", 3: "dc/ba", 4: "cd/ab",
    5: "ac/bd", 6: "bd/ac", 7: "db/ca", 8: "ca/db",
}  # fmt: skip
COLOURS = {"a": RED, "b": GREEN, "c": BLUE, "d": WHITE}


@pytest.mark.parametrize("orientation, suffix", [*((number, "jpg") for number in range(1, 9)), (6, "png"), (8, "tif")])
def test_exif_orientation(tmp_path, orientation, suffix):
    # Wide quarters: the upright image is 32 high and 64 wide, its corners red, green, blue and white.
    quarter = (16, 32) if orientation <= 4 else (32, 16)
    rows = STORED[orientation].split("/")
    stored = np.concatenate(
        [
            np.concatenate([np.full((*quarter, 3), COLOURS[letter], dtype=np.uint8) for letter in row], axis=1)
            for row in rows
        ]
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if suffix == "jpg" else {"lossless": True}
    array = decode(save(Image.fromarray(stored), tmp_path / f"a.{suffix}", exif=exif, **options)).astype(int)
    assert array.shape == (32, 64, 3)
    corners = [array[4, 4], array[4, -4], array[-4, 4], array[-4, -4]]
    assert np.abs(np.array(corners) - [RED, GREEN, BLUE, WHITE]).max() <= 4


def test_sixteen_bits_are_turned_upright_too(tmp_path):
    values = np.array([[0, 65535, 0]], dtype=np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6
    array = decode(save(Image.fromarray(values), tmp_path / "a.png", exif=exif))
    assert array[:, :, 0].tolist() == [[0], [255], [0]]


def test_broken_exif_does_not_cost_the_image(tmp_path):
    buffer = io.BytesIO()
    photo().save(buffer, "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff" + b"\x01" * 11)
    path = tmp_path / "a.jpg"
    path.write_bytes(buffer.getvalue())
    assert decode(path).shape == (48, 64, 3)


def test_pillow_warnings_stay_off_the_screen(tmp_path):
    path = tmp_path / "a.jpg"
    photo().save(path, exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff" + b"\x01" * 11)
    with warnings.catch_warnings(record=True) as heard:
        warnings.resetwarnings()
        warnings.simplefilter("always")
        Image.open(path).getexif()
    assert heard, "the file should make Pillow warn"
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        assert decode(path).shape == (48, 64, 3)
        with pytest.raises(UserWarning):
            warnings.warn("one that is not Pillow's", UserWarning, stacklevel=1)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jpg", b"", "empty"),
        ("text.jpg", b"not pixels at all, just words\n" * 20, "not an image"),
        ("signature.png", b"\x89PNG\r\n\x1a\n", "."),
        ("bomb.png", png_with_header(100_000, 100_000), "too large"),
        ("large.png", png_with_header(12_000, 11_000), "too large: 12000 x 11000"),
        ("strip.png", png_with_header(2_000_000, 1), "too large: 2000000 x 1"),
        ("drawing.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n", "drawing"),
        ("short.png", png_with_header(100, 100), "."),
    ],
)
def test_unreadable_content(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError, match=reason) as caught:
        decode(path)
    assert caught.value.path == path
    assert caught.value.reason
    assert "\n" not in caught.value.reason
    assert isinstance(caught.value, DataError)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp"])
def test_truncated_files(tmp_path, suffix):
    path = save(photo(200, 300), tmp_path / f"a.{suffix}")
    whole = path.read_bytes()
    assert decode(path).shape == (200, 300, 3)
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UnreadableImageError) as caught:
            decode(path)
        assert caught.value.path == path


def test_flipped_bytes_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(0)
    outcomes = set()
    for suffix in ("jpg", "png", "webp", "gif", "tif", "bmp"):
        whole = save(photo(), tmp_path / f"a.{suffix}").read_bytes()
        for _ in range(15):
            damaged = bytearray(whole)
            for place in rng.integers(0, len(damaged), 8):
                damaged[place] = rng.integers(256)
            path = tmp_path / f"b.{suffix}"
            path.write_bytes(damaged)
            try:
                outcomes.add(decode(path).shape[2])
            except UnreadableImageError:
                outcomes.add("unreadable")
    assert outcomes == {3, "unreadable"}


def test_missing_folder_and_forbidden(tmp_path):
    with pytest.raises(UnreadableImageError, match="no such file"):
        decode(tmp_path / "nothing.jpg")
    with pytest.raises(UnreadableImageError, match="a folder"):
        decode(tmp_path)
    with pytest.raises(UnreadableImageError, match="null"):
        decode("a\0b.jpg")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UnreadableImageError, match="regular file"):
        decode(tmp_path / "pipe.jpg")


def test_permission_denied(tmp_path, monkeypatch):
    path = save(photo(), tmp_path / "a.png")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UnreadableImageError, match="permission denied"):
        decode(path)


def test_bomb_is_refused_before_its_pixels_are_decoded(tmp_path, monkeypatch):
    path = save(Image.new("L", (200, 100)), tmp_path / "a.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 20_000)
    assert decode(path).shape == (100, 200, 3)

    def decoded(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    monkeypatch.setattr(images, "MAX_PIXELS", 19_999)
    with pytest.raises(UnreadableImageError, match="200 x 100"):
        decode(path)


def test_file_far_too_large_for_an_image_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    path = tmp_path / "film.jpg"
    with open(path, "wb") as file:
        file.truncate(3 << 20)
    with pytest.raises(UnreadableImageError, match="3,145,728 bytes"):
        decode(path)


def test_error_survives_pickling():
    error = pickle.loads(pickle.dumps(UnreadableImageError(Path("x y.jpg"), "truncated")))
    assert (error.path, error.reason, str(error)) == (Path("x y.jpg"), "truncated", "x y.jpg: truncated")


def test_shrunk_sizes(tmp_path):
    for height, width, expected in [
        (512, 768, (256, 384)),
        (768, 512, (384, 256)),
        (300, 401, (256, 342)),
        (256, 999, (256, 999)),
        (10, 5, (10, 5)),
        (1, 9000, (1, 9000)),
    ]:
        path = save(Image.new("RGB", (width, height)), tmp_path / "a.png")
        assert decode(path, shorter_side=256).shape[:2] == expected


def test_shrinking_averages_instead_of_picking_pixels(tmp_path):
    chequers = np.indices((512, 512)).sum(axis=0) % 2 * 255
    image = np.repeat(chequers[:, :, None], 3, axis=2).astype(np.uint8)
    small = decode(save(Image.fromarray(image), tmp_path / "a.png"), shorter_side=64).astype(int)
    assert np.abs(small - 127.5).max() <= 2


def test_large_jpeg_decoded_at_a_fraction_looks_the_same(tmp_path):
    path = save(photo(1200, 1600), tmp_path / "a.jpg", quality=95)
    quick = decode(path, shorter_side=100)
    exact = np.asarray(photo(1200, 1600).resize((133, 100), Image.Resampling.BOX))
    assert quick.shape == (100, 133, 3)
    assert np.abs(quick.astype(int) - exact).mean() < 2


HEIC_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_what_pillow_reads_is_read_and_drawings_and_videos_are_not():
    endings = image_extensions()
    assert {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".ppm"} <= endings
    assert {".jp2", ".tga", ".ico", ".psd", ".mpo"} <= endings
    assert not endings & {".eps", ".ps", ".wmf", ".emf", ".pdf", ".mpg", ".mpeg", ".h5", ".svg", ".mp4", ".txt"}


@pytest.mark.parametrize(("name", "kind"), [("a.jfif", "JPEG"), ("a.jp2", "JPEG2000"), ("a.tga", "TGA")])
def test_less_usual_endings_are_decoded(tmp_path, name, kind):
    (tmp_path / name).write_bytes(saved(Image.new("RGB", (20, 10), (200, 100, 50)), kind))
    assert np.abs(decode(tmp_path / name).astype(int) - [200, 100, 50]).max() <= 4


@pytest.mark.skipif(".avif" not in image_extensions(), reason="this Pillow was built without AVIF")
def test_avif_is_decoded_and_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.avif").write_bytes(saved(Image.new("RGB", (24, 16), "red"), "AVIF", exif=exif))
    assert decode(tmp_path / "a.avif").shape == (24, 16, 3)


@pytest.mark.skipif(register_heic(), reason="HEIC can be read here")
def test_a_heic_photo_says_what_to_install():
    with pytest.raises(UnreadableImageError, match=r"IMG_1.heic: a HEIC photo: pip install 'nearkin\[heic\]'"):
        decode_bytes(HEIC_HEAD + bytes(100), path=Path("IMG_1.heic"))


def test_heic_photos_are_decoded_upright(tmp_path):
    pytest.importorskip("pillow_heif")
    assert {".heic", ".heif"} <= image_extensions()
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, 48:] = (250, 20, 20)
    (tmp_path / "a.heic").write_bytes(saved(Image.fromarray(pixels), "HEIF", exif=exif.tobytes()))
    array = decode(tmp_path / "a.heic")
    assert array.shape == (96, 64, 3)
    assert array[:40].mean() < 20 < 60 < array[56:].mean(), "turned clockwise, what was right is below"
