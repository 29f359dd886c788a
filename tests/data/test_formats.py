from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data.images import (
    UnreadableImageError,
    decode,
    decode_bytes,
    image_extensions,
    is_picture,
    register_heic,
    why_left_out,
)

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


@pytest.mark.parametrize(
    ("ending", "reason", "picture"),
    [
        (".HEIC", "pip install 'nearkin[heic]'", True),
        (".jxl", "convert", True),
        (".NEF", "camera raw", True),
        (".svg", "drawings or documents", False),
        (".MP4", "videos", False),
        (".zip", "unpack", False),
        (".db", "not images", False),
        ("", "not images", False),
    ],
)
def test_reasons(ending, reason, picture):
    assert reason in why_left_out(ending)
    assert is_picture(ending) == picture


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
