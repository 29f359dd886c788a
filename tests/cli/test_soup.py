"""The command as a person meets it, and the other commands with what it wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch

from nearkin.runs.folder import RunFolder
from nearkin.runs.soup import soup

FROZEN = "encoder.freeze_batch_norm=true"


def flat(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def parts(squares):
    _, train = squares
    return [train("soup anchor", FROZEN), train("soup vcpa", FROZEN, "objective.name=vcpa", "objective.tau=1.0")]


@pytest.fixture(scope="module")
def made(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("soups") / "soup"
    soup(parts, folder, device="cpu")
    return folder


def test_it_prints_its_runs_and_itself_and_what_became_of_batch_norm(nearkin, parts, tmp_path):
    code, out, err = nearkin("soup", *parts, "-o", tmp_path / "soup", "--verbose")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    record = RunFolder(tmp_path / "soup").soup()
    shown = [f"{100 * record.test[name]:.1f}" for name in ("R@1", "MAP@R")]
    assert ["soup", *shown] in rows
    assert "batch-norm: frozen, so its statistics stay" in flat(out)
    assert f"Run folder: {tmp_path / 'soup'}" in out
    assert "scoring the soup: 20 images" in err
    assert f"scoring {parts[1]}: 20 images" in err


def test_json_is_json_alone(nearkin, parts, tmp_path):
    code, out, err = nearkin("soup", *parts, "-o", tmp_path / "soup", "--json", "--checkpoint", "last")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"] == str(tmp_path / "soup")
    assert found["checkpoint"] == "last"
    assert [part["run"] for part in found["parts"]] == [str(path) for path in parts]
    assert found["test"] == json.loads((tmp_path / "soup" / "scores.json").read_text())["test"]


def test_the_scores_are_those_that_evaluate_prints(nearkin, made):
    code, out, err = nearkin("evaluate", made, "--json")
    assert code == 0, err
    assert json.loads(out)["scores"] == pytest.approx(json.loads((made / "scores.json").read_text())["test"])
    code, out, _ = nearkin("evaluate", made)
    assert "mean of the weights of several runs" in flat(out)


def test_a_soup_below_its_runs_says_so(nearkin, squares, tmp_path):
    """Heads of opposite sign cancel each other."""
    _, train = squares
    paths = []
    for sign in (1, -1):
        path = tmp_path / f"head {sign}"
        shutil.copytree(train("anchor-1", "training.seed=1") if sign < 0 else train("anchor-0"), path)
        paths.append(path)
    donor, mirrored = (path / "encoder.safetensors" for path in paths)
    with safetensors.safe_open(mirrored, framework="pt") as opened:
        about = opened.metadata()
    weights = safetensors.torch.load_file(donor)
    for name in ("head.weight", "head.bias"):
        weights[name] = -weights[name]
    safetensors.torch.save_file(weights, mirrored, about)
    code, out, err = nearkin("soup", *paths, "-o", tmp_path / "soup")
    assert code == 0, err
    assert "began from other random numbers than" in flat(err)
    assert "The soup is below the worst of its runs: R@1" in flat(out)
    assert "They did not begin from the same weights" in flat(out)


def test_without_test_classes_there_is_no_score(nearkin, parts, tmp_path):
    finals = []
    for number, path in enumerate(parts):
        code, _, err = nearkin("train", "--final", path, "-o", tmp_path / f"final {number}")
        assert code == 0, err
        finals.append(tmp_path / f"final {number}")
    code, out, err = nearkin("soup", *finals, "-o", tmp_path / "soup")
    assert code == 0, err
    assert "there is no score" in out
    assert "frozen" in out


@pytest.mark.parametrize(
    "more, code, said",
    [
        (["{a}", "{a}x", "-o", "{new}"], 3, "no run at"),
        (["{a}", "-o", "{new}"], 2, "two runs or more"),
        (["{a}", "{a}/", "-o", "{new}"], 2, "the same run twice"),
        (["{a}", "{b}", "-o", "{a}"], 2, "holds a run already"),
        (["{a}", "{soup}", "-o", "{new}"], 2, "is a soup already"),
        (["{a}", "{b}", "-o", "{new}", "--checkpoint", "lst"], 2, "must be 'best' or 'last'"),
        (["{a}", "{b}", "-o", "{new}", "--device", "abacus"], 2, "abacus"),
        (["{a}", "{b}"], 2, "--output"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(nearkin, parts, made, tmp_path, more, code, said):
    places = {"a": parts[0], "b": parts[1], "soup": made, "new": tmp_path / "new"}
    found, out, err = nearkin("soup", *(word.format(**places) for word in more))
    assert (found, out) == (code, "")
    assert said in flat(err)
    assert "Traceback" not in err
    assert not (tmp_path / "new").exists()


def test_two_backbones_name_the_key(nearkin, parts, squares, tmp_path):
    _, train = squares
    other = train("soup wide", FROZEN, "encoder.options.width=8", "training.max_steps=1")
    code, _, err = nearkin("soup", parts[0], other, "-o", tmp_path / "soup")
    assert code == 2
    assert "encoder.options.width is None in the one and 8 in the other" in flat(err)


def test_it_embeds_and_is_indexed_and_searched(nearkin, made, photos, tmp_path):
    query = next(photos.glob("*/*.png"))
    for words in (
        ["embed", made, photos, "-o", tmp_path / "e.npz"],
        ["index", made, photos, "-o", tmp_path / "photos.index"],
        ["search", tmp_path / "photos.index", query],
        ["index", made, "--test-images", "-o", tmp_path / "test.index"],
    ):
        code, out, err = nearkin(*words)
        assert code == 0, err
    assert "20 images added" in out


@pytest.mark.parametrize("kind", ["safetensors", "torch-export"])
def test_it_is_exported_with_a_card_that_names_its_runs(nearkin, made, parts, tmp_path, kind):
    file = tmp_path / f"soup{'.pt2' if kind == 'torch-export' else '.safetensors'}"
    code, _, err = nearkin("export", made, "--format", kind, "-o", file)
    assert code == 0, err
    card = file.with_name(f"{file.name}.md").read_text()
    assert card.startswith("# squares: soup of proxy_anchor, vcpa\n")
    assert f"the mean of the best weights of `{parts[0]}` (proxy_anchor, seed 0), `{parts[1]}` (vcpa, seed 0)" in card
    assert "epochs of a schedule" not in card


def test_tables_call_it_a_soup_and_do_not_take_it_for_its_first_run(nearkin, made, parts):
    code, out, err = nearkin("table", *parts, made, "--metrics", "R@1")
    assert code == 0, err
    assert "left out" not in err
    rows = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")]
    assert "soup of proxy_anchor, vcpa" in rows
    assert {"proxy_anchor", "vcpa"} <= set(rows)
    assert "mean of the weights of 2 runs" in out
    assert "each run at its best R@1 on the test classes" in out


def test_soups_of_the_same_recipes_with_other_seeds_are_one_line_and_others_are_not(nearkin, parts, squares, tmp_path):
    _, train = squares
    again = [
        train("soup anchor 1", FROZEN, "training.seed=1"),
        train("soup vcpa 1", FROZEN, "training.seed=1", "objective.name=vcpa", "objective.tau=1.0"),
    ]
    soup(parts, tmp_path / "zero", device="cpu")
    soup(again, tmp_path / "one", device="cpu")
    code, out, err = nearkin("table", tmp_path / "zero", tmp_path / "one", "--metrics", "R@1")
    assert code == 0, err
    assert "| soup of proxy_anchor, vcpa | 2 |" in out
    soup(parts, tmp_path / "last", device="cpu", which="last")
    shorter = train("soup shorter", FROZEN, "training.max_steps=2")
    soup([shorter, parts[1]], tmp_path / "shorter", device="cpu")
    for other in ("last", "shorter"):
        code, out, err = nearkin("table", tmp_path / "zero", tmp_path / other, "--metrics", "R@1")
        assert code == 0, err
        assert "soup of proxy_anchor, vcpa (zero) | 1 |" in out
        assert f"soup of proxy_anchor, vcpa ({other}) | 1 |" in out


def test_pictures_are_those_that_need_no_training(nearkin, made, parts, tmp_path):
    code, out, err = nearkin("plot", made, parts[0], "-o", tmp_path / "plots", "--json")
    assert code == 0, err
    found = json.loads(out)
    missing = {(each["picture"], each["run"]): each["reason"] for each in found["not_drawn"]}
    assert "its runs have the curves" in missing["curves", str(made)]
    assert "has no proxies" in missing["similarity", str(made)]
    drawn = {Path(file).stem for file in found["written"]}
    assert {f"map-train-{made.name}", f"map-test-{made.name}", f"pairs-{made.name}", "neighbours"} <= drawn
    code, _, err = nearkin("plot", made, "-o", tmp_path / "alone", "--only", "curves,uncertainty")
    assert code == 3
    assert "Traceback" not in err


def test_the_report_says_how_it_was_made(nearkin, made, parts, tmp_path):
    code, _, err = nearkin("report", made, *parts, "-o", tmp_path / "report.html")
    assert code == 0, err
    page = (tmp_path / "report.html").read_text()
    assert "soup of proxy_anchor, vcpa" in page
    assert "nearkin soup " in page
    assert f"nearkin train {made}" not in page
    cost = page[page.index('id="cost"') : page.index('id="reproduce"')]
    assert "soup" not in cost


def test_train_refuses_to_go_on_with_it(nearkin, made):
    before = (made / "scores.json").read_text()
    for words in (["--resume"], []):
        code, _, err = nearkin("train", made / "recipe.yaml", "-o", made, *words)
        assert code == 2
        assert "no training to continue" in flat(err)
    code, _, err = nearkin("train", "--final", made)
    assert code == 2
    assert "make a final model of each of its runs" in flat(err)
    assert (made / "scores.json").read_text() == before
