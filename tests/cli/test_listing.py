from __future__ import annotations

import json

import pytest


def test_lists(nearkin):
    _, out, _ = nearkin("losses", "--json")
    by_name = {row["name"]: row for row in json.loads(out)}
    assert by_name["proxy_anchor"]["options"]["alpha"] == "32.0"
    assert by_name["contrastive"]["kind"] == "pair"
    _, out, _ = nearkin("datasets", "--json")
    assert {"glyphs", "cub", "cars", "sop", "inshop", "mnist", "fashion_mnist"} <= {
        row["name"] for row in json.loads(out)
    }
    for listing in ("losses", "datasets", "recipes"):
        code, out, _ = nearkin(listing)
        assert code == 0
        assert out


@pytest.mark.parametrize("name", ["losses", "methods", "backbones", "scores", "recipes", "keys"])
def test_every_list_is_a_table_json_and_a_page(nearkin, name):
    outputs = [nearkin(name, *option) for option in ((), ("--json",), ("--markdown",))]
    assert [code for code, _, _ in outputs] == [0, 0, 0]
    table, records, page = (out for _, out, _ in outputs)
    for record in json.loads(records):
        assert record["name"] in page
    assert page.startswith("# ")
    assert json.loads(records)[0]["name"] in table


def test_data_sets_are_looked_for_below_the_data_root(nearkin, tmp_path):
    assert "NEARKIN_DATA" in nearkin("datasets")[1]
    (tmp_path / "CUB_200_2011").mkdir()
    found = [
        {row["name"]: row for row in json.loads(nearkin("datasets", "--data-root", root, "--json")[1])}["cub"]["here"]
        for root in (tmp_path, tmp_path / "CUB_200_2011" / "nothing")
    ]
    assert found[0] != found[1]
