import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import find_recipe, recipes_folder, shipped_recipes
from nearkin.recipe.reading import layered, read_layers
from nearkin.training.recipe_check import load_recipe


def test_overrides_reach_every_section():
    recipe = load_recipe(
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
        recipe = load_recipe({"objective": objective})
        assert recipe.as_mapping()["objective"] == objective
        assert load_recipe(recipe.as_mapping()) == recipe


def test_overrides_of_an_objective_that_is_only_named():
    recipe = load_recipe({"objective": "mpa"}, ["objective.gamma=0.3"])
    assert (recipe.objective.name, recipe.objective.options) == ("mpa", {"gamma": 0.3})
    assert load_recipe({"objective": "mpa"}, ["objective.name=vcpa"]).objective.name == "vcpa"


def test_a_mapping_replaces_the_one_that_is_there():
    base = {"encoder": {"options": {"width": 8}}}
    assert load_recipe(base, ["encoder.options={}"]).encoder.options == {}
    assert load_recipe(base, ["encoder.options={depth: 2}", "encoder.options.width=4"]).encoder.options == {
        "depth": 2,
        "width": 4,
    }


def test_another_objective_drops_the_options_of_the_first():
    recipe = load_recipe({"objective": {"name": "proxy_anchor", "alpha": 16}}, ["objective.name=contrastive"])
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
        ({"method": {"name": "plane"}}, [], "did you mean 'plain'"),
        ({}, ["training.sampler=balanced", "training.batch_size=10"], "multiple of training.images_per_class"),
        ({}, ["training.optimiser=lion"], "one of adamw, adam, rmsprop, sgd"),
        ({}, ["epochs=5"], r"names a section and a key, such as training\.epochs=5; got 'epochs=5'"),
        ({}, ["epochs= 7"], r"such as training\.epochs= 7; got"),
        ({}, ["name=ccp"], r"such as objective\.name=ccp or method\.name=ccp or protocol\.name=ccp; got"),
        ({}, ["zzz=9"], r"names a section and a key, such as training\.epochs=5; got 'zzz=9'"),
        ({}, ["encoder.epochs=5"], r"unknown key 'encoder\.epochs': did you mean 'training\.epochs'\?$"),
        ({}, ["training.epochs=-1"], "at least 0"),
        ({}, ["protocol.test_share=1.5"], "at least 0 and below 1"),
        ({}, ["protocol.label_noise=1"], r"protocol\.label_noise must be at least 0 and below 1, got 1\.0"),
        ({}, ["protocol.train_share=0"], r"protocol\.train_share must be above 0 and at most 1, got 0\.0"),
        ({}, ["protocol.fold=4"], r"protocol\.fold must be below protocol\.folds \(4\), got 4"),
        ({}, ["protocol.folds=1"], r"protocol\.folds must be at least 2, got 1"),
        ({}, ["protocol.split_seed=-1"], r"protocol\.split_seed must be at least 0, got -1"),
        ({}, ["protocol.name=query_gallery"], "query-gallery"),
        ({"data": 5}, [], "must hold keys and values"),
        ({"objective": {"alpha": 3}}, [], r"section 'objective' needs a name, got"),
        ({}, ["training.epochs=2", "training.epochs.x=1"], r"training\.epochs must be a number, got {'x': 1}"),
    ],
)
def test_mistakes_are_named_before_any_work(mapping, overrides, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe(mapping, overrides)


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("data: [unclosed")
    with pytest.raises(RecipeError, match=r"bad\.yaml is not valid YAML"):
        load_recipe(file)
    file.write_text("- just\n- a list\n")
    with pytest.raises(RecipeError, match="must hold keys and values"):
        load_recipe(file)


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_mean_that_never_forgets_or_turns_negative_is_refused(value):
    with pytest.raises(RecipeError, match=rf"training\.beta2 must be at least 0 and below 1, got {value}"):
        load_recipe({}, [f"training.beta2={value}"])


@pytest.mark.parametrize(
    "key",
    ["momentum", "head_lr_multiplier", "proxy_lr_multiplier", "max_grad_norm", "checkpoint_minutes", "learning_rate"],
)
def test_a_negative_value_that_would_train_the_wrong_way_is_refused(key):
    assert getattr(load_recipe({}, [f"training.{key}=0"]).training, key) == 0
    with pytest.raises(RecipeError, match=rf"^training\.{key} must be at least 0, got -0\.5$"):
        load_recipe({}, [f"training.{key}=-0.5"])


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
    recipe = load_recipe(write("top.yaml", "base: middle\ntraining: {epochs: 7}"))
    training = recipe.training
    assert (training.epochs, training.batch_size, training.learning_rate, recipe.encoder.dim) == (7, 9, 1e-3, 16)
    assert "base" not in recipe.as_mapping()


def test_overrides_come_on_top_of_all(write):
    write("ground.yaml", "objective: {name: mpa, gamma: 0.3}")
    file = write("top.yaml", "base: ground.yaml\nobjective: {tau: 0.4}")
    assert load_recipe(file, ["objective.tau=0.5"]).objective.options == {"gamma": 0.3, "tau": 0.5}


def test_a_base_is_looked_for_beside_the_file_then_by_name(write, tmp_path, monkeypatch):
    assert load_recipe(write("mine.yaml", "base: glyphs/demo")) == load_recipe("glyphs/demo")
    assert load_recipe(write("mine.yaml", "base: ccp/c2_ccp")) == load_recipe("ccp/c2_ccp")
    write("deep/glyphs/demo.yaml", "training: {epochs: 77}")
    monkeypatch.chdir(tmp_path / "deep")
    assert load_recipe(tmp_path / "mine.yaml").training.epochs == 100, "not beside the folder one happens to be in"
    assert load_recipe(write("deep/own.yaml", "base: glyphs/demo")).training.epochs == 77
    assert load_recipe(write("deep/up.yaml", "base: ../mine.yaml")) == load_recipe("ccp/c2_ccp")


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
        ("base: glyphs/dmo", r"the base of .*top\.yaml is missing: no recipe 'glyphs/dmo'.*did you mean 'glyphs/demo'"),
        ("base: [a, b]", r"top\.yaml.*'base' must name one recipe, got \['a', 'b'\]"),
        ("base: broken", r"broken\.yaml is not valid YAML"),
        ("base: misspelt", r"top\.yaml: unknown key 'training\.epoch'"),
    ],
)
def test_what_is_wrong_with_a_base_is_said_with_the_file(write, text, said):
    write("broken.yaml", "data: [unclosed")
    write("misspelt.yaml", "training: {epoch: 3}")
    with pytest.raises(RecipeError, match=said):
        load_recipe(write("top.yaml", text))


