"""``nearkin compare`` as a person meets it, on images that take a second to learn."""

from __future__ import annotations

import csv
import functools
import io
import json

import pytest

from nearkin import cli
from nearkin.errors import DataError

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 2, max_steps: 2, batch_size: 8, images_per_class: 2, device: cpu}
protocol: {name: conventional, test_share: 0.35}
"""


@pytest.fixture
def compare(nearkin, monkeypatch, tmp_path, photos):
    """Run the command; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return functools.partial(nearkin, "compare", "--recipe", "tiny.yaml", "--data", photos)


def test_every_row_takes_its_first_steps(compare, tmp_path):
    code, out, err = compare("--seeds", 1, "-o", "study")
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines()[:3]] == [
        "Plan",
        "Rows of glyphs.compare.yml on the recipe tiny.yaml",
        "Time",
    ]
    assert err.count("48 images of 6 classes") == 1, "said once for all runs"
    assert "epoch " not in err, "quiet otherwise when piped"
    assert out.count("C2-CCP") == 2
    assert "last epoch" in out, "too few classes to hold any out"
    assert "±" not in out
    assert out.count("One seed, so no spread.") == 1
    table = json.loads((tmp_path / "study" / "comparison.json").read_text())
    assert len(table["rows"]) == 21
    assert all(row["seeds"] == [0] and row["problems"] == [] for row in table["rows"])
    assert (tmp_path / "study" / "comparison.png").stat().st_size > 10_000
    assert (tmp_path / "study" / "vcpa" / "seed-0" / "scores.json").exists()
    assert ("nearkin plot" in out) == ("plot" in {command.name for command in _commands()})


def _commands():
    from typer.main import get_command

    return get_command(cli.app).commands.values()


def test_chosen_rows_several_formats_and_a_table_that_grows(compare, tmp_path):
    options = ["--rows", "contrastive,profs", "-o", "study"]
    code, out, err = compare(*options, "--seeds", 2, "--json")
    assert code == 0, err
    first = json.loads(out)
    assert [(row["name"], row["seeds"]) for row in first["rows"]] == [("contrastive", [0, 1]), ("profs", [0, 1])]
    assert first["rows"][1]["against"]["R@1"]["spread"] is not None
    code, out, _ = compare("--rows", "proxy_anchor", "-o", "study", "--seeds", 2, "--format", "csv", "-v")
    assert [row["name"] for row in csv.DictReader(io.StringIO(out))] == ["proxy_anchor", "contrastive", "profs"]
    _, out, err = compare(*options, "--seeds", 2, "--format", "md", "-v")
    assert out.startswith("# Comparison on own photos")
    assert "4 of 4 runs are finished already" in err
    assert (tmp_path / "study" / "comparison.md").read_text() == out


def test_another_recipe_asks_for_overwrite(compare):
    options = ["--rows", "vcpa", "-o", "study", "--seeds", 1]
    assert compare(*options)[0] == 0
    code, _, err = compare(*options, "objective.tau=0.5")
    assert code == 2
    assert "objective.tau was 0.001, is 0.5" in err
    assert "--overwrite" in err
    assert compare(*options, "objective.tau=0.5", "--overwrite")[0] == 0


def test_a_row_that_fails_is_said_and_the_exit_code_too(compare, monkeypatch):
    def fail(*_, **__):
        raise DataError("the disk with kiwi.png is gone")

    monkeypatch.setattr("nearkin.studies.study.run", fail)
    code, out, err = compare("--rows", "proxy_anchor", "--seeds", 1, "-o", "study")
    assert code == 3
    assert "1 of 1 runs did not finish" in err
    assert "kiwi.png" in " ".join(out.split())
    assert "Traceback" not in err


def test_weights_that_are_not_there_are_said_before_anything_is_run(compare, tmp_path):
    code, _, err = compare("--rows", "proxy_anchor", "--seeds", 1, "-o", "study", "encoder.weights=nowhere.pth")
    assert code == 3
    assert "row 'proxy_anchor': encoder.weights names 'nowhere.pth', which is not a file" in err
    assert not (tmp_path / "study").exists()


