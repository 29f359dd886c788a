"""Proxies that are Gaussians: their draws, how far they vary, and a stream of noise that goes on after a resume."""

from __future__ import annotations

import copy

import pytest
import torch

from nearkin.losses.vcpa import VariationalBank


def test_a_noise_state_of_an_unknown_device_seeds_a_new_stream():
    draws = []
    for byte in (1, 1, 2):
        bank = VariationalBank(4, 1, 3)
        bank.set_extra_state(torch.full((24,), byte, dtype=torch.uint8))
        draws.append(bank.noise())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("trainable", [False, True])
def test_it_starts_at_the_prior_and_goes_back_to_it_with_other_means(trainable):
    bank = VariationalBank(3, 2, 4, trainable=trainable)
    assert not bank.vectors.any()
    torch.testing.assert_close(bank.sigma, torch.ones(3, 2, 4))
    assert bank.vectors.requires_grad == bank.sigma.requires_grad == trainable
    with torch.no_grad():
        (bank.deviation_before_softplus if trainable else bank.deviation).fill_(0.3)
    bank.restart(torch.full((3, 2, 4), 7.0))
    torch.testing.assert_close(bank.vectors.detach(), torch.full((3, 2, 4), 7.0))
    torch.testing.assert_close(bank.sigma.detach(), torch.ones(3, 2, 4))


def test_a_draw_is_the_mean_and_the_deviation_times_the_next_noise():
    bank = VariationalBank(2, 1, 3)
    mu, sigma = torch.randn(2, 3), torch.rand(2, 3)
    bank.assign(mu, sigma)
    noise = copy.deepcopy(bank).noise()
    torch.testing.assert_close(bank.draw(), mu[:, None] + sigma[:, None] * noise)
    assert not torch.equal(bank.noise(), noise)


def test_a_trainable_bank_learns_both_from_a_draw():
    bank = VariationalBank(2, 1, 3, trainable=True)
    bank.draw().square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in bank.parameters())
    assert len(list(bank.parameters())) == 2


def test_the_saved_state_goes_on_with_the_same_noise(tmp_path):
    bank = VariationalBank(2, 1, 3)
    bank.noise()
    torch.save(bank.state_dict(), tmp_path / "bank.pt")
    resumed = VariationalBank(2, 1, 3)
    resumed.load_state_dict(torch.load(tmp_path / "bank.pt", weights_only=True))
    assert torch.equal(resumed.noise(), bank.noise())


def test_looking_at_the_uncertainty_takes_no_noise_from_training():
    bank = VariationalBank(2, 3, 4)
    twin = copy.deepcopy(bank)
    assert bank.uncertainty(draws=10).shape == (2, 3)
    assert torch.equal(bank.uncertainty(draws=10), bank.uncertainty(draws=10))
    assert torch.equal(bank.noise(), twin.noise())
