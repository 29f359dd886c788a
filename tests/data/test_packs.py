from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from nearkin.data.cache import FileDigests, PackedImages, PackWriter, file_state, read_packs, remove_damaged_packs
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
    entries = read_packs(folder)
    assert set(entries) == set(images)
    packed = PackedImages([entries[digest] for digest in images])
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
    assert writer.entries == read_packs(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin", ".npz"}


def test_packs_are_closed_when_full(tmp_path):
    write(tmp_path / "new", {})
    assert not (tmp_path / "new").exists()
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    not_contiguous = {"a" * 32: image[::-1, ::2], "b" * 32: np.broadcast_to(image[:, :, :1], (5, 6, 3))}
    images = pictures(40) | not_contiguous
    write(tmp_path, images, pack_bytes=500)
    packs = list(tmp_path.glob("*.bin"))
    assert len(packs) > 3
    assert max(pack.stat().st_size for pack in packs) < 500 + 8 * 8 * 3
    check(tmp_path, images)


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


@pytest.mark.parametrize("damage", ["shorter", "longer", "gone", "index empty", "index no zip", "index no array"])
def test_damaged_packs_are_ignored_and_removed(tmp_path, damage):
    good = pictures(5, seed=1)
    write(tmp_path, good)
    kept = set(tmp_path.iterdir())
    write(tmp_path, pictures(5, seed=2))
    (pack,) = set(tmp_path.glob("*.bin")) - kept
    index, whole = pack.with_suffix(".npz"), pack.read_bytes()
    if damage == "gone":
        pack.unlink()
    elif damage.startswith("index"):
        index.write_bytes(
            {"index empty": b"", "index no zip": b"PK\x03\x04 no", "index no array": b"\x93NUMPY"}[damage]
        )
    else:
        pack.write_bytes(whole[:-1] if damage == "shorter" else whole + b"x")
    check(tmp_path, good)
    remove_damaged_packs(tmp_path)
    assert set(tmp_path.iterdir()) == kept


def test_remains_of_killed_processes_are_harmless_and_swept_when_old(tmp_path):
    images = pictures(5)
    write(tmp_path, images)
    kept = set(tmp_path.iterdir())
    for name in ("1-aa.bin.tmp", "1-bb.npz.tmp", "cccc.bin"):
        (tmp_path / name).write_bytes(b"half")
    check(tmp_path, images)
    remove_damaged_packs(tmp_path)
    assert len(set(tmp_path.iterdir()) - kept) == 3, "another process may still be writing these"
    for path in tmp_path.iterdir():
        age(path, 2 * DAY)
    remove_damaged_packs(tmp_path)
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


@pytest.mark.parametrize("broken", ["os.fsync", "os.replace", "nearkin.data.cache.np.savez"])
def test_failed_writing_leaves_no_files(tmp_path, monkeypatch, broken):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, pictures(5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_keeps_what_was_decoded_and_an_error_does_not(tmp_path, error):
    images = pictures(3)
    writer = PackWriter(tmp_path)
    for digest, image in images.items():
        writer.add(digest, image)
    writer.__exit__(error, error(), None)
    check(tmp_path, images if error is KeyboardInterrupt else {})


def old_file(path: Path, content: bytes = b"abc", *, seconds: float = 100) -> Path:
    path.write_bytes(content)
    age(path, seconds)
    return path


def test_known_files_are_recognised_until_they_change(tmp_path):
    file = old_file(tmp_path / "Vögel 1.jpg")
    then = file.stat().st_mtime_ns
    FileDigests(tmp_path).remember({file: (file_state(file), "d" * 32)})
    assert FileDigests(tmp_path).get(file) == "d" * 32
    assert FileDigests(tmp_path).get(old_file(tmp_path / "other.jpg")) is None
    age(file, 50)
    assert FileDigests(tmp_path).get(file) is None
    file.write_bytes(b"abcd")
    os.utime(file, ns=(then, then))
    assert FileDigests(tmp_path).get(file) is None
    file.write_bytes(b"abc")
    os.utime(file, ns=(then, then))
    assert FileDigests(tmp_path).get(file) == "d" * 32
    file.unlink()
    assert FileDigests(tmp_path).get(file) is None
    assert file_state(file) is None


def test_digests_of_two_writers_are_kept_but_not_of_files_changed_a_moment_ago(tmp_path):
    files = {name: old_file(tmp_path / name) for name in "ab"}
    new = old_file(tmp_path / "new", seconds=0)
    for writer, (name, file) in zip([FileDigests(tmp_path), FileDigests(tmp_path)], files.items(), strict=True):
        writer.remember({file: (file_state(file), name * 32), new: (file_state(new), "n" * 32)})
    known = FileDigests(tmp_path)
    assert [known.get(file) for file in (*files.values(), new)] == ["a" * 32, "b" * 32, None]


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"a": 1', b"\xff\xfe"])
def test_broken_list_of_known_files_is_begun_anew(tmp_path, content):
    (tmp_path / "files.json").write_bytes(content)
    file = old_file(tmp_path / "a")
    known = FileDigests(tmp_path)
    assert known.get(file) is None
    known.remember({file: (file_state(file), "a" * 32)})
    assert FileDigests(tmp_path).get(file) == "a" * 32
