"""Losses of pytorch-metric-learning in recipes: the same values, checkpoints, and clear refusals."""

import inspect

import pytest
import torch

from nearkin import losses
from nearkin.catalogue import keyword_options
from nearkin.encoders import build_encoder
from nearkin.errors import RecipeError
from nearkin.losses.pml import pml_loss, pml_names
from nearkin.recipe import TrainingSection
from nearkin.training.optimisation import parameter_groups
from nearkin.training.recipe_check import load_recipe, validate

library = pytest.importorskip("pytorch_metric_learning")
LABELS = torch.arange(6).repeat_interleave(4)


def embeddings():
    return torch.nn.functional.normalize(torch.randn(24, 16, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.mark.parametrize("name", pml_names())
def test_every_loss_trains_and_is_restored_from_its_state(name):
    loss_class = pml_loss(name)
    options = {key: 0.5 for key, p in keyword_options(loss_class).items() if p.default is inspect.Parameter.empty}
    torch.manual_seed(0)
    loss, other = (loss_class(6, 16, **options) for _ in range(2))
    for _ in range(2):  # running averages begin to differ
        x = embeddings().requires_grad_()
        loss(x, LABELS).backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other(embeddings(), LABELS), loss(embeddings(), LABELS))


def test_value_is_the_librarys_with_options_and_miner():
    from pytorch_metric_learning import losses as theirs
    from pytorch_metric_learning import miners

    loss = pml_loss("pml:MultiSimilarityLoss")(6, 16, beta=30, miner={"name": "MultiSimilarityMiner", "epsilon": 0.2})
    x = embeddings()
    expected = theirs.MultiSimilarityLoss(beta=30)(x, LABELS, miners.MultiSimilarityMiner(epsilon=0.2)(x, LABELS))
    torch.testing.assert_close(loss(x, LABELS), expected)


def test_a_recipe_names_loss_options_and_miner():
    recipe = load_recipe({"objective": {"name": "pml:CircleLoss", "m": 0.3, "miner": "MultiSimilarityMiner"}})
    validate(recipe)
    assert recipe.objective.options == {"m": 0.3, "miner": "MultiSimilarityMiner"}
    assert losses.kind(losses.loss_named("pml:CircleLoss")) == "pml"


@pytest.mark.parametrize(
    "objective, word",
    [
        ({"name": "pml:CircelLoss"}, "CircleLoss"),
        ({"name": "pml:CircleLoss", "margin": 1}, "gamma"),
        ({"name": "pml:RankedListLoss"}, "objective.Tn"),
        ({"name": "pml:CrossBatchMemory"}, "cross_batch_memory"),
        ({"name": "pml:VICRegLoss"}, "two views"),
        ({"name": "pml:CircleLoss", "miner": "MultiMiner"}, "MultiSimilarityMiner"),
        ({"name": "pml:FastAPLoss", "num_bins": "many"}, "num_bins"),
    ],
)
def test_what_cannot_be_is_refused_by_name(objective, word):
    with pytest.raises(RecipeError, match=word):
        validate(load_recipe({"objective": objective}))


def test_methods_that_need_pairs_are_refused():
    with pytest.raises(RecipeError, match=r"method\.name=plain"):
        validate(load_recipe({"objective": {"name": "pml:CircleLoss"}, "method": {"name": "ccp"}}))


def test_class_weights_take_the_rate_of_proxies():
    loss = pml_loss("pml:ProxyAnchorLoss")(6, 16)
    groups = parameter_groups(build_encoder("small", dim=16), [loss], TrainingSection(learning_rate=1e-4))
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(loss.loss.proxies)] == pytest.approx(1e-2)
