"""What every batch sampler promises the loop."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil

import numpy as np
import pytest
import torch

from nearkin import samplers
from nearkin.samplers import BalancedSampler, RandomSampler
from nearkin.samplers.class_representatives import ClassRepresentativeSampler

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [5, 1, 9, 4, 3, 6, 4]))


def mined(seed: int) -> ClassRepresentativeSampler:
    embeddings = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    return ClassRepresentativeSampler(LABELS, batch_size=8, images_per_class=2, embeddings=embeddings, seed=seed)


MAKERS = {
    "random": lambda seed: RandomSampler(len(LABELS), batch_size=8, seed=seed),
    "balanced": lambda seed: BalancedSampler(LABELS, batch_size=8, images_per_class=2, seed=seed),
    "class_representatives": lambda seed: ClassRepresentativeSampler(
        LABELS, batch_size=8, images_per_class=2, seed=seed
    ),
    "class_representatives, mined": mined,
}


@pytest.fixture(params=sorted(MAKERS))
def make(request):
    return MAKERS[request.param]


def test_every_sampler_is_held_to_the_contract():
    modules = [importlib.import_module(f"nearkin.samplers.{m.name}") for m in pkgutil.iter_modules(samplers.__path__)]
    named = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, samplers.BatchSampler) and not inspect.isabstract(value)
    }
    assert {type(make(0)) for make in MAKERS.values()} == named


def test_batches_are_training_rows_without_end(make):
    sampler = make(0)
    assert sampler.batches_per_epoch >= 1
    assert sampler.lookahead >= 0
    for _ in range(5 * sampler.batches_per_epoch):
        rows = sampler.next_batch()
        assert rows.dtype == np.int64
        assert rows.ndim == 1
        assert 0 < len(rows) <= 8
        assert rows.min() >= 0
        assert rows.max() < len(LABELS)


def test_every_image_gets_its_turn(make):
    sampler = make(0)
    seen: set[int] = set()
    for _ in range(60 * sampler.batches_per_epoch):
        seen.update(sampler.next_batch().tolist())
    assert seen == set(range(len(LABELS)))


def test_the_seed_decides_and_nothing_else(make):
    def batches(sampler):
        return [sampler.next_batch().tolist() for _ in range(12)]

    np.random.seed(0)
    torch.manual_seed(0)
    first = batches(make(3))
    np.random.seed(1)
    torch.manual_seed(1)
    assert batches(make(3)) == first
    assert batches(make(4)) != first


@pytest.mark.parametrize("drawn", [0, 1, 7])
def test_a_restored_sampler_goes_on(make, drawn):
    whole, begun = make(9), make(9)
    expected = [whole.next_batch().tolist() for _ in range(drawn + 20)][drawn:]
    for _ in range(drawn):
        begun.next_batch()
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    restored = make(9)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert [restored.next_batch().tolist() for _ in range(20)] == expected


def test_a_state_is_a_snapshot(make):
    sampler = make(2)
    sampler.next_batch()
    state = sampler.state_dict()
    expected = [sampler.next_batch().tolist() for _ in range(5)]
    other = make(2)
    other.load_state_dict(state)
    assert [other.next_batch().tolist() for _ in range(5)] == expected
