from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nearkin.data import cache
from nearkin.data.cache import FileDigests, PackedImages, file_state, read_packs, write_packs
from nearkin.errors import DataError


def pictures(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"{seed:04x}{number:028x}": rng.integers(0, 256, (*rng.integers(1, 9, 2), 3), dtype=np.uint8)
        for number in range(count)
    }


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
    write_packs(tmp_path, images.items())
    check(tmp_path, images)
    (pack,) = tmp_path.iterdir()
    stored = load_file(pack)
    assert set(stored) == set(images)
    assert all((stored[digest] == image).all() for digest, image in images.items())


def test_packs_are_closed_when_full(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "PACK_BYTES", 500)
    write_packs(tmp_path / "new", [])
    assert not (tmp_path / "new").exists()
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    not_contiguous = {"a" * 32: image[::-1, ::2], "b" * 32: np.broadcast_to(image[:, :, :1], (5, 6, 3))}
    images = pictures(40) | not_contiguous
    write_packs(tmp_path, images.items())
    sizes = [sum(image.nbytes for image in load_file(pack).values()) for pack in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < 500 + 8 * 8 * 3
    check(tmp_path, images)


def test_images_are_read_only_and_indexed_like_a_list(tmp_path):
    write_packs(tmp_path, pictures(3).items())
    packed = PackedImages(list(read_packs(tmp_path).values()))
    with pytest.raises(ValueError, match="read-only"):
        packed[0][0, 0, 0] = 1
    np.testing.assert_array_equal(packed[-1], packed[2])
    with pytest.raises(IndexError):
        packed[3]
    assert len(PackedImages([])) == 0


def test_pickled_images_carry_no_pixels(tmp_path):
    images = {"a" * 32: np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)}
    write_packs(tmp_path, images.items())
    packed = PackedImages(list(read_packs(tmp_path).values()))
    data = pickle.dumps(packed)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data)[0], images["a" * 32])
    for path in tmp_path.iterdir():
        path.unlink()
    np.testing.assert_array_equal(packed[0], images["a" * 32])
    with pytest.raises(DataError, match="run again"):
        pickle.loads(data)


@pytest.mark.parametrize("damage", ["shorter", "longer", "empty", "no header", "long header"])
def test_damaged_packs_are_skipped(tmp_path, damage):
    good = pictures(5, seed=1)
    write_packs(tmp_path, good.items())
    kept = set(tmp_path.iterdir())
    write_packs(tmp_path, pictures(5, seed=2).items())
    (pack,) = set(tmp_path.iterdir()) - kept
    whole = pack.read_bytes()
    damaged = {
        "shorter": whole[:-1],
        "longer": whole + b"x",
        "empty": b"",
        "no header": whole[8:],
        "long header": b"\xff" * 7 + b"\x7f" + whole[8:],
    }
    pack.write_bytes(damaged[damage])
    check(tmp_path, good)


def test_pixels_are_on_the_disk_before_the_pack_has_its_name(tmp_path, monkeypatch):
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
    write_packs(tmp_path, pictures(3).items())
    assert events == ["fsync", ".safetensors"]


@pytest.mark.parametrize("broken", ["os.fsync", "os.replace"])
def test_failed_writing_leaves_no_files(tmp_path, monkeypatch, broken):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match="No space"):
        write_packs(tmp_path, pictures(5).items())
    assert not list(tmp_path.iterdir())


def test_an_interruption_keeps_what_was_decoded(tmp_path):
    images = pictures(3)

    def interrupted():
        yield from images.items()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_packs(tmp_path, interrupted())
    check(tmp_path, images)


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


def test_files_changed_a_moment_ago_are_not_remembered(tmp_path):
    old, new = old_file(tmp_path / "old"), old_file(tmp_path / "new", seconds=0)
    FileDigests(tmp_path).remember({file: (file_state(file), file.name) for file in (old, new)})
    assert [FileDigests(tmp_path).get(file) for file in (old, new)] == ["old", None]


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"a": 1', b"\xff\xfe"])
def test_broken_list_of_known_files_is_replaced(tmp_path, content):
    (tmp_path / "files.json").write_bytes(content)
    file = old_file(tmp_path / "a")
    known = FileDigests(tmp_path)
    assert known.get(file) is None
    known.remember({file: (file_state(file), "a" * 32)})
    assert FileDigests(tmp_path).get(file) == "a" * 32
