from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from nearkin.data import cache
from nearkin.data.cache import (
    cache_root,
    cached_files,
    clear_cache,
    open_images,
    threaded_map,
    usable_cores,
    writer_lock,
)
from nearkin.data.folder import read_folder
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


def stored_images(cache_dir: Path) -> int:
    return sum(len(load_file(pack)) for pack in cache_dir.rglob("*.safetensors"))


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


def test_each_size_has_its_packs_and_a_part_of_a_table_needs_none(tmp_path, no_reading):
    paths = make_images(tmp_path / "data", 3, size=(100, 150)) + make_images(tmp_path / "small", 1, size=(10, 15))
    table = table_of(paths)
    large = open_images(table, cache_dir=tmp_path / "cache", shorter_side=50)
    small = open_images(table, cache_dir=tmp_path / "cache", shorter_side=40)
    assert large.images[0].shape == (50, 75, 3)
    assert [small.images[row].shape for row in range(4)] == [(40, 60, 3)] * 3 + [(10, 15, 3)]
    check_pixels(small, shorter_side=40)
    no_reading()
    part = open_images(table.take([3, 1, 1]), cache_dir=tmp_path / "cache", shorter_side=40)
    assert sums(part) == [sums(small)[row] for row in (3, 1, 1)]


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
    assert stored_images(tmp_path / "cache") == 1


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


def broken_files(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"broken{number}.jpg" for number in range(count)]
    for path in paths:
        path.write_bytes(b"these are no pixels")
    return paths


@pytest.mark.parametrize(
    ("good", "bad", "tolerance", "stops"),
    [(199, 1, 0.01, False), (99, 1, 0.01, True), (9, 0, 0.0, False), (9, 1, 0.0, True), (0, 3, 1.0, True)],
)
def test_tolerance_boundary(tmp_path, good, bad, tolerance, stops):
    # One good and one bad file, listed many times: the share counts rows.
    rows = make_images(tmp_path / "data", 1) * good + broken_files(tmp_path / "data", 1) * bad
    if stops:
        with pytest.raises(DataError, match=f"{bad} of the {good + bad} images of 'birds' cannot"):
            open_images(table_of(rows), cache_dir=tmp_path / "cache", tolerance=tolerance)
    else:
        opened = open_images(table_of(rows), cache_dir=tmp_path / "cache", tolerance=tolerance)
        assert len(opened.table) == len(opened.images) == good


def test_repaired_file_is_taken_in(tmp_path):
    good, bad = make_images(tmp_path / "data", 3), broken_files(tmp_path / "data", 1)
    table = table_of(good + bad)
    assert len(open_images(table, cache_dir=tmp_path / "cache", tolerance=0.5).table) == 3
    Image.new("RGB", (4, 4), "red").save(bad[0])
    opened = open_images(table, cache_dir=tmp_path / "cache", tolerance=0.0)
    assert (len(opened.table), opened.unreadable) == (4, ())


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
    assert "raise data.unreadable_tolerance (now 0.01; tolerance= in Python)." in message


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


def test_what_cannot_be_opened_is_refused(tmp_path):
    for wrong in (np.zeros((2, 4, 4), np.float32), np.zeros((2, 4, 4, 4), np.uint8)):
        with pytest.raises(DataError, match="uint8"):
            open_images(ImageTable.build("toy", wrong, ["a", "b"], splits=["train"] * 2), cache_dir=None)
    for cache_dir in (None, tmp_path / "cache"):
        assert len(open_images(table_of([]), cache_dir=cache_dir).images) == 0


def test_cache_root(monkeypatch):
    monkeypatch.setenv("NEARKIN_CACHE", "~/here")
    assert cache_root() == Path.home() / "here"
    monkeypatch.delenv("NEARKIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/nearkin")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "nearkin"


