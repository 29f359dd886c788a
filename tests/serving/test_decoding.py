"""Decoding in processes of their own: right, bounded, and replaced when they hang or die."""

from __future__ import annotations

import asyncio
import os
import struct
import zlib

import numpy as np
import pytest

from nearkin.data.images import crop_shares, decode_bytes
from nearkin.serving import decoding
from nearkin.serving.decoding import Decoder
from nearkin.serving.errors import RequestError


@pytest.fixture
def decoder():
    made = Decoder(1, max_pixels=1_000_000)
    yield made
    made.close()


def decode(decoder, content, shorter_side=None, crop=None):
    return asyncio.run(decoder.decode(content, shorter_side=shorter_side, crop=crop))


def refusal(decoder, content, **options):
    with pytest.raises(RequestError) as caught:
        decode(decoder, content, **options)
    return caught.value.status_code, caught.value.detail


def png_of(width, height):
    """A PNG that says it has so many pixels, black ones, whatever that takes to unpack."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_pixels_are_those_of_the_package(decoder, encode, tmp_path):
    for format in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        content = encode(np.random.default_rng(0).integers(0, 255, (50, 70, 3)), format)
        for side in (None, 32):
            expected = decode_bytes(content, path=tmp_path, shorter_side=side)
            np.testing.assert_array_equal(decode(decoder, content, side), expected)


def test_a_crop_is_cut_before_it_is_shrunk(decoder, encode):
    pixels = np.random.default_rng(0).integers(0, 255, (80, 60, 3)).astype(np.uint8)
    crop = (0.5, 0.25, 0.5, 0.5)
    np.testing.assert_array_equal(decode(decoder, encode(pixels), None, crop), pixels[20:60, 30:60])
    assert decode(decoder, encode(pixels), 20, crop).shape == (26, 20, 3)
    assert crop_shares(pixels, (0.999, 0.999, 0.0001, 0.0001)).shape == (1, 1, 3)
    assert crop_shares(pixels, (1.0, 1.0, 0.001, 0.001)).shape == (1, 1, 3)
    assert crop_shares(pixels, (0.0, 0.0, 1.0, 1.001)).shape == pixels.shape


def test_more_pixels_than_allowed_are_refused_by_the_header(decoder):
    bomb = png_of(40_000, 2_000)
    assert len(bomb) < 100_000
    status, text = refusal(decoder, bomb)
    assert (status, "40,000 x 2,000 pixels" in text) == (413, True)
    assert decode(decoder, png_of(1000, 1000)).shape == (1000, 1000, 3)


def test_what_is_no_image_is_said_to_be_none(decoder, encode):
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    for content in (b"", b"no image", postscript, b"\x89PNG\r\n\x1a\n", b"P", encode(np.zeros((4, 4, 3)), "TGA")):
        assert refusal(decoder, content)[0] == 415


def test_a_damaged_image_is_said_to_be_damaged(decoder, encode):
    content = encode(np.random.default_rng(0).integers(0, 255, (50, 70, 3)))
    status, text = refusal(decoder, content[: len(content) // 2])
    assert (status, "cannot be read" in text) == (422, True)
    assert decoder.refused == 1
    assert decoder.lost == 0


def test_too_little_memory_is_an_answer(encode, monkeypatch):
    monkeypatch.setattr(decoding, "MEMORY", 600 << 20)
    decoder = Decoder(1, max_pixels=10**9)
    try:
        assert refusal(decoder, png_of(20_000, 5_000))[0] == 422
        assert decode(decoder, encode(np.zeros((4, 4, 3)))).shape == (4, 4, 3)
    finally:
        decoder.close()


def test_a_decoder_that_hangs_is_killed_and_replaced(decoder, encode, monkeypatch, tmp_path):
    good = encode(np.zeros((4, 4, 3)))
    monkeypatch.setattr(decoding, "WORKER", ["-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(decoding, "SECONDS", 1)
    status, text = refusal(decoder, good)
    assert (status, "too long" in text, decoder.lost) == (422, True, 1)
    monkeypatch.undo()
    assert decode(decoder, good).shape == (4, 4, 3)


def test_a_decoder_that_dies_is_replaced(decoder, encode, monkeypatch):
    good = encode(np.zeros((4, 4, 3)))
    monkeypatch.setattr(decoding, "WORKER", ["-c", "import os, sys; sys.stdin.buffer.read(40); os.abort()"])
    status, text = refusal(decoder, good)
    assert (status, "crashed" in text, decoder.lost) == (422, True, 1)
    monkeypatch.undo()
    assert decode(decoder, good).shape == (4, 4, 3)
    process = decoder._idle.get()
    process._process.kill()
    process._process.wait()
    decoder._idle.put(process)
    assert decode(decoder, good).shape == (4, 4, 3)
    assert decoder.lost == 1


def test_processor_time_is_limited_too(encode, monkeypatch):
    burn = "from nearkin.serving import decode_worker as w; w.decoded = lambda *_: exec('while 1: pass'); w.main()"
    monkeypatch.setattr(decoding, "WORKER", ["-c", burn])
    monkeypatch.setattr(decoding, "SECONDS", 60)
    monkeypatch.setattr(decoding, "CPU_SECONDS", 1)
    decoder = Decoder(1, max_pixels=1_000_000)
    try:
        assert "crashed" in refusal(decoder, encode(np.zeros((4, 4, 3))))[1]
    finally:
        decoder.close()


def test_a_decoder_knows_no_key_and_cannot_write_files(monkeypatch, tmp_path, encode):
    say = (
        "import os\nfrom nearkin.serving import decode_worker as w\n"
        "def tell(*_):\n"
        "    try:\n"
        f"        os.write(os.open({str(tmp_path / 'out')!r}, os.O_CREAT | os.O_WRONLY), b'x')\n"
        "        wrote = 'wrote'\n"
        "    except OSError:\n"
        "        wrote = 'refused'\n"
        "    raise w.Refused(422, wrote + str('NEARKIN_API_KEY' in os.environ))\n"
        "w.decoded = tell; w.main()\n"
    )
    monkeypatch.setenv("NEARKIN_API_KEY", "a secret of the server")
    monkeypatch.setattr(decoding, "WORKER", ["-c", say])
    decoder = Decoder(1, max_pixels=1_000_000)
    try:
        assert refusal(decoder, encode(np.zeros((4, 4, 3)))) == (422, "refusedFalse")
    finally:
        decoder.close()


def test_closing_ends_the_processes(encode):
    decoder = Decoder(2, max_pixels=1_000_000)
    decode(decoder, encode(np.zeros((4, 4, 3))))
    process = decoder._idle.get()
    decoder._idle.put(process)
    other = decoder._idle.get()
    decoder._idle.put(other)
    numbers = [each._process.pid for each in (process, other) if each is not None]
    decoder.close()
    assert numbers
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
