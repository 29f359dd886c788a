from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
from PIL import Image

from nearkin.data.cache import cache_contents, clear_cache, open_images
from nearkin.data.folder import read_folder
from nearkin.data.packs import sole_writer
from nearkin.errors import DataError


@pytest.fixture
def cache(tmp_path, photos):
    """A cache of 48 decoded images and some rendered glyphs, in a folder that holds other things too."""
    root = tmp_path / "cache"
    open_images(read_folder(photos), cache_dir=root / "decoded", shorter_side=32)
    (root / "glyphs").mkdir()
    np.savez(root / "glyphs" / "glyphs-0123456789abcdef.npz", labels=np.zeros(7), images=np.zeros((7, 4, 4)))
    (root / "letters").mkdir()
    (root / "letters" / "to keep.txt").write_text("dear")
    (root / "decoded" / "mine.txt").write_text("dear")
    return root


def test_contents_are_counted_by_what_they_are(cache):
    contents = cache_contents(cache)
    assert {part.what: part.images for part in contents.parts if part.images} == {
        "decoded, shorter side 32": 48,
        "Glyphs, rendered": 7,
    }
    assert contents.bytes >= 48 * 32 * 32 * 3
    assert contents.images == 55
    listed = {file for part in contents.parts for file in part.files}
    assert not any(file.read_text(errors="replace") == "dear" for file in listed)


def test_clearing_removes_all_of_it_and_nothing_else(cache, photos):
    before = cache_contents(cache)
    assert clear_cache(cache).bytes == before.bytes
    assert cache_contents(cache).parts == ()
    left = sorted(str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file())
    assert left == ["decoded/mine.txt", "letters/to keep.txt"]
    assert len(open_images(read_folder(photos), cache_dir=cache / "decoded", shorter_side=32).images) == 48


@pytest.mark.skipif(os.name != "posix", reason="open files cannot be removed elsewhere")
def test_images_that_are_open_can_be_read_after_clearing(cache, photos):
    opened = open_images(read_folder(photos), cache_dir=cache / "decoded", shorter_side=32)
    before = opened.images[3].copy()
    clear_cache(cache)
    np.testing.assert_array_equal(opened.images[3], before)


def _write_for_ever(folder, begun, done):
    with sole_writer(folder, "work"):
        begun.set()
        done.wait(60)


@pytest.mark.skipif(os.name != "posix", reason="no such locks elsewhere")
def test_nothing_is_cleared_while_another_process_writes(cache):
    (folder,) = (cache / "decoded").glob("pixels*")
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    writer = context.Process(target=_write_for_ever, args=(folder, begun, done))
    writer.start()
    try:
        assert begun.wait(60)
        with pytest.raises(DataError, match="another process is decoding images into"):
            clear_cache(cache)
        assert cache_contents(cache).images == 55
    finally:
        done.set()
        writer.join()
    clear_cache(cache)
    assert cache_contents(cache).parts == ()


def test_an_unreadable_file_of_glyphs_counts_as_bytes(cache):
    (cache / "glyphs" / "glyphs-broken.npz").write_bytes(b"PK\x03\x04 no")
    assert cache_contents(cache).images == 55
    clear_cache(cache)
    assert not list((cache).glob("glyphs/*"))


def test_a_cache_that_is_not_there(tmp_path):
    assert cache_contents(tmp_path / "none").bytes == 0
    assert clear_cache(tmp_path / "none").parts == ()
    assert not (tmp_path / "none").exists()
    Image.new("RGB", (4, 4)).save(tmp_path / "mine.png")
    clear_cache(tmp_path)
    assert (tmp_path / "mine.png").exists()
