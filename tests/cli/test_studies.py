"""``nearkin compare``, ``mlrc``, ``reproduce`` and ``tune`` as a person meets them, on images learnt in a second."""

from __future__ import annotations

import csv
import io
import json

import pytest

from nearkin.errors import DataError
from nearkin.runs.trained_run import TrainedRun
from nearkin.studies import study
from nearkin.studies import tune as tune_module
from nearkin.training.recipe_check import load_recipe

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 2, max_steps: 2, batch_size: 8, images_per_class: 2, device: cpu}
protocol: {name: conventional, test_share: 0.35, folds: 2}
"""
REPRODUCED = [
    *("--backbone", "small", "encoder.dim=4", "protocol.test_share=0.35"),
    *("data.image_size=8", "data.workers=1", "data.transform=mild"),
    *("training.epochs=2", "training.max_steps=2", "training.batch_size=8", "training.device=cpu"),
]
SPACE = ("--space", "training.learning_rate=1e-3,1e-1", "--space", "objective.alpha=8,32", "--sampler", "grid")


@pytest.fixture
def command(nearkin, monkeypatch, tmp_path, photos):
    """Run a command on ``photos``, in a folder with a tiny recipe; returns (exit code, output, error stream)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    (tmp_path / "tiny.yaml").write_text(TINY)
    first = {"compare": ["--recipe", "tiny.yaml"], "mlrc": ["tiny.yaml"], "tune": ["tiny.yaml", "protocol.name=mlrc"]}

    def call(name, *arguments, data=photos):
        images = [] if data is None else ["--data", data]
        return nearkin(name, *first.get(name, []), *images, *arguments)

    return call


@pytest.fixture
def forbid_training(monkeypatch):
    def forbid():
        for place, name in ((study, "run"), (tune_module, "run"), (TrainedRun, "embed")):
            monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("nothing should be trained or embedded"))

    return forbid


def test_compare_trains_every_row_and_keeps_finished_runs(command, tmp_path, monkeypatch):
    code, out, err = command("compare", "--seeds", 1, "-o", "study")
    assert code == 0, err
    assert err.startswith("Plan: 21 rows × 1 seed = 21 runs, 0 of them finished already, into study\n")
    assert err.count("48 images of 6 classes") == 1, "printed once for all runs"
    assert "epoch " not in err, "quiet otherwise when piped"
    table = json.loads((tmp_path / "study" / "comparison.json").read_text())
    assert all(row["seeds"] == [0] and row["problems"] == [] for row in table["rows"])
    assert (tmp_path / "study" / "comparison.png").stat().st_size > 10_000
    assert "Next: nearkin plot study/proxy_anchor/seed-0" in out
    code, out, err = command("compare", "--rows", "contrastive,profs", "-o", "study", "--seeds", 2, "--json", "-v")
    assert code == 0, err
    assert "2 of 4 runs are finished already" in err
    rows = {row["name"]: row["seeds"] for row in json.loads(out)["rows"]}
    assert rows == {"contrastive": [0, 1], "profs": [0, 1]}
    for format_, opening in (("md", "# Comparison on own photos"), ("csv", "row,title,"), ("latex", "")):
        _, out, _ = command("compare", "--rows", "vcpa", "-o", "study", "--seeds", 1, "--format", format_)
        assert out.startswith(opening)
        assert "VCPA" in out
    code, _, err = command("compare", "--rows", "vcpa", "-o", "study", "--seeds", 1, "objective.tau=0.5")
    assert code == 2
    assert "objective.tau was 0.001, is 0.5" in err

    def fail(*_, **__):
        raise DataError("the disk with kiwi.png is gone")

    monkeypatch.setattr(study, "run", fail)
    options = ("--rows", "vcpa", "-o", "study", "--seeds", 1, "objective.tau=0.5", "--overwrite")
    code, out, err = command("compare", *options)
    assert code == 3
    assert "1 of 1 runs did not finish" in err
    assert "kiwi.png" in " ".join(out.split())


