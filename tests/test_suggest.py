from __future__ import annotations

from nearkin.suggest import did_you_mean


def test_the_nearest_name_and_all_that_are_valid_in_order():
    assert did_you_mean("proxy_ancor", iter(["vcpa", "proxy_anchor"])) == (
        "did you mean 'proxy_anchor'? Valid: proxy_anchor, vcpa"
    )


def test_what_is_like_none_gets_no_suggestion():
    assert did_you_mean("zzzzzz", ["vcpa", "mpa"]) == "valid: mpa, vcpa"
    assert did_you_mean("", ["vcpa"]) == "valid: vcpa"


def test_a_near_name_is_not_buried_under_a_long_list():
    many = [f"recipe_{number}" for number in range(60)]
    assert did_you_mean("recipe7", many) == "did you mean 'recipe_7'?"
    assert did_you_mean("zzz", many).startswith("valid: recipe_0, ")
