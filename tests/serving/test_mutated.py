"""Image files that somebody has tampered with: each is answered, with an image's answer or with a refusal."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
SOME, ALL = 160, 2000


def originals():
    """A small file of every format, and of some variants with more to go wrong."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (24, 30, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for format in FORMATS:
        yield format, _saved(image, format)
    yield "PNG", _saved(image.convert("P"), "PNG", exif=exif)
    yield "PNG", _saved(image.convert("RGBA"), "PNG")
    yield "PNG", _saved(image.convert("I;16"), "PNG")
    yield "JPEG", _saved(image, "JPEG", progressive=True, exif=exif)
    yield "JPEG", _saved(image.convert("CMYK"), "JPEG")
    yield "GIF", _saved(image.convert("P"), "GIF", save_all=True, append_images=[image.rotate(90)] * 3)
    yield "WEBP", _saved(image, "WEBP", lossless=True)
    for compression in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        yield "TIFF", _saved(image, "TIFF", compression=compression)


def _saved(image, format, **options):
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def bombs():
    """Headers that promise far more than there is, and little that unpacks to much."""
    png = bytearray(_saved(Image.new("1", (8, 8)), "PNG"))
    for width, height in ((2**31 - 1, 2**31 - 1), (60_000, 60_000), (0, 0), (1, 2**31 - 1), (8000, 7999)):
        png[16:24] = struct.pack(">II", width, height)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        yield bytes(png)
    for format, place in (("GIF", 6), ("BMP", 18), ("JPEG", None)):
        content = bytearray(_saved(Image.new("RGB", (8, 8)), format))
        place = place or content.index(b"\xff\xc0") + 5
        content[place : place + 4] = b"\xff\xff\xff\xff"
        yield bytes(content)
    text = struct.pack(">I", 30_000) + b"zTXt"
    packed = b"a\0\0" + zlib.compress(bytes(20_000_000), 9)
    chunk = b"zTXt" + packed
    small = _saved(Image.new("1", (8, 8)), "PNG")
    yield small[:33] + struct.pack(">I", len(packed)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + small[33:]
    yield small[:33] + text + small[33:]


def mutated(count):
    """So many files, always the same ones."""
    rng = np.random.default_rng(1)
    files = list(originals())
    yield from bombs()
    for number in range(count - 10):
        _, content = files[number % len(files)]
        data = bytearray(content)
        kind = number // len(files) % 6
        if kind == 0:  # single bits
            for place in rng.integers(0, len(data), rng.integers(1, 12)):
                data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:  # the end is missing
            del data[int(rng.integers(0, len(data))) :]
        elif kind == 2:  # bytes of the header, where sizes and offsets stand
            for place in rng.integers(0, min(80, len(data)), 4):
                data[place] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind == 3:  # a stretch in the middle is gone, or there twice
            begin, end = sorted(rng.integers(0, len(data), 2).tolist())
            data[begin:end] = data[begin:end] * int(rng.choice([0, 2]))
        elif kind == 4:  # the head of one format and the body of another
            other = files[int(rng.integers(len(files)))][1]
            cut = int(rng.integers(4, 40))
            data = bytearray(content[:cut] + other[cut:])
        else:  # noise
            begin = int(rng.integers(0, len(data)))
            data[begin:] = rng.bytes(len(data) - begin)
        yield bytes(data)


def answers_to(client, files):
    found = {}
    for number, content in enumerate(files):
        answer = client.post("/search", files={"image": ("a", content)}, data={"options": '{"k": 1}'})
        assert answer.status_code in (200, 413, 415, 422), (number, answer.status_code, answer.text)
        assert "hits" in answer.json() or answer.json()["error"]
        found[answer.status_code] = found.get(answer.status_code, 0) + 1
    assert client.get("/health").status_code == 200
    return found


def test_files_are_what_they_should_be():
    assert {format for format, _ in originals()} == set(FORMATS)
    assert len(list(bombs())) == 10
    assert len(list(mutated(SOME))) == SOME
    assert len(set(mutated(ALL))) > 0.95 * ALL


def test_untouched_files_are_read(client):
    assert answers_to(client, [content for _, content in originals()]) == {200: len(list(originals()))}


def test_some_mutated_files(client):
    found = answers_to(client, mutated(SOME))
    assert len(found) == 4  # all ways in which it can end do occur
    assert client.app.state.service.decoder.lost == 0


@pytest.mark.slow
def test_two_thousand_mutated_files(client):
    assert sum(answers_to(client, mutated(ALL)).values()) == ALL
