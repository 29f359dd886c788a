"""Running statistics against means and variances of pixels, which batch-norm at the beginning of a network sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.data.transforms import Transform
from nearkin.training.batch_statistics import has_running_statistics, mixed_batches, renew_batch_statistics

WHOLE = Transform(name="whole", size=4, resize=4, train_crop="none", flip=0.0)


class Pixels(nn.Module):
    """Batch-norm of the pixels, then dropout, with a count of what each saw in which mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.sizes, self.modes = nn.BatchNorm2d(3, momentum=0.3), nn.Dropout(), [], set()

    def forward(self, images):
        self.sizes.append(len(images))
        self.modes.add((self.norm.training, self.drop.training, torch.is_grad_enabled()))
        return self.drop(self.norm(images.permute(0, 3, 1, 2).float()))


@pytest.fixture
def images():
    """Sorted by class: the first are dark, the last bright."""
    rng = np.random.default_rng(0)
    return [rng.integers(10 * row, 10 * row + 40, (4, 4, 3), dtype=np.uint8) for row in range(12)]


def statistics_of(images, rows):
    """Mean and unbiased variance of each channel over some images."""
    pixels = np.stack([images[row] for row in rows]).reshape(-1, 3).astype(np.float64)
    return pixels.mean(0), pixels.var(0, ddof=1)


def close(tensor, expected):
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4)


def test_of_one_batch_they_are_those_of_all_pixels(images):
    network = Pixels()
    for _ in range(3):  # statistics and a count of batches that are to be forgotten
        network.train()(torch.full((2, 4, 4, 3), 77.0))
    rows = np.arange(2, 12)
    renew_batch_statistics(network, images, WHOLE, rows, batch_size=10, workers=1)
    mean, variance = statistics_of(images, rows)
    close(network.norm.running_mean, mean)
    close(network.norm.running_var, variance)


def test_of_several_batches_they_are_the_mean_over_the_batches(images):
    network, rows = Pixels(), np.arange(12)
    renew_batch_statistics(network, images, WHOLE, rows, batch_size=5, workers=2)
    each = [statistics_of(images, batch) for batch in mixed_batches(rows, 5)]
    assert network.sizes == [4, 4, 4]
    close(network.norm.running_mean, np.mean([mean for mean, _ in each], axis=0))
    close(network.norm.running_var, np.mean([variance for _, variance in each], axis=0))


def test_only_batch_norm_trains_meanwhile_and_afterwards_nothing(images):
    network, told = Pixels(), []
    network.train()
    renew_batch_statistics(network, images, WHOLE, np.arange(12), batch_size=5, workers=1, progress=told.append)
    assert network.modes == {(True, False, False)}
    assert not any(module.training for module in network.modules())
    assert network.norm.momentum == 0.3
    assert told == [4, 8, 12]


def test_momentum_comes_back_where_an_image_cannot_be_read(images):
    network = Pixels()

    class Broken(list):
        def __getitem__(self, row):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        renew_batch_statistics(network, Broken(images), WHOLE, np.arange(12), batch_size=5, workers=1)
    assert network.norm.momentum == 0.3
    assert not network.norm.training


def test_batches_mix_the_classes_and_hold_every_row_once():
    rows = np.arange(100, 160)
    batches = mixed_batches(rows, 16)
    assert sorted(len(batch) for batch in batches) == [15, 15, 15, 15]
    assert sorted(np.concatenate(batches).tolist()) == rows.tolist()
    assert all(np.ptp(batch) > 30 for batch in batches), "not rows that follow each other"
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in mixed_batches(rows, 16)]
    assert [len(batch) for batch in mixed_batches(rows, 1000)] == [60]


def test_crops_are_those_of_training(images):
    """Mirror images leave the mean as it is, erased boxes do not."""
    plain, erased = Pixels(), Pixels()
    black = Transform(name="erased", size=4, resize=4, train_crop="none", flip=0.0, erase=1.0, fill=(0, 0, 0))
    for network, transform in ((plain, WHOLE), (erased, black)):
        renew_batch_statistics(network, images, transform, np.arange(12), batch_size=12, workers=1)
    assert (erased.norm.running_mean < plain.norm.running_mean - 1).all()


def test_norms_without_running_statistics_have_none_to_renew():
    assert not has_running_statistics(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.GroupNorm(1, 2)))
    assert has_running_statistics(nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm1d(2))))
