import pytest

from nearkin.losses import catalogue
from nearkin.recipe import Recipe
from nearkin.training.objective import build_objective


def build(objective, **changes):
    size = {"num_classes": 5, "dim": 4, "num_images": 77, "normalisation": "l2"} | changes
    return build_objective(Recipe.from_mapping({"objective": objective}).objective, **size)


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_loss_can_be_named_in_a_recipe(name):
    objective = {"name": name, "size": 50} if name == "cross_batch_memory" else {"name": name}
    assert isinstance(build(objective), catalogue()[name])


def test_a_pair_loss_takes_the_encoders_normalisation():
    assert build({"name": "contrastive"}, normalisation="ball").normalisation == "ball"
    assert build({"name": "contrastive", "normalisation": "l2"}, normalisation="ball").normalisation == "l2"
    wrapped = build({"name": "cross_batch_memory", "size": 50, "pair_loss": "triplet"}, normalisation="ball")
    assert wrapped.pair_loss.normalisation == "ball"


def test_a_memory_of_the_training_set_takes_its_size():
    assert build({"name": "proxy_isa"}).memory_size == 77
    assert build({"name": "proxy_isa", "memory_size": 9}).memory_size == 9
    assert build({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.memory_size == 77
    assert build({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.hardness == 0.3
    assert build({"name": "mpa"}).weighting is None
