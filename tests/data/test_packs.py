from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nearkin.data.packs import KnownFiles, PackedImages, PackWriter, file_state, read_packs, sole_writer, sweep
from nearkin.errors import DataError

DAY = 24 * 3600


def pictures(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"{seed:04x}{number:028x}": rng.integers(0, 256, (*rng.integers(1, 9, 2), 3), dtype=np.uint8)
        for number in range(count)
    }


def write(folder: Path, images: dict[str, np.ndarray], **options: int) -> PackWriter:
    with PackWriter(folder, **options) as writer:
        for digest, image in images.items():
            writer.add(digest, image)
    return writer


def check(folder: Path, images: dict[str, np.ndarray]) -> None:
    places = read_packs(folder)
    assert set(places) == set(images)
    packed = PackedImages([places[digest] for digest in images])
    assert len(packed) == len(images)
    for row, image in enumerate(images.values()):
        np.testing.assert_array_equal(packed[row], image)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_what_is_written_is_read(tmp_path):
    images = pictures(20)
    writer = write(tmp_path, images)
    check(tmp_path, images)
    assert writer.places == read_packs(tmp_path)
    assert writer.bytes_kept == writer.bytes_written == sum(image.nbytes for image in images.values())
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin", ".npz"}


def test_packs_are_closed_when_full(tmp_path):
    images = pictures(40)
    write(tmp_path, images, pack_bytes=500)
    packs = list(tmp_path.glob("*.bin"))
    assert len(packs) > 3
    assert max(pack.stat().st_size for pack in packs) < 500 + 8 * 8 * 3
    check(tmp_path, images)


def test_arrays_that_are_not_contiguous_are_stored_right(tmp_path):
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    grey = np.broadcast_to(image[:, :, :1], (5, 6, 3))
    images = {"a" * 32: image[::-1, ::2], "b" * 32: grey}
    write(tmp_path, images)
    check(tmp_path, images)


def test_nothing_written_leaves_nothing(tmp_path):
    write(tmp_path / "new", {})
    assert not (tmp_path / "new").exists()
    assert read_packs(tmp_path / "new") == {}


def test_images_are_read_only_and_indexed_like_a_list(tmp_path):
    write(tmp_path, pictures(3))
    packed = PackedImages(list(read_packs(tmp_path).values()))
    with pytest.raises(ValueError, match="read-only"):
        packed[0][0, 0, 0] = 1
    np.testing.assert_array_equal(packed[-1], packed[2])
    with pytest.raises(IndexError):
        packed[3]
    assert len(PackedImages([])) == 0


def test_pickled_images_carry_no_pixels(tmp_path):
    images = {"a" * 32: np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)}
    write(tmp_path, images)
    packed = PackedImages(list(read_packs(tmp_path).values()))
    data = pickle.dumps(packed)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data)[0], images["a" * 32])
    for path in tmp_path.iterdir():
        path.unlink()
    np.testing.assert_array_equal(packed[0], images["a" * 32])
    with pytest.raises(DataError, match="run again"):
        pickle.loads(data)


def test_many_threads_read_the_same_packs(tmp_path):
    images = pictures(50)
    write(tmp_path, images, pack_bytes=1000)
    places = read_packs(tmp_path)
    packed = PackedImages([places[digest] for digest in images])
    sums = [int(image.sum()) for image in images.values()]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda row: int(packed[row % 50].sum()), range(1000)))
    assert got == sums * 20


@pytest.mark.parametrize("damage", ["shorter", "longer", "empty", "gone"])
def test_pack_of_the_wrong_size_is_ignored_and_swept(tmp_path, damage):
    good, bad = pictures(5, seed=1), pictures(5, seed=2)
    write(tmp_path, good)
    kept = set(tmp_path.iterdir())
    write(tmp_path, bad)
    (pack,) = set(tmp_path.glob("*.bin")) - kept
    whole = pack.read_bytes()
    if damage == "gone":
        pack.unlink()
    else:
        pack.write_bytes({"shorter": whole[:-1], "longer": whole + b"x", "empty": b""}[damage])
    check(tmp_path, good)
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == kept


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x93NUMPY", b"plain text"])
def test_broken_index_is_ignored_and_swept(tmp_path, content):
    good = pictures(5)
    write(tmp_path, good)
    kept = set(tmp_path.iterdir())
    write(tmp_path, pictures(5, seed=2))
    (index,) = set(tmp_path.glob("*.npz")) - kept
    index.write_bytes(content)
    check(tmp_path, good)
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == kept