def test_compare_lists_and_refuses_without_running(command, tmp_path):
    _, out, _ = command("compare", "--list", "--json", "--rows", "vcpa", "--epochs", 7, "--rows-from", "photos")
    (row,) = json.loads(out)
    assert (row["recipe"]["training"]["epochs"], row["recipe"]["objective"]["tau"]) == (7, 0.01)
    assert "alpha-16" in command("compare", "--list", "--vary", "objective.alpha=16,32")[1]
    assert "max_steps-1" in command("compare", "--list", "--ablate", "training.max_steps=1")[1]
    _, out, _ = command("compare", "--list", "--json", "--rows", "proxy_anchor,angular,proxy_anchor+plain")
    assert [(row["name"], row["base"]) for row in json.loads(out)] == [
        ("proxy_anchor", None),
        ("angular", None),
        ("proxy_anchor+plain", "proxy_anchor"),
    ]
    for arguments, code, named in (
        (["--rows", "proxy_ancor"], 2, "did you mean 'proxy_anchor'"),
        (["--rows", "proxy_anchor+ccpp"], 2, "'proxy_anchor+ccpp'"),
        (["glyphs/demo"], 2, "--recipe"),
        (["--rows-from", "nothing"], 2, "'nothing'"),
        (["training.epocs=3"], 2, "did you mean 'epochs'"),
        (["--rows", "vcpa", "encoder.weights=nowhere.pth"], 3, "'nowhere.pth'"),
        (["--vary", "objective.alpha=1,2", "--ablate", "objective.alpha=1"], 2, "one of these"),
    ):
        got, _, err = command("compare", *arguments)
        assert got == code, err
        assert named in " ".join(err.split())
    assert not (tmp_path / "runs").exists()


def test_mlrc_trains_two_models_in_parallel_and_nothing_the_second_time(command, tmp_path, forbid_training):
    code, out, err = command("mlrc", "--jobs", 2, "-o", "check")
    assert code == 0, err
    assert err.startswith("Plan: 2 folds × 1 repeat = 2 models, 0 of them finished already, into check\n")
    assert "MLRC on own photos: proxy_anchor" in out
    for name in ("mlrc.md", "mlrc.json", "fold-0/seed-0/scores.json", "fold-1/seed-1/scores.json"):
        assert (tmp_path / "check" / name).is_file()
    forbid_training()
    code, out, err = command("mlrc", "-o", "check", "--json", "-v")
    assert code == 0, err
    printed = json.loads(out)
    assert printed.pop("folder") == "check"
    assert printed == json.loads((tmp_path / "check" / "mlrc.json").read_text())
    out = command("mlrc", "-o", "check", "--format", "csv")[1]
    assert [row["what"] for row in csv.DictReader(io.StringIO(out))] == ["separate"] * 3 + ["concatenated"] * 3
    assert command("mlrc", "protocol.fold=7")[0] == 2


def test_mlrc_says_what_the_data_lack(command):
    code, _, err = command("mlrc", "protocol.folds=3")
    assert code == 3
    assert "3 folds of at least 2 need 6" in " ".join(err.split())


def test_reproduce_lists_tables_and_rows(command, tmp_path):
    code, out, _ = command("reproduce", "--json", data=None)
    assert code == 0
    listed = {entry["table"]: entry for entry in json.loads(out)}
    assert len(listed) == 69
    assert listed["ccp/table-6"]["missing_data"] == ["cub", "cars"]
    assert listed["ccp/figure-8"]["same_as"] == "ccp/table-5"
    out = command("reproduce", "profs", data=None)[1]
    assert "profs/figure-1" in out
    assert "ccp/" not in out
    out = command("reproduce", "mpa/table-5", "--list", data=None)[1]
    assert "mpa_ap on cars: MPA-AP; published: R@1 87.1, R@2 92.4" in out
    assert "nearkin train mpa/mpa_ap data.source=cars training.batch_size=64\n" in out
    assert "Cars196 is not here" in out
    _, out, _ = command("reproduce", "ccp/table-6", "--rows", "c2", "--list", "--json", data="cub")
    (row,) = json.loads(out)
    assert (row["command"], row["published"]["512-d mlrc-ensemble MAP@R"]) == ("nearkin mlrc ccp/c2", 26.47)
    assert command("reproduce", "ccp/figure-1", data=None)[:2] == (0, "ccp/figure-1: an illustration\n")
    assert [path.name for path in tmp_path.iterdir() if path.name == "runs"] == []


