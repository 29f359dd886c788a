from __future__ import annotations

import os
import signal
from itertools import islice

import numpy as np
import pytest
import torch

from nearkin.data import loader as loader_module
from nearkin.data.cache import ArrayImages, SelectedImages
from nearkin.data.loader import TrainingLoader, are_shareable
from nearkin.data.packs import PackedImages, PackWriter
from nearkin.data.transforms import transform_from
from nearkin.errors import DataError
from nearkin.samplers import RandomSampler

TRANSFORM = transform_from("mild", size=16)
LABELS = np.arange(20) % 5
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def packed(tmp_path):
    rng = np.random.default_rng(0)
    with PackWriter(tmp_path) as writer:
        for number in range(20):
            writer.add(str(number), rng.integers(0, 256, (*rng.integers(20, 40, 2), 3), dtype=np.uint8))
    return SelectedImages(PackedImages(list(writer.entries.values())), np.arange(20)[::-1].copy())


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
    monkeypatch.setattr(loader_module, "usable_cores", lambda: 16)
    assert loader_module.default_processes() == 15
    monkeypatch.setattr(loader_module, "on_this_machine", lambda: 8)
    assert loader_module.default_processes() == 1
    monkeypatch.setattr(loader_module, "usable_cores", lambda: 1)
    assert loader_module.default_processes() == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [1, 3])
def test_processes_give_what_threads_do(packed, device, workers):
    expected = take(loader(packed), 12)
    source = loader(packed, device=device, workers=workers)
    assert source._processes is not None
    for a, b in zip(expected, take(source, 12), strict=True):
        assert (a.number, a.rows.tolist()) == (b.number, b.rows.tolist())
        assert b.images.device.type == device
        assert torch.equal(a.images, b.images.cpu())
        assert torch.equal(a.labels, b.labels)


def test_processes_erase_what_threads_do(packed):
    transform = transform_from("mild", size=16, erase=0.7, fill=(0, 0, 0))
    expected, found = (
        take(loader(packed, transform=transform), 4),
        take(loader(packed, device="cpu", transform=transform), 4),
    )
    assert all(torch.equal(a.images, b.images) for a, b in zip(expected, found, strict=True))
    assert not torch.equal(found[0].images, take(loader(packed), 1)[0].images)


def test_batches_of_several_sizes_and_more_workers_than_images(packed):
    class Growing(RandomSampler):
        def next_batch(self):
            return super().next_batch()[: 1 + self.drawn % 5]

    samplers = [Growing(20, batch_size=6, seed=1) for _ in range(2)]
    expected = take(loader(packed, sampler=samplers[0]), 7)
    for a, b in zip(expected, take(loader(packed, sampler=samplers[1], device="cpu", workers=3), 7), strict=True):
        assert torch.equal(a.images, b.images)


def test_a_loader_begun_later_gives_the_same_batches(packed):
    whole = take(loader(packed), 6)
    with loader(packed, device="cpu") as source:
        batches = iter(source)
        for _ in range(3):
            next(batches)
        state = source.sampler_state
    sampler = RandomSampler(20, batch_size=6, seed=1)
    sampler.load_state_dict(state)
    for a, b in zip(whole[3:], take(loader(packed, device="cpu", sampler=sampler, first_batch=3), 3), strict=True):
        assert torch.equal(a.images, b.images)


def test_an_error_in_a_process_reaches_the_loop_and_the_processes_end(packed, tmp_path):
    (pack,) = tmp_path.glob("*.bin")
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
        for worker in source._processes._workers:
            os.kill(worker._process.pid, signal.SIGKILL)
            worker._process.wait()
        with pytest.raises(DataError, match=r"ended by itself \(exit code -9.* lower data\.workers"):
            list(islice(batches, 20))


def test_ctrl_c_is_the_loops_affair(packed):
    with loader(packed, device="cpu") as source:
        batches = iter(source)
        next(batches)
        processes = [worker._process for worker in source._processes._workers]
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
        for _ in range(8):
            next(batches)
        assert [process.poll() for process in processes] == [None, None]


def test_a_process_whose_input_ends_ends_too(packed):
    """As when the loop is killed, and its end of the pipe with it."""
    with loader(packed, device="cpu") as source:
        next(iter(source))
        process = source._processes._workers[0]._process
        process.stdin.close()
        assert process.wait(30) == 0
