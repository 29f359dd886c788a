from __future__ import annotations

import copy

import pytest
import torch

from nearkin.data.loader import TrainingLoader
from nearkin.errors import RecipeError
from nearkin.training.loop import HealthCheck, train_step

UPDATES = ("method.name=proxy_updates", "objective.name=proxy_anchor", "encoder.normalisation=l2")


def one_step(state):
    with TrainingLoader(state.train_set, state.labels, state.transform, state.sampler, seed=0, workers=1) as loader:
        batch = next(iter(loader))
    train_step(state, batch, HealthCheck(state))
    return batch


def test_one_update_is_plain_training(tiny):
    states = [tiny(*UPDATES, "method.updates=1"), tiny("objective.name=proxy_anchor", "encoder.normalisation=l2")]
    for state in states:
        one_step(state)
    torch.testing.assert_close(states[0].objective.bank.vectors, states[1].objective.bank.vectors)


def test_further_updates_are_steps_of_adamw_with_the_embeddings_held_still(tiny):
    state = tiny(*UPDATES, "method.updates=4", "training.optimiser=sgd", "training.proxy_lr_multiplier=1")
    reference = copy.deepcopy(state.objective)
    seen = []
    state.encoder.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    batch = one_step(state)
    rate, decay = state.recipe.training.learning_rate, state.recipe.training.weight_decay
    optimiser = torch.optim.AdamW(reference.parameters(), lr=rate, weight_decay=decay)
    for _ in range(3):
        optimiser.zero_grad()
        reference(seen[0], batch.labels).backward()
        optimiser.step()
    # The fourth is the training's own: SGD with momentum, whose first step is the gradient.
    reference.zero_grad()
    reference(seen[0], batch.labels).backward()
    bank = reference.bank.vectors
    expected = bank - rate * (bank.grad + decay * bank)
    torch.testing.assert_close(state.objective.bank.vectors, expected)


def test_newton_steps_bring_the_loss_of_the_batch_down_and_leave_nothing_to_the_optimiser(tiny):
    state = tiny(*UPDATES, "method.order=second", "method.updates=10")
    before = copy.deepcopy(state.objective)
    seen = []
    state.encoder.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    batch = one_step(state)
    after = state.objective(seen[0], batch.labels)
    assert after < before(seen[0], batch.labels)
    assert state.objective.bank.vectors not in state.optimiser.state
    assert state.objective.bank.vectors.isfinite().all()


def test_the_moments_of_the_proxies_survive_a_checkpoint(tiny):
    state = tiny(*UPDATES, "method.updates=3")
    one_step(state)
    kept = copy.deepcopy(state.method.state_dict())
    again = tiny(*UPDATES, "method.updates=3")
    again.method.load_state_dict(kept)
    again.objective.load_state_dict(state.objective.state_dict())
    one_step(again)
    (moments,) = again.method.state_dict()["optimiser"]["state"].values()
    assert moments["step"] == 4


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["method.updates=0"], "method.updates must be at least 1"),
        (["method.damping=0"], "method.damping must be positive"),
        (["objective.name=mpa"], "is for proxy_anchor, got mpa"),
    ],
)
def test_what_it_refuses(tiny, overrides, said):
    with pytest.raises(RecipeError, match=said):
        tiny(*UPDATES, *overrides)