def test_reproduce_runs_the_rows_that_are_named(command, tmp_path, photos):
    code, out, err = command("reproduce", "mpa/table-7", "-o", "none", "--format", "md", data=None)
    assert code == 3
    assert "| MPA, K=8 | skipped |" in out
    assert "|  | published | 69.1 |" in out
    assert "CUB-200-2011 is not here" in out
    options = ["mpa/table-7", "-o", "out", *REPRODUCED]
    code, out, err = command("reproduce", *options, "--rows", "mpa-proxies_per_class-1")
    assert code == 0, err
    assert "Plan: 1 run for mpa/table-7, 0 of them finished already, into out" in err
    assert "MPA, K=1" in out
    assert "K=4" not in out
    for condition in ("Another backbone than the paper's: small", "Other data than the paper's"):
        assert condition in " ".join(out.split())
    both = "mpa-proxies_per_class-1,mpa-proxies_per_class-4"
    code, out, err = command("reproduce", *options, "--rows", both, "--format", "csv")
    assert code == 0, err
    assert "Plan: 2 runs for mpa/table-7, 1 of them finished already" in err
    rows = [each["row"] for each in csv.DictReader(io.StringIO(out)) if each["mean"]]
    assert rows == ["mpa-proxies_per_class-1"] * 2 + ["mpa-proxies_per_class-4"] * 2
    for ending in (".md", ".csv", ".json", ".png"):
        assert (tmp_path / "out" / f"table-7{ending}").stat().st_size > 100
    (photos / "kiwi" / "broken.png").write_text("not an image")
    code, out, err = command("reproduce", *options, "--rows", "mpa-proxies_per_class-8")
    assert code == 3
    assert "broken.png" in " ".join(out.split())
    for arguments, expected, named in (
        (["ccp/tabel-6"], 2, "did you mean 'ccp/table-6'"),
        (["mpa/table-4", "mpa/table-5"], 2, "mpa/table-5"),
        (["mpa/table-4", "--weights", "nowhere.pth"], 3, "'nowhere.pth'"),
    ):
        code, _, err = command("reproduce", *arguments, data=None)
        assert (code, named in " ".join(err.split())) == (expected, True), err


def test_tune_ends_with_a_recipe_and_resumes(command, tmp_path, forbid_training):
    code, out, err = command("tune", *SPACE, "--trials", 2, "--epochs", 1, "-o", "search")
    assert code == 0, err
    assert err.startswith("Plan: 2 trials × 1 seed, 0 of them ended already, into search\n")
    assert "Search on own photos: proxy_anchor" in out
    assert "nearkin train search/best.yaml training.seed=$seed" in out
    rows = list(csv.DictReader((tmp_path / "search" / "trials.csv").read_text().splitlines()))
    assert [float(row["objective.alpha"]) for row in rows] == [8, 32]
    best = max(rows, key=lambda row: float(row["MAP@R"]))
    recipe = load_recipe("search/best.yaml")
    assert (recipe.objective.options["alpha"], recipe.training.epochs) == (float(best["objective.alpha"]), 1)
    forbid_training()
    code, out, err = command("tune", *SPACE, "--trials", 2, "--epochs", 1, "-o", "search", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert (printed["folder"], printed["select_by"], printed["best"]) == ("search", "MAP@R", int(best["trial"]))
    for arguments, named in (
        (("protocol.name=conventional", *SPACE), "protocol.name=conventional"),
        (("--space", "training.learning_rat=1..2"), "did you mean 'learning_rate'"),
        (("training.learning_rate=1e-4..1e-2", *SPACE), "--space"),
        (("--space", "training.learning_rate=1e-4..1e-2", "--sampler", "grid"), "training.learning_rate"),
    ):
        code, out, err = command("tune", *arguments)
        assert (code, out) == (2, "")
        assert named in err
    assert not (tmp_path / "runs").exists()