@pytest.mark.parametrize("damage", ["truncate", "remove", "overwrite"])
def test_images_of_a_damaged_pack_are_decoded_again(tmp_path, damage):
    table = table_of(make_images(tmp_path / "data", 5))
    open_images(table, cache_dir=tmp_path / "cache")
    (pack,) = (tmp_path / "cache").rglob("*.safetensors")
    if damage == "truncate":
        os.truncate(pack, 100)
    elif damage == "remove":
        pack.unlink()
    else:
        pack.write_bytes(b"not a pack")
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == (1 if damage == "remove" else 2)


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    table = table_of(make_images(tmp_path / "data", 5))
    open_images(table.take([0, 1]), cache_dir=tmp_path / "cache")
    (pack,) = (tmp_path / "cache").rglob("*.safetensors")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leftovers = [
        pack.parent / f".ab.safetensors.12.{gone.pid}.tmp",
        tmp_path / "cache" / f".files.json.12.{gone.pid}.tmp",
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))
    assert not any(leftover.exists() for leftover in leftovers)


OPEN = """
import sys, time
from pathlib import Path
import numpy as np
from nearkin.data import cache
from nearkin.data.table import ImageTable

folder, cache_dir, delay = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
paths = sorted(folder.iterdir())
table = ImageTable.build("birds", paths, ["owl"] * len(paths), splits=["train"] * len(paths))
decode_bytes, count = cache.decode_bytes, 0
cache.PACK_BYTES = 10_000

def slow(*args, **options):
    global count
    count += 1
    time.sleep(delay)
    return decode_bytes(*args, **options)

cache.decode_bytes = slow
print("ready", flush=True)
opened = cache.open_images(table, cache_dir=cache_dir, workers=1,
                           progress=lambda done, total: print("progress", done, flush=True))
print(count, [int(opened.images[row].sum()) for row in range(len(paths))])
"""


def start(folder: Path, cache_dir: Path, delay: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(folder), str(cache_dir), str(delay)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_at_once(tmp_path):
    paths = make_images(tmp_path / "data", 20)
    processes = [start(tmp_path / "data", tmp_path / "cache", 0.02) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    results = [lines[-1].split(" ", 1) for lines in outputs]
    expected = str([int(decode(path).sum()) for path in sorted(paths)])
    assert [pixels for _, pixels in results] == [expected] * 2
    assert sorted(int(count) for count, _ in results) == [0, 20], "the second should have waited for the first"
    assert sum(line.startswith("progress") for lines in outputs for line in lines) == 20, "and read nothing"
    assert stored_images(tmp_path / "cache") == 20


def test_two_processes_without_locks(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise NotImplementedError

    table = table_of(make_images(tmp_path / "data", 30))
    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_images(table, cache_dir=tmp_path / "cache", workers=2), range(4)))
    for images in opened:
        check_pixels(images)
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))