def test_the_list_runs_nothing(compare, tmp_path):
    code, out, _ = compare("--list")
    assert code == 0
    assert "hard_negative_classes=True" in " ".join(out.split())
    assert "The same for all: small, 4 dimensions, 2 epochs, at most 2 steps, batch 8" in out
    _, out, _ = compare("--list", "--json", "--rows", "vcpa", "--epochs", 7, "--rows-from", "photos")
    (row,) = json.loads(out)
    assert (row["recipe"]["training"]["epochs"], row["recipe"]["objective"]["tau"]) == (7, 0.01)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--rows", "proxy_ancor"], 2, "did you mean 'proxy_anchor'"),
        (["glyphs/demo"], 2, "--recipe"),
        (["--rows-from", "nothing"], 2, "no rows 'nothing'"),
        (["training.epocs=3"], 2, "did you mean 'epochs'"),
        (["--rows", "vcpa", "objective.nonsense=3"], 2, "row 'vcpa'"),
    ],
)
def test_mistakes_get_one_clear_line(compare, tmp_path, arguments, code, said):
    got, _, err = compare(*arguments)
    assert got == code, err
    assert said in " ".join(err.split())
    assert not (tmp_path / "runs").exists()


def test_the_rows_bring_the_recipe_they_are_meant_for(nearkin, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearkin("compare", "--data", photos, "--rows-from", "cub", "--list", "--json", "--rows", "vcpa")
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["recipe"]["encoder"]["backbone"] == "resnet50_v1"
    assert row["recipe"]["data"]["source"] == str(photos)
    assert "resnet50_v1" in nearkin("compare", "--rows-from", "cub-ccp", "--list")[1], "with the data of that recipe"
    (tmp_path / "mine.yaml").write_text(TINY)
    (tmp_path / "mine.rows.yml").write_text("recipe: mine.yaml\nrows: {a: {objective: {name: proxy_anchor}}}")
    options = ["--data", photos, "--rows-from", "mine.rows.yml", "--seeds", 1, "-o", "study"]
    code, _, err = nearkin("compare", *options)
    assert code == 0, err
    assert "Rows of mine.rows.yml on the recipe mine.yaml: small, 4 dimensions, 2 epochs" in err
    other = nearkin("compare", *options[:4], "--recipe", "glyphs/demo", "--list")[1]
    assert "128 dimensions" in other, "--recipe is stronger"


def test_a_row_with_another_budget_says_so_and_epochs_win(compare, tmp_path):
    (tmp_path / "mine.compare.yml").write_text(
        "rows:\n"
        "  a: {title: Short, objective: {name: proxy_anchor}}\n"
        "  b: {title: Long, base: a, budget: {epochs: 3, max_steps: null}}\n"
    )
    options = ["--rows-from", "mine.compare.yml", "--seeds", 1]
    code, out, err = compare(*options, "-o", "study", "--format", "md")
    assert code == 0, err
    assert "| · Long | 1 |" in out
    assert "| 3 epochs, batch 8, adamw |" in out
    mixed = "Mixed budgets: 2 epochs, at most 2 steps, batch 8, adamw (Short); 3 epochs, batch 8, adamw (Long)."
    assert f"- {mixed}" in out.splitlines()
    _, out, _ = compare(*options, "--list", "--json", "--epochs", 1)
    assert [row["recipe"]["training"]["epochs"] for row in json.loads(out)] == [1, 1]
    (tmp_path / "mine.compare.yml").write_text("rows: {a: {objective: {name: proxy_anchor}, budget: {epoch: 3}}}")
    code, _, err = compare(*options)
    assert code == 2
    assert "mine.compare.yml, row 'a': unknown key 'budget.epoch': did you mean 'epochs'" in " ".join(err.split())
