from __future__ import annotations

import re

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe, recipes_folder
from nearkin.studies.search_space import ENDING, check_space, read_space, recipe_at
from nearkin.training.recipe_check import load_recipe


@pytest.fixture
def recipe():
    return load_recipe({"objective": "contrastive", "method": "ccp", "protocol": {"name": "validation"}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.proximal_weight=1e-5..1e-2:log", FloatDistribution(1e-5, 1e-2, log=True)),
        ("method.proximal_weight=0..1", FloatDistribution(0.0, 1.0)),
        ("method.proxies_per_class=1..8", IntDistribution(1, 8)),
        ("training.batch_size=16..256:log", IntDistribution(16, 256, log=True)),
        ("training.optimiser=adam,adamw", CategoricalDistribution(["adam", "adamw"])),
        ("training.max_steps=null,30", CategoricalDistribution(["null", "30"])),
        ("data.crop_scale=[0.2,1],[0.4,1]", CategoricalDistribution(["[0.2, 1.0]", "[0.4, 1.0]"])),
    ],
)
def test_texts_are_typed_as_the_recipe_is(recipe, text, expected):
    ((key, distribution),) = read_space([text], recipe).items()
    assert (key, distribution) == (text.partition("=")[0], expected)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("method.proximal_weigt=0..1", "did you mean 'proximal_weight'"),
        ("metod.pool=0..1", "did you mean 'method'"),
        ("method.proxies_per_class=0.5..4", "0.5"),
        ("training.optimiser=adam,adamx", "'adamx'"),
        ("encoder.backbone=1..3", "encoder.backbone"),
        ("training.learning_rate=1e-2..1e-4", "0.01..0.0001"),
        ("training.learning_rate=0..1:log", "above 0"),
        ("training.learning_rate=nan..1", "finite"),
        ("training.learning_rate=1e-3", "one value"),
        ("training.batch_size=8,8.0", "twice"),
        ("training.learning_rate=[1", "low..high"),
        ("protocol.validation_share=0.1..0.5", "the same for all trials"),
        ("training.seed=0..9", "the same for all trials"),
        ("cpp", "did you mean 'ccp'"),
    ],
)
def test_what_cannot_be_searched_is_refused(recipe, text, named):
    with pytest.raises(RecipeError) as error:
        read_space([text], recipe)
    assert named in str(error.value)


def test_a_file_gives_the_same(recipe, tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(
        "method: {proximal_weight: 1e-5..1e-2:log, proxies_per_class: [1, 2]}\ntraining.optimiser: adam,sgd\n"
    )
    texts = ["method.proximal_weight=1e-5..1e-2:log", "method.proxies_per_class=1,2", "training.optimiser=adam,sgd"]
    assert read_space([file], recipe) == read_space(texts, recipe)
    with pytest.raises(RecipeError, match="twice"):
        read_space([file, "method.proxies_per_class=1..2"], recipe)
    for content in ("- 1\n", "a: [\n", "{}"):
        file.write_text(content)
        with pytest.raises(RecipeError):
            read_space([file], recipe)


@pytest.mark.parametrize("file", sorted((recipes_folder() / "spaces").iterdir()), ids=lambda file: file.name)
def test_shipped_spaces_fit_the_recipe_of_their_command(file):
    name = file.name.removesuffix(ENDING)
    command = re.match(rf"# \S.*\n# nearkin tune (\S+) --space {name}( |\n)", file.read_text())
    recipe = load_recipe(command[1])
    check_space(read_space([name], recipe), recipe)


def test_values_that_cannot_be_trained_are_found_before_anything_runs(recipe):
    for text, named in (
        ("method.proximal_weight=-1..1", "method.proximal_weight=-1"),
        ("method.proxies_per_class=0..4", "method.proxies_per_class=0"),
        ("method.proxies_per_class=1..13", "method.proxies_per_class=13"),
    ):
        with pytest.raises(RecipeError) as error:
            check_space(read_space([text], recipe), recipe)
        assert named in str(error.value)
    balanced = recipe_at(recipe, {"training.sampler": "balanced"})
    check_space(read_space(["training.images_per_class=5,10", "training.batch_size=50,100"], balanced), balanced)


def test_another_loss_keeps_the_options_that_are_searched_with_it(recipe):
    space = read_space(["objective.proxies_per_class=2..5", "objective.name=mpa,soft_triple"], Recipe())
    assert space["objective.proxies_per_class"] == IntDistribution(2, 5)
    made = recipe_at(recipe, {"objective.margin": 0.3, "objective.name": "triplet", "training.learning_rate": 1e-5})
    assert (made.objective.name, made.objective.options) == ("triplet", {"margin": 0.3})
    assert made.training.learning_rate == 1e-5
