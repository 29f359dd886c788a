import pytest

from nearkin.errors import RecipeError
from nearkin.evaluation.scores import is_score
from nearkin.recipe import ProtocolSection, Recipe
from nearkin.training.recipe_check import load_recipe


def test_with_changes_changes_the_named_keys_and_nothing_else():
    recipe = load_recipe({"objective": {"name": "mpa", "proxies_per_class": 3}}, ["training.epochs=5"])
    changed = recipe.with_changes({"training.seed": 3, "training.batch_size": "16", "encoder.weights": None})
    assert (changed.training.seed, changed.training.batch_size, changed.encoder.weights) == (3, 16, None)
    mapping = recipe.as_mapping()
    mapping["training"] |= {"seed": 3, "batch_size": 16}
    mapping["encoder"]["weights"] = None
    assert changed == load_recipe(mapping)
    assert recipe.training.seed == 0
    assert recipe.with_changes({}) == recipe


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
def test_with_changes_refuses_what_is_no_key_or_no_value_of_it(changes, said):
    with pytest.raises(RecipeError, match=said):
        Recipe().with_changes(changes)


def test_what_is_measured_follows_the_keys_each_score_once():
    assert ProtocolSection().measured == ("R@1", "R@2", "R@4", "R@8", "P@R", "MAP@R", "nDCG@8")
    every = ProtocolSection(
        recall_at=(1,),
        precision_at=(2,),
        map_at=(3,),
        ndcg_at=(4,),
        covering=True,
        clustering=True,
        scores=("MRR@5", "R@1"),
    ).measured
    places = ("R@1", "P@R", "MAP@R", "P@2", "MAP@3", "nDCG@4")
    assert every == (*places, "covering_radius", "inter_class_distance", "NMI", "F1", "MRR@5")
    assert all(map(is_score, every))
