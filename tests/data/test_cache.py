from __future__ import annotations

import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data import cache
from nearkin.data.cache import cache_root, open_images
from nearkin.data.images import UnreadableImageError, decode
from nearkin.data.table import ImageTable
from nearkin.errors import DataError


def settle(*paths: Path) -> None:
    """Make files look as old as those of a data set, which were not written a moment ago."""
    then = time.time() - 1000
    for path in paths:
        os.utime(path, (then, then))


def make_images(folder: Path, count: int, *, seed: int = 0, size: tuple[int, int] = (20, 30)) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    paths = [folder / f"Bild {number:03d} ä.png" for number in range(count)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    settle(*paths)
    return paths


def table_of(paths: list[Path]) -> ImageTable:
    half = len(paths) // 2
    return ImageTable.build(
        "birds", paths, ["owl"] * half + ["kite"] * (len(paths) - half), splits=["train"] * len(paths)
    )


def check_pixels(opened: cache.OpenedImages, shorter_side: int | None = None) -> None:
    assert len(opened.images) == len(opened.table)
    for row, path in enumerate(opened.table.images):
        np.testing.assert_array_equal(opened.images[row], decode(path, shorter_side=shorter_side))


@pytest.fixture
def no_decoding(monkeypatch):
    """Call the fixture's value; from then on every decode fails the test."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an image was decoded")

    def forbid() -> None:
        monkeypatch.setattr(cache, "decode_bytes", refuse)
        monkeypatch.setattr(cache, "decode", refuse)
        monkeypatch.setattr("PIL.Image.open", refuse)

    return forbid


@pytest.fixture
def no_reading(monkeypatch, no_decoding):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an image file was read")

    def forbid() -> None:
        no_decoding()
        monkeypatch.setattr(cache, "read_file", refuse)

    return forbid


def sums(opened: cache.OpenedImages) -> list[int]:
    return [int(opened.images[row].sum()) for row in range(len(opened.images))]


def test_second_opening_neither_reads_nor_decodes(tmp_path, no_reading):
    table = table_of(make_images(tmp_path / "data", 12))
    first = open_images(table, cache_dir=tmp_path / "cache")
    check_pixels(first)
    assert first.table is table
    assert first.unreadable == ()
    before = sums(first)
    no_reading()
    assert sums(open_images(table, cache_dir=tmp_path / "cache")) == before


def test_part_of_a_table_needs_no_new_pack(tmp_path, no_reading):
    table = table_of(make_images(tmp_path / "data", 12))
    all_sums = sums(open_images(table, cache_dir=tmp_path / "cache"))
    no_reading()
    part = open_images(table.take([7, 2, 2]), cache_dir=tmp_path / "cache")
    assert sums(part) == [all_sums[7], all_sums[2], all_sums[2]]


def test_images_are_shrunk_to_the_shorter_side(tmp_path):
    paths = make_images(tmp_path / "data", 3, size=(100, 150)) + make_images(tmp_path / "small", 1, size=(10, 15))
    opened = open_images(table_of(paths), cache_dir=tmp_path / "cache", shorter_side=40)
    assert [opened.images[row].shape for row in range(4)] == [(40, 60, 3)] * 3 + [(10, 15, 3)]
    check_pixels(opened, shorter_side=40)


def test_other_settings_have_their_own_packs(tmp_path, no_reading):
    table = table_of(make_images(tmp_path / "data", 4, size=(100, 100)))
    small = open_images(table, cache_dir=tmp_path / "cache", shorter_side=20)
    large = open_images(table, cache_dir=tmp_path / "cache", shorter_side=50)
    assert small.images[0].shape == (20, 20, 3)
    assert large.images[0].shape == (50, 50, 3)
    no_reading()
    assert open_images(table, cache_dir=tmp_path / "cache", shorter_side=20).images[0].shape == (20, 20, 3)


def test_touched_files_are_read_but_not_decoded(tmp_path, no_decoding):
    paths = make_images(tmp_path / "data", 6)
    before = sums(open_images(table_of(paths), cache_dir=tmp_path / "cache"))
    for path in paths:
        os.utime(path, (time.time() - 500, time.time() - 500))
    no_decoding()
    assert sums(open_images(table_of(paths), cache_dir=tmp_path / "cache")) == before


def test_moved_folder_is_read_once_and_never_decoded(tmp_path, no_decoding, no_reading):
    paths = make_images(tmp_path / "data", 6)
    before = sums(open_images(table_of(paths), cache_dir=tmp_path / "cache"))
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    moved = table_of([tmp_path / "elsewhere" / path.name for path in paths])
    no_decoding()
    assert sums(open_images(moved, cache_dir=tmp_path / "cache")) == before
    no_reading()
    assert sums(open_images(moved, cache_dir=tmp_path / "cache")) == before


def test_changed_content_is_decoded_again(tmp_path):
    paths = make_images(tmp_path / "data", 6)
    first = open_images(table_of(paths), cache_dir=tmp_path / "cache")
    kept = sums(first)
    Image.new("RGB", (5, 5), "red").save(paths[2])
    second = open_images(table_of(paths), cache_dir=tmp_path / "cache")
    check_pixels(second)
    assert second.images[2].shape == (5, 5, 3)
    assert sums(first) == kept, "a running process keeps what it has opened"


def test_content_changed_within_the_same_size_and_moment_is_noticed(tmp_path):
    paths = make_images(tmp_path / "data", 2)
    bitmap = tmp_path / "data" / "a.bmp"
    Image.new("RGB", (8, 8), "red").save(bitmap)
    state = os.stat(bitmap)
    table = table_of([*paths, bitmap])
    assert open_images(table, cache_dir=tmp_path / "cache").images[2][0, 0].tolist() == [255, 0, 0]
    Image.new("RGB", (8, 8), "blue").save(bitmap)
    os.utime(bitmap, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert os.stat(bitmap).st_size == state.st_size
    assert open_images(table, cache_dir=tmp_path / "cache").images[2][0, 0].tolist() == [0, 0, 255]


def test_only_new_files_are_decoded(tmp_path, monkeypatch):
    paths = make_images(tmp_path / "data", 6)
    open_images(table_of(paths[:4]), cache_dir=tmp_path / "cache")
    decoded = []

    def counting(data: bytes, *, path: Path, **options: int) -> np.ndarray:
        decoded.append(path)
        return decode(path)

    monkeypatch.setattr(cache, "decode_bytes", counting)
    steps = []
    opened = open_images(
        table_of(paths), cache_dir=tmp_path / "cache", progress=lambda done, total: steps.append((done, total))
    )
    assert sorted(decoded) == paths[4:]
    assert steps == [(1, 2), (2, 2)]
    check_pixels(opened)


def test_equal_files_are_stored_once(tmp_path):
    paths = make_images(tmp_path / "data", 1)
    copies = [tmp_path / "data" / f"copy{number}.png" for number in range(9)]
    for path in copies:
        shutil.copy(paths[0], path)
    opened = open_images(table_of(paths + copies), cache_dir=tmp_path / "cache", workers=4)
    check_pixels(opened)
    assert sum(pack.stat().st_size for pack in (tmp_path / "cache").rglob("*.bin")) == 20 * 30 * 3


def test_digests_are_of_the_content_and_cost_no_second_reading(tmp_path, no_reading):
    paths = make_images(tmp_path / "a", 4)
    expected = tuple(blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in paths)
    broken = tmp_path / "a" / "Bild 001 x.png"
    broken.write_text("no image")
    table = table_of([*paths[:2], broken, *paths[2:]])
    held = open_images(table, cache_dir=None, tolerance=0.5)
    packed = open_images(table, cache_dir=tmp_path / "cache", tolerance=0.5)
    assert held.digests == packed.digests == expected
    no_reading()
    assert open_images(table_of(paths[::-1]), cache_dir=tmp_path / "cache").digests == expected[::-1]


def test_digests_of_images_in_memory_are_of_their_pixels():
    pixels = np.stack([np.full((4, 5), grey, dtype=np.uint8) for grey in (1, 2, 1)])
    table = ImageTable.build("toy", pixels, ["a", "b", "c"], splits=["train"] * 3)
    first, second, third = open_images(table, cache_dir=None).digests
    assert first == third != second
    assert first == blake2b(bytes([1] * 20), digest_size=16).hexdigest()


def broken_files(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"broken{number}.jpg" for number in range(count)]
    for path in paths:
        path.write_bytes(b"these are no pixels")
    return paths


@pytest.mark.parametrize("stored", [True, False])
def test_unreadable_rows_are_left_out_and_named(tmp_path, stored):
    good, bad = make_images(tmp_path / "data", 9), broken_files(tmp_path / "data", 1)
    table = table_of(good[:3] + bad + good[3:])
    for _ in range(2):
        opened = open_images(table, cache_dir=tmp_path / "cache" if stored else None, tolerance=0.2)
        assert [error.path for error in opened.unreadable] == bad
        assert all(isinstance(error, UnreadableImageError) for error in opened.unreadable)
        assert list(opened.table.images) == good
        assert opened.table.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
        check_pixels(opened)


@pytest.mark.parametrize(
    ("good", "bad", "tolerance", "stops"),
    [
        (199, 1, 0.01, False),
        (99, 1, 0.01, True),
        (93, 7, 0.07, True),
        (94, 6, 0.07, False),
        (9, 0, 0.0, False),
        (9, 1, 0.0, True),
        (1, 1, 1.0, False),
        (0, 3, 1.0, True),
    ],
)
def test_tolerance_boundary(tmp_path, good, bad, tolerance, stops):
    # One good and one bad file, listed many times: the share counts rows.
    rows = make_images(tmp_path / "data", 1) * good + broken_files(tmp_path / "data", 1) * bad
    if stops:
        with pytest.raises(DataError, match=f"{bad if good else 'none'} of the {good + bad} images of 'birds'"):
            open_images(table_of(rows), cache_dir=tmp_path / "cache", tolerance=tolerance)
    else:
        opened = open_images(table_of(rows), cache_dir=tmp_path / "cache", tolerance=tolerance)
        assert len(opened.table) == good
        assert len(opened.images) == good


def test_list_of_unreadable_files_is_readable(tmp_path):
    bad = broken_files(tmp_path / "data", 24)
    missing = tmp_path / "data" / "missing.jpg"
    with pytest.raises(DataError) as caught:
        open_images(table_of([missing, *bad, *make_images(tmp_path / "data", 3)]), cache_dir=tmp_path / "cache")
    message = str(caught.value)
    assert f"{missing}: no such file" in message
    assert str(bad[18]) in message
    assert str(bad[19]) not in message
    assert "25 of the 28" in message
    assert "5 more" in message
    assert "data.unreadable_tolerance" in message


def test_repaired_file_is_taken_in(tmp_path):
    good, bad = make_images(tmp_path / "data", 3), broken_files(tmp_path / "data", 1)
    table = table_of(good + bad)
    assert len(open_images(table, cache_dir=tmp_path / "cache", tolerance=0.5).table) == 3
    Image.new("RGB", (4, 4), "red").save(bad[0])
    opened = open_images(table, cache_dir=tmp_path / "cache", tolerance=0.0)
    assert len(opened.table) == 4
    assert opened.unreadable == ()


def test_nothing_on_disk_without_a_cache_folder(tmp_path, no_decoding, monkeypatch):
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    table = table_of(make_images(tmp_path / "data", 6))
    opened = open_images(table, cache_dir=None)
    check_pixels(opened)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    no_decoding()
    assert opened.images[5].shape == (20, 30, 3)


def test_images_beyond_the_memory_budget_are_decoded_on_demand(tmp_path, monkeypatch):
    table = table_of(make_images(tmp_path / "data", 6, size=(40, 60)))
    opened = open_images(table, cache_dir=None, shorter_side=20, memory_budget=4 * 20 * 30 * 3 + 7)
    check_pixels(opened, shorter_side=20)
    asked = []

    def noting(path: Path, **options: int) -> np.ndarray:
        asked.append(path)
        return decode(path, **options)

    monkeypatch.setattr(cache, "decode", noting)
    for row in range(6):
        assert opened.images[row].shape == (20, 30, 3)
    assert asked == list(table.images[4:])


@pytest.mark.parametrize("stored", [True, False])
def test_opened_images_can_be_pickled_and_read_by_threads(tmp_path, stored):
    table = table_of(make_images(tmp_path / "data", 10))
    opened = open_images(table, cache_dir=tmp_path / "cache" if stored else None, memory_budget=10_000)
    images = pickle.loads(pickle.dumps(opened.images))
    expected = sums(opened)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda row: int(images[row].sum()), range(10))) == expected


def test_table_in_memory_is_taken_as_it_is(tmp_path, no_decoding):
    no_decoding()
    grey = np.random.default_rng(0).integers(0, 256, (4, 300, 310), dtype=np.uint8)
    table = ImageTable.build("toy", grey, list("abab"), splits=["train"] * 4)
    opened = open_images(table, cache_dir=tmp_path / "cache")
    assert opened.table is table
    assert opened.images[3].shape == (300, 310, 3)
    assert np.shares_memory(opened.images[3], grey)
    np.testing.assert_array_equal(opened.images[3][:, :, 2], grey[3])
    colour = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    opened = open_images(ImageTable.build("toy", colour, list("ab"), splits=["train"] * 2), cache_dir=None)
    np.testing.assert_array_equal(opened.images[1], colour[1])
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("wrong", [np.zeros((2, 4, 4), np.float32), np.zeros((2, 4, 4, 4), np.uint8)])
def test_table_in_memory_of_the_wrong_kind(wrong):
    table = ImageTable.build("toy", wrong, ["a", "b"], splits=["train"] * 2)
    with pytest.raises(DataError, match="uint8"):
        open_images(table, cache_dir=None)


@pytest.mark.parametrize(
    "options", [{"tolerance": -0.1}, {"tolerance": 1.5}, {"tolerance": float("nan")}, {"shorter_side": 0}]
)
def test_wrong_arguments_are_named(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        open_images(table_of(make_images(tmp_path, 2)), cache_dir=None, **options)


def test_empty_table(tmp_path):
    for cache_dir in (None, tmp_path / "cache"):
        opened = open_images(table_of([]), cache_dir=cache_dir)
        assert len(opened.images) == len(opened.table) == 0


def test_few_decoded_images_wait_in_memory(tmp_path, monkeypatch):
    paths = make_images(tmp_path / "data", 60)
    ahead, written = [], []
    real = cache.PackWriter.add

    def add(self, digest, image):
        written.append(digest)
        ahead.append(decoded[0] - len(written))
        real(self, digest, image)

    decoded = [0]
    real_decode = cache.decode_bytes

    def counting(*args, **options):
        decoded[0] += 1
        return real_decode(*args, **options)

    monkeypatch.setattr(cache.PackWriter, "add", add)
    monkeypatch.setattr(cache, "decode_bytes", counting)
    open_images(table_of(paths), cache_dir=tmp_path / "cache", workers=2)
    assert len(written) == 60
    assert max(ahead) <= 8


def test_cache_root(monkeypatch):
    monkeypatch.setenv("NEARKIN_CACHE", "~/here")
    assert cache_root() == Path.home() / "here"
    monkeypatch.delenv("NEARKIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/nearkin")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "nearkin"
