from __future__ import annotations

import re

import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe, recipes_folder
from nearkin.studies.tune import Dimension, read_space
from nearkin.studies.tune.space import ENDING, check_space, with_values
from nearkin.training.recipes import load_recipe


@pytest.fixture
def recipe():
    return load_recipe({"objective": "contrastive", "method": "ccp", "protocol": {"name": "validation"}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.proximal_weight=1e-5..1e-2:log", Dimension("method.proximal_weight", 1e-5, 1e-2, log=True)),
        ("method.proximal_weight=0..1", Dimension("method.proximal_weight", 0.0, 1.0)),
        ("method.proxies_per_class=1..8", Dimension("method.proxies_per_class", 1, 8)),
        ("training.batch_size=16..256:log", Dimension("training.batch_size", 16, 256, log=True)),
        ("training.learning_rate=1e-4,1e-3", Dimension("training.learning_rate", choices=(1e-4, 1e-3))),
        ("training.optimiser=adam,adamw", Dimension("training.optimiser", choices=("adam", "adamw"))),
        ("training.max_steps=null,30", Dimension("training.max_steps", choices=(None, 30))),
        ("data.crop_scale=[0.2,1],[0.4,1]", Dimension("data.crop_scale", choices=([0.2, 1.0], [0.4, 1.0]))),
        ("encoder.options.width=1e-3..2", Dimension("encoder.options.width", 1e-3, 2.0)),
        ("objective.name=contrastive,triplet", Dimension("objective.name", choices=("contrastive", "triplet"))),
    ],
)
def test_texts_are_typed_as_the_recipe_is(recipe, text, expected):
    (found,) = read_space([text], recipe)
    assert found == expected
    assert repr(found) == repr(expected), "1 and 1.0 are equal, yet one is a whole number"
    assert read_space([str(found)], recipe) == (found,), "written and read again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method.pul=0..1", "unknown key 'method.pul' for ccp: did you mean 'pull'"),
        ("metod.proximal_weight=0..1", "unknown section 'metod': did you mean 'method'"),
        ("method.proxies_per_class=0.5..4", "must be a whole number, got 0.5"),
        ("training.optimiser=adam,adamx", "must be one of adamw, adam, sgd, got 'adamx'"),
        ("training.optimiser=1..3", "must be one of"),
        ("encoder.backbone=1..3", "a range is for numbers"),
        ("training.learning_rate=1e-2..1e-4", "from low to high"),
        ("training.learning_rate=0..1:log", "begins above 0"),
        ("training.learning_rate=1..2:lin", "ends in :log or in nothing, got :lin"),
        ("training.learning_rate=nan..1", "must be a finite number"),
        ("training.learning_rate=-1..1", "must be at least 0"),
        ("training.learning_rate=1e-3", "one value is no search"),
        ("training.batch_size=8,8.0", "listed twice"),
        ("training.learning_rate=[1", "write a range as low..high"),
        ("protocol.validation_share=0.1..0.5", "the same for all trials"),
        ("training.seed=0..9", "the same for all trials"),
        ("training=1..2", "names a section and a key"),
        ("cpp", "did you mean 'ccp'"),
    ],
)
def test_what_cannot_be_searched_is_refused(recipe, text, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        read_space([text], recipe)


def test_a_file_says_the_same(recipe, tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(
        "method: {proximal_weight: 1e-5..1e-2:log, proxies_per_class: [1, 2]}\ntraining.optimiser: adam,adamw\n"
    )
    texts = ["method.proximal_weight=1e-5..1e-2:log", "method.proxies_per_class=1,2", "training.optimiser=adam,adamw"]
    assert read_space([file], recipe) == read_space(texts, recipe)
    with pytest.raises(RecipeError, match=r"method\.proximal_weight is in the space twice"):
        read_space([file, "method.proximal_weight=0..1"], recipe)
    file.write_text("- 1\n")
    with pytest.raises(RecipeError, match=r"mine\.yml must hold keys and values"):
        read_space([file], recipe)
    file.write_text("a: [\n")
    with pytest.raises(RecipeError, match=r"mine\.yml is not valid YAML"):
        read_space([file], recipe)
    file.write_text("{}")
    with pytest.raises(RecipeError, match="the space is empty"):
        read_space([file], recipe)


@pytest.mark.parametrize("file", sorted((recipes_folder() / "spaces").iterdir()), ids=lambda file: file.name)
def test_shipped_spaces_fit_the_recipe_of_their_command(file):
    assert file.name.endswith(ENDING)
    name = file.name.removesuffix(ENDING)
    command = re.match(rf"# \S.*\n# nearkin tune (\S+) --space {name}( |\n)", file.read_text())
    recipe = load_recipe(command[1])
    check_space(read_space([name], recipe), recipe)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["method.proximal_weight=-1..1"],
            "the space holds method.proximal_weight=-1, and that cannot be trained: method.proximal_weight must be at",
        ),
        (["method.proxies_per_class=0..4"], "method.proxies_per_class=0, and"),
        (["method.proxies_per_class=1..13"], "method.proxies_per_class=13, and that cannot be trained: method.pool_"),
        (["objective.positive_margin=-0.5..0.5"], "positive_margin"),
        (["method.proxies_per_class=2,8", "method.pool_size=4,12"], "method.proxies_per_class=8 method.pool_size=4"),
        (
            ["training.batch_size=20,32", "training.images_per_class=4,5"],
            "batch_size=32 training.images_per_class=5, and that cannot be trained: a balanced batch needs",
        ),
        (["method.steps_per_problem=0..999", *(f"training.{key}=1..64" for key in ("epochs", "batch_size"))], "=0 "),
    ],
)
def test_every_corner_is_built_before_anything_runs(recipe, texts, message):
    recipe = with_values(recipe, {"training.sampler": "balanced" if "images" in texts[-1] else "random"})
    with pytest.raises(RecipeError, match=re.escape(message)):
        check_space(read_space(texts, recipe), recipe)


def test_keys_of_a_space_may_need_each_other(recipe):
    space = read_space(["objective.proxies_per_class=2..5", "objective.name=mpa,soft_triple"], Recipe())
    assert space[0] == Dimension("objective.proxies_per_class", 2, 5)
    recipe = with_values(recipe, {"training.sampler": "balanced"})
    space = read_space(["training.images_per_class=5,10", "training.batch_size=50,100"], recipe)
    check_space(space, recipe)


def test_fractions_are_short_and_stay_inside():
    rate = Dimension("training.learning_rate", 1.23456e-5, 0.0123456, log=True)
    assert rate.value_of(0.00012345678) == 0.0001235
    assert Dimension("method.proximal_weight", 0.012344, 1.0).value_of(0.012344) == 0.012344, (
        "0.01234 would lie outside"
    )
    assert rate.value_of(0.0123456) == 0.0123456, "0.01235 would lie outside"


def test_another_loss_keeps_the_options_that_are_searched_with_it(recipe):
    made = with_values(recipe, {"objective.margin": 0.3, "objective.name": "triplet", "training.learning_rate": 1e-5})
    assert (made.objective.name, made.objective.options) == ("triplet", {"margin": 0.3})
    assert made.training.learning_rate == 1e-5
