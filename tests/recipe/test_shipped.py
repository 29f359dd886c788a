import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe, find_recipe, recipes_folder, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_loads_survives_a_round_trip_and_opens_with_its_command(name, tmp_path):
    recipe = Recipe.load(name)
    saved = tmp_path / "recipe.yaml"
    saved.write_text(recipe.to_yaml())
    assert Recipe.load(saved) == recipe
    first, second = find_recipe(name).read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert second.startswith("# nearkin train "), "a recipe opens with the command that runs it"
    given, *changes = second.removeprefix("# nearkin train ").split()
    if given != "--data":
        assert given == name
        assert Recipe.load(given, changes)


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
        Recipe.load("glyphs/dmo")
    with pytest.raises(RecipeError, match="did you mean 'ccp/c2_ccp'"):
        Recipe.load("ccp/c2_cpc")


def test_a_folder_in_the_place_of_a_recipe_is_told_where_images_go(tmp_path):
    with pytest.raises(RecipeError, match=r"is a folder and no recipe: images are given with --data"):
        find_recipe(tmp_path)


def test_siblings_do_not_repeat_their_base():
    """A line that a recipe shares with its base says nothing."""
    for file in recipes_folder().rglob("*.yaml"):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        base = next((line.removeprefix("base: ") for line in lines if line.startswith("base: ")), None)
        if base is not None:
            shared = set(find_recipe(base, beside=file.parent).read_text().splitlines()) - {"training:", "objective:"}
            assert not shared & {line for line in lines if not line.startswith("base: ")}, file