def test_remains_of_killed_processes_are_harmless_and_swept_when_old(tmp_path):
    images = pictures(5)
    write(tmp_path, images)
    kept = set(tmp_path.iterdir())
    for name in ("1-aa.bin.tmp", "1-bb.npz.tmp", "cccc.bin"):
        (tmp_path / name).write_bytes(b"half")
    check(tmp_path, images)
    sweep(tmp_path)
    assert len(set(tmp_path.iterdir()) - kept) == 3, "another process may still be writing these"
    for path in tmp_path.iterdir():
        age(path, 2 * DAY)
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == kept


def test_pixels_are_on_the_disk_before_their_index_has_its_name(tmp_path, monkeypatch):
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        events.append("fsync")
        fsync(descriptor)

    def noting_replace(source: str, target: Path) -> None:
        events.append(Path(target).suffix)
        replace(source, target)

    monkeypatch.setattr("os.fsync", noting_fsync)
    monkeypatch.setattr("os.replace", noting_replace)
    write(tmp_path, pictures(3))
    assert events == ["fsync", ".bin", "fsync", ".npz"]


def write_and_raise(folder: Path, images: dict[str, np.ndarray], error: BaseException) -> None:
    with PackWriter(folder) as writer:
        for digest, image in images.items():
            writer.add(digest, image)
        raise error


@pytest.mark.parametrize("broken", ["os.fsync", "os.replace", "nearkin.data.packs.np.savez"])
def test_failed_writing_leaves_no_files(tmp_path, monkeypatch, broken):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, pictures(5))
    assert not list(tmp_path.iterdir())


def test_an_error_while_decoding_leaves_no_files(tmp_path):
    with pytest.raises(RuntimeError):
        write_and_raise(tmp_path, pictures(3), RuntimeError())
    assert not list(tmp_path.iterdir())


def test_interruption_keeps_what_was_decoded(tmp_path):
    images = pictures(3)
    with pytest.raises(KeyboardInterrupt):
        write_and_raise(tmp_path, images, KeyboardInterrupt())
    check(tmp_path, images)


def old_file(path: Path, content: bytes = b"abc", *, seconds: float = 100) -> Path:
    path.write_bytes(content)
    age(path, seconds)
    return path


def test_known_files_are_recognised_until_they_change(tmp_path):
    file = old_file(tmp_path / "Vögel 1.jpg")
    then = file.stat().st_mtime_ns
    KnownFiles(tmp_path).remember({file: (file_state(file), "d" * 32)})
    assert KnownFiles(tmp_path).digest(file) == "d" * 32
    assert KnownFiles(tmp_path).digest(old_file(tmp_path / "other.jpg")) is None
    age(file, 50)
    assert KnownFiles(tmp_path).digest(file) is None
    file.write_bytes(b"abcd")
    os.utime(file, ns=(then, then))
    assert KnownFiles(tmp_path).digest(file) is None
    file.write_bytes(b"abc")
    os.utime(file, ns=(then, then))
    assert KnownFiles(tmp_path).digest(file) == "d" * 32
    file.unlink()
    assert KnownFiles(tmp_path).digest(file) is None
    assert file_state(file) is None


def test_files_changed_a_moment_ago_are_not_trusted_by_time(tmp_path):
    file = old_file(tmp_path / "a.jpg", seconds=0)
    known = KnownFiles(tmp_path)
    known.remember({file: (file_state(file), "d" * 32)})
    assert known.digest(file) is None


def test_two_writers_of_known_files_keep_each_others_entries(tmp_path):
    files = {name: old_file(tmp_path / name) for name in "ab"}
    for writer, (name, file) in zip([KnownFiles(tmp_path), KnownFiles(tmp_path)], files.items(), strict=True):
        writer.remember({file: (file_state(file), name * 32)})
    known = KnownFiles(tmp_path)
    assert [known.digest(file) for file in files.values()] == ["a" * 32, "b" * 32]


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"a": 1', b"\xff\xfe"])
def test_broken_list_of_known_files_is_begun_anew(tmp_path, content):
    (tmp_path / "files.json").write_bytes(content)
    file = old_file(tmp_path / "a")
    known = KnownFiles(tmp_path)
    assert known.digest(file) is None
    known.remember({file: (file_state(file), "a" * 32)})
    assert KnownFiles(tmp_path).digest(file) == "a" * 32


COUNT_UP = """
import sys, time
from pathlib import Path
from nearkin.data.packs import sole_writer

folder = Path(sys.argv[1])
for _ in range(40):
    with sole_writer(folder, "counting"):
        value = int((folder / "count").read_text())
        time.sleep(0.001)
        (folder / "count").write_text(str(value + 1))
"""


def test_sole_writer_keeps_processes_apart(tmp_path):
    pytest.importorskip("fcntl")
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT_UP, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "120"


def test_sole_writer_does_not_need_to_write(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    reached = False
    with sole_writer(tmp_path / "file", "anything"):
        reached = True
    assert reached
