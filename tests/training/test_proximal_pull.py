"""The proximal term, against the gradient that autograd gives the written-out norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin.training.optimisation import ProximalTerm


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def move(parameters):
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn_like(parameter))


def test_adds_the_gradient_of_the_squared_distance():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    start = [p.detach().clone() for p in parameters]
    move(parameters)
    loss = sum(p.sin().sum() for p in parameters)
    norm = sum((p - s).square().sum() for p, s in zip(parameters, start, strict=True))
    wanted = torch.autograd.grad(loss + 0.3 / 2 * norm, parameters)
    sum(p.sin().sum() for p in parameters).backward()
    storage = [p.grad.data_ptr() for p in parameters]
    pull.add_to_gradients(parameters, 0.3)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=0, atol=1e-14)
    assert [p.grad.data_ptr() for p in parameters] == storage, "the gradients are changed in place"


def test_alone_it_is_exactly_lambda_times_the_way_gone():
    parameters = list(network().float().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    start = [p.detach().clone() for p in parameters]
    move(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    pull.add_to_gradients(iter(parameters), 2e-4)
    for parameter, before in zip(parameters, start, strict=True):
        assert torch.equal(parameter.grad, 2e-4 * (parameter.detach() - before))


def test_the_centre_is_a_copy_and_moves_when_told():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    move(parameters)
    pull.remember(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    pull.add_to_gradients(parameters, 1.0)
    assert all(not p.grad.any() for p in parameters)


def test_parameters_without_a_gradient_are_left_alone():
    resting, trained = (nn.Parameter(torch.ones(2)) for _ in range(2))
    pull = ProximalTerm()
    pull.remember([resting, trained])
    move([resting, trained])
    trained.grad = torch.zeros(2)
    pull.add_to_gradients([resting, trained], 1.0)
    assert resting.grad is None
    assert torch.equal(trained.grad, trained.detach() - 1)


def test_nothing_is_pulled_before_anything_is_remembered_or_with_no_weight():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 3.0)
    pull = ProximalTerm()
    pull.add_to_gradients([parameter], 1.0)
    pull.remember([parameter])
    move([parameter])
    pull.add_to_gradients([parameter], 0.0)
    assert torch.equal(parameter.grad, torch.full((2,), 3.0))


def test_other_parameters_than_remembered_are_refused():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    with pytest.raises(ValueError, match=r"the 6 that were remembered, in the same order, got 5"):
        pull.add_to_gradients(parameters[:-1], 1.0)


def test_state_goes_through_a_checkpoint(tmp_path):
    parameters = list(network().parameters())
    pull = ProximalTerm()
    empty = ProximalTerm()
    empty.load_state_dict(pull.state_dict())
    assert empty.centre is None
    pull.remember(parameters)
    torch.save(pull.state_dict(), tmp_path / "pull.pt")
    move(parameters)
    again = ProximalTerm()
    again.load_state_dict(torch.load(tmp_path / "pull.pt", weights_only=True))
    gradients = []
    for each in (pull, again):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        each.add_to_gradients(parameters, 0.1)
        gradients.append([p.grad for p in parameters])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert any(g.any() for g in gradients[0])
