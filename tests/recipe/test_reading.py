import dataclasses

import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe


def test_overrides_reach_every_section():
    recipe = Recipe.from_mapping(
        {"objective": {"name": "proxy_anchor", "alpha": 16}},
        ["training.epochs=5", "objective.margin=0.2", "encoder.options.width=2", "data.crop_scale=[0.2, 1]"],
    )
    assert recipe.training.epochs == 5
    assert recipe.objective.options == {"alpha": 16.0, "margin": 0.2}
    assert recipe.encoder.options == {"width": 2}
    assert recipe.data.crop_scale == (0.2, 1.0)


def test_parts_inside_an_objective_survive_a_round_trip():
    for objective in (
        {"name": "mpa", "proxies_per_class": 3, "weighting": {"name": "isa", "hardness": 0.2}},
        {"name": "cross_batch_memory", "size": 100, "pair_loss": {"name": "triplet", "margin": 0.2}},
    ):
        recipe = Recipe.from_mapping({"objective": objective})
        assert recipe.as_mapping()["objective"] == objective
        assert Recipe.from_mapping(recipe.as_mapping()) == recipe


def test_another_objective_drops_the_options_of_the_first():
    recipe = Recipe.from_mapping({"objective": {"name": "proxy_anchor", "alpha": 16}}, ["objective.name=contrastive"])
    assert recipe.objective.name == "contrastive"
    assert recipe.objective.options == {}


@pytest.mark.parametrize(
    ("mapping", "overrides", "said"),
    [
        ({}, ["training.epoch=5"], r"unknown key 'training\.epoch': did you mean 'epochs'"),
        ({"trainning": {}}, [], "unknown section 'trainning': did you mean 'training'"),
        ({"objective": {"name": "proxy_anchr"}}, [], "did you mean 'proxy_anchor'"),
        ({"objective": {"name": "proxy_anchor", "alhpa": 3}}, [], r"'objective\.alhpa' for proxy_anchor: did you mean"),
        ({"objective": {"name": "proxy_anchor", "alpha": "x"}}, [], r"objective\.alpha must be a number"),
        ({}, ["training.learning_rate=nan"], r"training\.learning_rate must be a finite number, got 'nan'"),
        (
            {"objective": {"name": "proxy_anchor", "alpha": float("inf")}},
            [],
            r"objective\.alpha must be a finite number",
        ),
        ({"objective": {"name": "cross_batch_memory"}}, [], r"needs objective\.size"),
        (
            {"objective": {"name": "cross_batch_memory", "size": 9, "pair_loss": "proxy_anchor"}},
            [],
            "must be a pair loss",
        ),
        ({"objective": {"name": "cosface", "weighting": "isa"}}, [], "cosface takes no weighting"),
        ({"objective": {"name": "mpa", "weighting": {"hardnes": 1}}}, [], "did you mean 'hardness'"),
        ({"objective": {"name": "mpa", "weighting": {"name": "iso"}}}, [], "unknown objective.weighting 'iso'"),
        ({"objective": {"name": "mpa", "weighting": {"nmae": "isa"}}}, [], "did you mean 'name'"),
        ({"objective": {"name": "vcpa", "generator": 3}}, [], "cannot be set from a recipe"),
        ({"method": {"name": "plane"}}, [], "did you mean 'plain'"),
        ({}, ["training.sampler=balanced", "training.batch_size=10"], "multiple of training.images_per_class"),
        ({}, ["training.optimiser=rmsprop"], "one of adamw, adam, sgd"),
        ({}, ["epochs=5"], "names a section and a key"),
        ({}, ["training.epochs=-1"], "at least 0"),
        ({}, ["protocol.test_share=1.5"], "share between 0 and 1"),
        ({}, ["protocol.label_noise=1"], r"protocol\.label_noise must be a share between 0 and 1, got 1\.0"),
        ({}, ["protocol.train_share=0"], r"protocol\.train_share must be a share above 0 and at most 1, got 0\.0"),
        ({}, ["protocol.fold=4"], r"protocol\.fold must be below protocol\.folds \(4\), got 4"),
        ({}, ["protocol.folds=1"], r"protocol\.folds must be at least 2, got 1"),
        ({}, ["protocol.split_seed=-1"], r"protocol\.split_seed must be at least 0, got -1"),
        ({}, ["protocol.name=query_gallery"], "query-gallery"),
        ({"data": 5}, [], "must hold keys and values"),
        ({"objective": {"alpha": 3}}, [], r"section 'objective' needs a name: "),
        ({}, ["training.epochs=2", "training.epochs.x=1"], "holds a value"),
    ],
)
def test_mistakes_are_named_before_any_work(mapping, overrides, said):
    with pytest.raises(RecipeError, match=said):
        Recipe.from_mapping(mapping, overrides)


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("data: [unclosed")
    with pytest.raises(RecipeError, match=r"bad\.yaml is not valid YAML"):
        Recipe.load(file)
    file.write_text("- just\n- a list\n")
    with pytest.raises(RecipeError, match="must hold keys and values"):
        Recipe.load(file)


def test_recipes_are_frozen_and_fingerprints_tell_them_apart():
    recipe = Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.training.epochs = 3
    assert recipe.fingerprint() == Recipe().fingerprint()
    assert recipe.fingerprint() != Recipe.from_mapping({}, ["training.seed=1"]).fingerprint()


def test_keys_that_came_later_leave_the_names_of_folders_as_they_were():
    """The hash is in the default folder of a run, and was this before the keys came."""
    assert Recipe.from_mapping({"encoder": {"dim": 8}}).fingerprint() == "8bd81d9a"
    changed = Recipe.from_mapping({"encoder": {"dim": 8}}, ["training.stop_at_epoch=2"])
    assert changed.fingerprint() != "8bd81d9a"