def test_without_locks_unfinished_files_of_other_machines_are_left_alone(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    unfinished = tmp_path / "cache" / ".files.json.12.999999999.tmp"
    unfinished.parent.mkdir()
    unfinished.touch()
    open_images(table_of(make_images(tmp_path / "data", 2)), cache_dir=tmp_path / "cache")
    assert unfinished.exists()


def test_packs_survive_a_kill_while_decoding(tmp_path, monkeypatch):
    paths = make_images(tmp_path / "data", 30)
    process = start(tmp_path / "data", tmp_path / "cache", 0.03)
    for line in process.stdout:
        if line.startswith("progress 20"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    stored = stored_images(tmp_path / "cache")
    assert stored >= 12
    decoded = []
    monkeypatch.setattr(cache, "decode_bytes", lambda data, *, path, **_: decoded.append(path) or decode(path))
    check_pixels(open_images(table_of(paths), cache_dir=tmp_path / "cache"))
    assert len(decoded) == 30 - stored


def test_disk_full_says_how_much_where_and_what_to_set(tmp_path, monkeypatch):
    table = table_of(make_images(tmp_path / "data", 8, size=(400, 500)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"No space left .* MB free\)\. .*set NEARKIN_CACHE") as caught:
        open_images(table, cache_dir=tmp_path / "cache", shorter_side=400)
    assert str(tmp_path / "cache") in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors*"))


def test_cache_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*cache.*: .*set NEARKIN_CACHE"):
        open_images(table_of(make_images(tmp_path / "data", 2)), cache_dir=tmp_path / "file" / "cache")


def test_complete_cache_is_enough_even_if_nothing_can_be_written(tmp_path, monkeypatch):
    # The missing file is looked for at every opening, so the cache is never left with nothing to do.
    table = table_of([*make_images(tmp_path / "data", 3), tmp_path / "missing.png"])
    open_images(table, cache_dir=tmp_path / "cache", tolerance=0.5)
    real_open = open

    def read_only(file: object, mode: str = "r", *args: object, **options: object) -> object:
        if set(mode) & set("wax+") and str(file).startswith(str(tmp_path / "cache")):
            raise PermissionError(13, "Permission denied")
        return real_open(file, mode, *args, **options)

    monkeypatch.setattr("builtins.open", read_only)
    check_pixels(open_images(table, cache_dir=tmp_path / "cache", tolerance=0.5))


@pytest.fixture
def filled(tmp_path, photos):
    """A cache of 48 decoded images and some rendered glyphs, in a folder that holds other things too."""
    root = tmp_path / "cache"
    open_images(read_folder(photos), cache_dir=root / "decoded", shorter_side=32)
    (root / "glyphs").mkdir()
    np.savez(root / "glyphs" / "glyphs-0123456789abcdef.npz", labels=np.zeros(7), images=np.zeros((7, 4, 4)))
    (root / "letters").mkdir()
    (root / "letters" / "to keep.txt").write_text("dear")
    (root / "decoded" / "mine.txt").write_text("dear")
    return root


def test_clearing_removes_all_of_it_and_nothing_else(filled, photos):
    assert sum(cached_files(filled).values()) >= 48 * 32 * 32 * 3
    clear_cache(filled)
    assert not cached_files(filled)
    left = sorted(str(file.relative_to(filled)) for file in filled.rglob("*") if file.is_file())
    assert left == ["decoded/mine.txt", "letters/to keep.txt"]
    assert len(open_images(read_folder(photos), cache_dir=filled / "decoded", shorter_side=32).images) == 48


@pytest.mark.skipif(os.name != "posix", reason="open files cannot be removed elsewhere")
def test_images_that_are_open_can_be_read_after_clearing(filled, photos):
    opened = open_images(read_folder(photos), cache_dir=filled / "decoded", shorter_side=32)
    before = opened.images[3].copy()
    clear_cache(filled)
    np.testing.assert_array_equal(opened.images[3], before)


def _write_for_ever(cache_dir, begun, done):
    with writer_lock(cache_dir):
        begun.set()
        done.wait(60)


@pytest.mark.skipif(os.name != "posix", reason="no such locks elsewhere")
def test_nothing_is_cleared_while_another_process_writes(filled):
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    writer = context.Process(target=_write_for_ever, args=(filled / "decoded", begun, done))
    writer.start()
    try:
        assert begun.wait(60)
        with pytest.raises(DataError, match="another process is decoding images into"):
            clear_cache(filled)
        assert stored_images(filled) == 48
    finally:
        done.set()
        writer.join()
    clear_cache(filled)
    assert not cached_files(filled)


def test_a_cache_that_is_not_there(tmp_path):
    assert not cached_files(tmp_path / "none")
    clear_cache(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    Image.new("RGB", (4, 4)).save(tmp_path / "mine.png")
    clear_cache(tmp_path)
    assert (tmp_path / "mine.png").exists()


def test_a_result_that_comes_late_still_comes_first():
    second_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_done.wait(60)
        else:
            second_done.set()
        return item

    assert list(threaded_map(work, range(5), workers=2)) == list(range(5))


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_items_are_taken_than_few_results_ask_for(workers):
    taken = []
    results = threaded_map(lambda item: item, (taken.append(item) or item for item in range(100)), workers)
    for given in range(1, 11):
        next(results)
        assert len(taken) <= given + 4 * workers
    results.close()
    assert len(taken) < 100


def test_an_error_is_raised_instead_of_its_result():
    results = threaded_map(lambda item: 1 // item, [1, 0, 1], workers=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("cores, expected", [(1, 1), (7, 7), (200, 16)])
def test_cores_that_this_process_may_use_count_up_to_sixteen(cores, expected, monkeypatch):
    monkeypatch.setattr(cache.os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert usable_cores() == expected
