import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe


def test_but_changes_the_named_keys_and_nothing_else():
    recipe = Recipe.from_mapping({"objective": {"name": "mpa", "proxies_per_class": 3}}, ["training.epochs=5"])
    changed = recipe.but({"training.seed": 3, "training.batch_size": "16", "encoder.weights": None})
    assert (changed.training.seed, changed.training.batch_size, changed.encoder.weights) == (3, 16, None)
    mapping = recipe.as_mapping()
    mapping["training"] |= {"seed": 3, "batch_size": 16}
    mapping["encoder"]["weights"] = None
    assert changed == Recipe.from_mapping(mapping)
    assert recipe.training.seed == 0
    assert recipe.but({}) == recipe


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.sed": 1}, r"unknown key 'training\.sed': did you mean 'seed'"),
        ({"training": 1}, r"unknown key 'training\.'"),
        ({"trainin.seed": 1}, r"unknown key 'trainin\.seed'"),
        ({"objective.name": "mpa"}, r"unknown key 'objective\.name'"),
        ({"training.seed": 1.5}, r"training\.seed must be a whole number"),
    ],
)
def test_but_refuses_what_is_no_key_or_no_value_of_it(changes, said):
    with pytest.raises(RecipeError, match=said):
        Recipe().but(changes)