def test_a_mistake_in_a_change_does_not_name_a_file_and_one_in_the_file_does(write):
    for change in ("training.epoch=3", "objective.alpah=3", "epochs=3"):
        with pytest.raises(RecipeError, match=r"^(unknown key|an override names)"):
            load_recipe(write("mine.yaml", "objective: {name: mpa}"), [change])
    for text in ("training: {epoch: 2}", "objective: {name: proxy_anchor, alpah: 3}"):
        with pytest.raises(RecipeError, match=r"^mine\.yaml: unknown key"):
            load_recipe(write("mine.yaml", text), ["training.seed=3"])


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_loads_survives_a_round_trip_and_opens_with_its_command(name, tmp_path):
    recipe = load_recipe(name)
    saved = tmp_path / "recipe.yaml"
    saved.write_text(recipe.to_yaml())
    assert load_recipe(saved) == recipe
    first, second = find_recipe(name).read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert second.startswith("# nearkin train "), "a recipe opens with the command that runs it"
    given, *changes = second.removeprefix("# nearkin train ").split()
    if given != "--data":
        assert given == name
        assert load_recipe(given, changes)


def test_the_folder_of_the_papers_may_be_left_out_and_is_in_names():
    file = recipes_folder() / "papers" / "ccp" / "c2_ccp.yaml"
    assert shipped_recipes()["ccp/c2_ccp"] == file
    for name in ("ccp/c2_ccp", "ccp/c2_ccp.yaml", "papers/ccp/c2_ccp", file):
        assert find_recipe(name) == file


def test_no_two_recipes_share_a_name():
    files = [file for file in recipes_folder().rglob("*.yaml") if not file.name.startswith("_")]
    assert len(files) == len(shipped_recipes()) > 60


def test_what_is_only_a_base_is_not_listed_but_can_be_one():
    assert not any("/_" in name for name in shipped_recipes())
    assert find_recipe("ccp/_base").is_file()


def test_a_missing_recipe_suggests_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'glyphs/demo'"):
        load_recipe("glyphs/dmo")
    with pytest.raises(RecipeError, match="did you mean 'ccp/c2_ccp'"):
        load_recipe("ccp/c2_cpc")


def test_a_mistyped_path_suggests_the_run_or_file_next_to_it(write, tmp_path, monkeypatch):
    write("photos/recipe.yaml", "")
    write("profs.yaml", "")
    for given, meant in (("phots", "photos"), ("profs.yml", "profs.yaml")):
        with pytest.raises(RecipeError, match=rf"did you mean '{tmp_path / meant}'\?"):
            load_recipe(tmp_path / given)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"did you mean 'photos'\?"):
        load_recipe("phots")
    with pytest.raises(RecipeError, match=r"did you mean 'glyphs/demo'\?"):
        load_recipe("glyphs/dmo")


def test_a_folder_in_the_place_of_a_recipe_is_told_where_images_go(tmp_path):
    with pytest.raises(RecipeError, match=r"is a folder, not a recipe: images are given with --data"):
        find_recipe(tmp_path)


def test_siblings_do_not_repeat_their_base():
    """A line that a recipe shares with its base says nothing."""
    for file in recipes_folder().rglob("*.yaml"):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        base = next((line.removeprefix("base: ") for line in lines if line.startswith("base: ")), None)
        if base is not None:
            shared = set(find_recipe(base, near=file.parent).read_text().splitlines()) - {"training:", "objective:"}
            assert not shared & {line for line in lines if not line.startswith("base: ")}, file
