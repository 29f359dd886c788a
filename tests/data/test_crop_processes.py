from __future__ import annotations

import os
import pickle
import signal
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nearkin.data import crop_worker
from nearkin.data import loader as loader_module
from nearkin.data.cache import ArrayImages, PackedImages, SelectedImages, read_packs, write_packs
from nearkin.data.loader import TrainingLoader, are_shareable
from nearkin.data.transforms import transform_from
from nearkin.errors import DataError
from nearkin.samplers import RandomSampler

TRANSFORM = transform_from("mild", size=16)
LABELS = np.arange(20) % 5
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def packed(tmp_path):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*rng.integers(20, 40, 2), 3), dtype=np.uint8) for _ in range(20)]
    write_packs(tmp_path, ((str(number), image) for number, image in enumerate(images)))
    return SelectedImages(PackedImages(list(read_packs(tmp_path).values())), np.arange(20)[::-1].copy())


def loader(images, *, device=None, workers=2, sampler=None, first_batch=0, transform=TRANSFORM):
    sampler = sampler or RandomSampler(20, batch_size=6, seed=1)
    where = None if device is None else torch.device(device)
    return TrainingLoader(
        images, LABELS, transform, sampler, seed=3, workers=workers, device=where, first_batch=first_batch
    )


def take(source, count):
    with source:
        batches = iter(source)
        return [next(batches) for _ in range(count)]


def test_only_packs_are_shared_between_processes(packed):
    assert are_shareable(packed)
    assert are_shareable(SelectedImages(packed, np.arange(3)))
    assert not are_shareable(ArrayImages(np.zeros((2, 8, 8), np.uint8)))
    with loader(ArrayImages(np.zeros((20, 8, 8), np.uint8)), device="cpu") as threads:
        assert threads._processes is None


def test_the_cores_are_shared_by_the_loops_of_a_machine(monkeypatch):
    for cores, loops, expected in ((16, 1, 15), (16, 8, 1), (1, 8, 1)):
        monkeypatch.setattr(loader_module, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(loader_module, "on_this_machine", lambda loops=loops: loops)
        assert loader_module.processes_for(None) == expected


@pytest.mark.parametrize("device", DEVICES)
def test_processes_give_what_threads_do(packed, device):
    class Varying(RandomSampler):
        def next_batch(self):
            return super().next_batch()[: (6, 2, 5)[self.drawn % 3]]

    transform = transform_from("mild", size=16, erase=0.7, fill=(0, 0, 0))
    samplers = [Varying(20, batch_size=6, seed=1) for _ in range(2)]
    expected = take(loader(packed, sampler=samplers[0], transform=transform, first_batch=3), 12)
    source = loader(packed, sampler=samplers[1], transform=transform, first_batch=3, device=device, workers=3)
    assert source._processes is not None
    for a, b in zip(expected, take(source, 12), strict=True):
        assert (a.number, a.rows.tolist()) == (b.number, b.rows.tolist())
        assert b.images.device.type == device
        assert torch.equal(a.images, b.images.cpu())
        assert torch.equal(a.labels, b.labels)


def test_an_error_in_a_process_reaches_the_loop_and_the_processes_end(packed, tmp_path):
    (pack,) = tmp_path.glob("*.safetensors")
    source = loader(packed, device="cpu")
    pack.unlink()
    with source:
        with pytest.raises(DataError, match=r"decoded images in .* are gone"):
            next(iter(source))
        processes = [worker._process for worker in source._processes._workers]
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


def test_a_process_that_is_killed_is_told(packed):
    with loader(packed, device="cpu") as source:
        batches = iter(source)
        next(batches)
        first, second = (worker._process for worker in source._processes._workers)
        for process in (first, second):  # Ctrl-C is for the loop to handle
            os.kill(process.pid, signal.SIGINT)
        for _ in range(8):
            next(batches)
        assert first.poll() is second.poll() is None
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with pytest.raises(DataError, match=r"ended \(exit code -9.*data\.workers"):
            list(islice(batches, 20))
        second.stdin.close()  # as when the loop is killed
        assert second.wait(30) == 0


def test_an_error_that_cannot_be_pickled_is_sent_as_text(monkeypatch):
    class Broken:
        def __getitem__(self, row):
            error = ValueError(f"row {row} is broken")
            error.handler = lambda: None  # what pickle refuses
            raise error

    shared = SimpleNamespace(seed=0, images=Broken(), transform=TRANSFORM)
    monkeypatch.setattr(crop_worker, "_opened", lambda setup: (shared, None))
    answer = pickle.loads(crop_worker._answer(b"", crop_worker.Job(number=0, first=0, rows=[7], slot=0, begin=0)))
    assert (type(answer), str(answer)) == (RuntimeError, "ValueError: row 7 is broken")
