"""What goes wrong around the cache: damaged packs, killed and concurrent processes, full and read-only disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data import cache
from nearkin.data.cache import open_images
from nearkin.data.images import decode
from nearkin.data.table import ImageTable
from nearkin.errors import DataError


def make_images(folder: Path, count: int, *, size: tuple[int, int] = (20, 30)) -> list[Path]:
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:03d}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
        os.utime(path, (time.time() - 1000, time.time() - 1000))
    return paths


def table_of(paths: list[Path]) -> ImageTable:
    return ImageTable.build("birds", paths, ["owl"] * len(paths), splits=["train"] * len(paths))


def check_pixels(opened: cache.OpenedImages) -> None:
    assert len(opened.images) == len(opened.table)
    for row, path in enumerate(opened.table.images):
        np.testing.assert_array_equal(opened.images[row], decode(path))


@pytest.mark.parametrize("damage", ["truncate", "remove", "index"])
def test_damaged_pack_is_rebuilt(tmp_path, damage):
    table = table_of(make_images(tmp_path / "data", 5))
    open_images(table, cache_dir=tmp_path / "cache")
    (pack,) = (tmp_path / "cache").rglob("*.bin")
    if damage == "truncate":
        os.truncate(pack, 100)
    elif damage == "remove":
        pack.unlink()
    else:
        pack.with_suffix(".npz").write_bytes(b"not an index")
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1


def test_leftovers_of_a_killed_process_do_no_harm(tmp_path):
    table = table_of(make_images(tmp_path / "data", 5))
    open_images(table.take([0, 1]), cache_dir=tmp_path / "cache")
    (pack,) = (tmp_path / "cache").rglob("*.bin")
    (pack.parent / "orphan.bin").write_bytes(b"pixels without an index")
    (pack.parent / "99-ab.bin.tmp").write_bytes(b"half a pack")
    (tmp_path / "cache" / "99-cd.json.tmp").write_bytes(b"{")
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))


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
    pytest.importorskip("fcntl")
    paths = make_images(tmp_path / "data", 20)
    processes = [start(tmp_path / "data", tmp_path / "cache", 0.02) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    results = [lines[-1].split(" ", 1) for lines in outputs]
    expected = str([int(decode(path).sum()) for path in sorted(paths)])
    assert [pixels for _, pixels in results] == [expected] * 2
    assert sorted(int(count) for count, _ in results) == [0, 20], "the second should have waited for the first"
    assert sum(line.startswith("progress") for lines in outputs for line in lines) == 20, "and read nothing"
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1


def test_two_processes_without_locks(tmp_path, monkeypatch):
    table = table_of(make_images(tmp_path / "data", 30))
    monkeypatch.setattr("nearkin.data.packs.fcntl", None)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_images(table, cache_dir=tmp_path / "cache", workers=2), range(4)))
    for each in opened:
        check_pixels(each)
    check_pixels(open_images(table, cache_dir=tmp_path / "cache"))


def test_killed_while_decoding(tmp_path):
    paths = make_images(tmp_path / "data", 30)
    process = start(tmp_path / "data", tmp_path / "cache", 0.03)
    for line in process.stdout:
        if line.startswith("progress 10"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list((tmp_path / "cache").rglob("*.tmp"))
    check_pixels(open_images(table_of(paths), cache_dir=tmp_path / "cache"))


def test_disk_full_says_how_much_where_and_what_to_set(tmp_path, monkeypatch):
    table = table_of(make_images(tmp_path / "data", 8, size=(400, 500)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"No space left .* MB free, 4\.8 MB needed\)\. .*set NEARKIN_CACHE") as caught:
        open_images(table, cache_dir=tmp_path / "cache", shorter_side=400)
    assert str(tmp_path / "cache") in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.bin*"))


def test_disk_too_small_is_noticed_before_it_is_full(tmp_path, monkeypatch):
    table = table_of(make_images(tmp_path / "data", 40))
    monkeypatch.setattr(cache, "_FREE_SPACE_EVERY", 10)
    free = 29 * 20 * 30 * 3

    class Usage:
        pass

    Usage.free = free
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: Usage)
    seen = []
    with pytest.raises(DataError, match=r"No space left .*set NEARKIN_CACHE"):
        open_images(table, cache_dir=tmp_path / "cache", progress=lambda done, _: seen.append(done))
    assert len(seen) < 11
    Usage.free = free + 20 * 30 * 3
    assert len(open_images(table, cache_dir=tmp_path / "cache").images) == 40


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
