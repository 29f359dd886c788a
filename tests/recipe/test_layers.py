import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe
from nearkin.recipe.layers import layered, read_layers


@pytest.fixture
def write(tmp_path):
    def written(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return written


def test_a_chain_of_bases_the_nearest_on_top(write):
    write("ground.yaml", "training: {epochs: 5, batch_size: 8, learning_rate: 1e-3}\nencoder: {dim: 16}")
    write("middle.yaml", "base: ground\ntraining: {epochs: 6, batch_size: 9}")
    recipe = Recipe.load(write("top.yaml", "base: middle\ntraining: {epochs: 7}"))
    training = recipe.training
    assert (training.epochs, training.batch_size, training.learning_rate, recipe.encoder.dim) == (7, 9, 1e-3, 16)
    assert "base" not in recipe.as_mapping()


def test_overrides_come_on_top_of_all(write):
    write("ground.yaml", "objective: {name: mpa, gamma: 0.3}")
    file = write("top.yaml", "base: ground.yaml\nobjective: {tau: 0.4}")
    assert Recipe.load(file, ["objective.tau=0.5"]).objective.options == {"gamma": 0.3, "tau": 0.5}


def test_a_base_is_looked_for_beside_the_file_then_by_name(write, tmp_path, monkeypatch):
    assert Recipe.load(write("mine.yaml", "base: glyphs/demo")) == Recipe.load("glyphs/demo")
    assert Recipe.load(write("mine.yaml", "base: ccp/c2_ccp")) == Recipe.load("ccp/c2_ccp")
    write("deep/glyphs/demo.yaml", "training: {epochs: 77}")
    monkeypatch.chdir(tmp_path / "deep")
    assert Recipe.load(tmp_path / "mine.yaml").training.epochs == 100, "not beside the folder one happens to be in"
    assert Recipe.load(write("deep/own.yaml", "base: glyphs/demo")).training.epochs == 77
    assert Recipe.load(write("deep/up.yaml", "base: ../mine.yaml")) == Recipe.load("ccp/c2_ccp")


@pytest.mark.parametrize(
    ("base", "over", "together"),
    [
        ({"name": "mpa", "tau": 0.1}, {"name": "mpa", "gamma": 0.2}, {"name": "mpa", "tau": 0.1, "gamma": 0.2}),
        ({"name": "mpa", "tau": 0.1}, {"gamma": 0.2}, {"name": "mpa", "tau": 0.1, "gamma": 0.2}),
        ({"name": "mpa", "tau": 0.1}, {"name": "vcpa"}, {"name": "vcpa"}),
        ({"name": "mpa", "tau": 0.1}, "vcpa", {"name": "vcpa"}),
        ({"name": "mpa", "tau": 0.1}, "mpa", {"name": "mpa", "tau": 0.1}),
        ("mpa", {"tau": 0.1}, {"name": "mpa", "tau": 0.1}),
        (
            {"name": "cross_batch_memory", "size": 9, "pair_loss": {"name": "triplet", "margin": 0.2}},
            {"pair_loss": {"name": "contrastive"}},
            {"name": "cross_batch_memory", "size": 9, "pair_loss": {"name": "contrastive"}},
        ),
    ],
)
def test_another_name_drops_the_options_of_a_part(base, over, together):
    assert layered({"objective": base}, {"objective": over}) == {"objective": together}


def test_another_protocol_keeps_what_is_not_an_option_of_its_name():
    base, over = {"protocol": {"name": "conventional", "recall_at": [1, 10]}}, {"protocol": {"name": "mlrc"}}
    assert layered(base, over) == {"protocol": {"name": "mlrc", "recall_at": [1, 10]}}


def test_lists_are_replaced_whole_and_bases_left_alone():
    base = {"protocol": {"recall_at": [1, 2]}, "data": {"source": "cub"}}
    assert layered(base, {"protocol": {"recall_at": [5]}})["protocol"] == {"recall_at": [5]}
    assert base == {"protocol": {"recall_at": [1, 2]}, "data": {"source": "cub"}}


def test_a_circle_names_its_files(write):
    write("a.yaml", "base: b")
    write("b.yaml", "base: c")
    file = write("c.yaml", "base: a")
    with pytest.raises(RecipeError, match=r"bases of each other: \S+c\.yaml → \S+a\.yaml → \S+b\.yaml → \S+c\.yaml"):
        read_layers(file)
    with pytest.raises(RecipeError, match=r"bases of each other: \S+own\.yaml → \S+own\.yaml"):
        read_layers(write("own.yaml", "base: own"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: glyphs/dmo", r"top\.yaml has no base to stand on: no recipe 'glyphs/dmo'.*did you mean 'glyphs/demo'"),
        ("base: [a, b]", r"top\.yaml.*'base' must name one recipe, got \['a', 'b'\]"),
        ("base: broken", r"broken\.yaml is not valid YAML"),
        ("base: misspelt", r"top\.yaml: unknown key 'training\.epoch'"),
    ],
)
def test_what_is_wrong_with_a_base_is_said_with_the_file(write, text, said):
    write("broken.yaml", "data: [unclosed")
    write("misspelt.yaml", "training: {epoch: 3}")
    with pytest.raises(RecipeError, match=said):
        Recipe.load(write("top.yaml", text))
