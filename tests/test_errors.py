from __future__ import annotations

import pytest

from nearkin import errors
from nearkin.errors import DataError, MissingExtraError, NearkinError, RecipeError, mistakes_in, require


def test_scripts_can_tell_mistakes_apart_by_the_exit_code():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NearkinError)]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    assert codes == {
        "NearkinError": 1,
        "RecipeError": 2,
        "DataError": 3,
        "OutputError": 3,
        "MissingExtraError": 4,
        "TrainingError": 5,
        "BusyError": 6,
        "LostRankError": 7,
        "LackOfMemoryError": 8,
        "InterruptedRunError": 130,
    }


def test_a_mistake_in_a_recipe_says_where_and_others_pass_as_they_are():
    with (
        pytest.raises(RecipeError, match=r"^rows\.yml: row 'a': no such key$"),
        mistakes_in("rows.yml"),
        mistakes_in("row 'a'"),
    ):
        raise RecipeError("no such key")
    with pytest.raises(DataError, match=r"^no such file$"), mistakes_in("rows.yml"):
        raise DataError("no such file")


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_a_package_that_cannot_be_imported_is_named_with_its_extra(error, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(f"raise {error.__name__}('wrong version\\nof torch')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"'broken_package': pip install 'nearkin\[hf\]' \(wrong version\)$"):
        require("broken_package", "hf")


def test_a_mistake_inside_a_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "mistaken_package.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        require("mistaken_package", "hf")
    assert require("json", "hf").loads("1") == 1
