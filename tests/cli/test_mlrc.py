"""``nearkin mlrc`` as a person meets it: two folds, trained in processes of their own."""

from __future__ import annotations

import csv
import functools
import io
import json

import pytest

from nearkin.runs.trained_run import TrainedRun
from nearkin.studies import study

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 1, max_steps: 2, batch_size: 8, device: cpu}
protocol: {name: conventional, test_share: 0.35, folds: 2}
"""


@pytest.fixture
def command(nearkin, monkeypatch, tmp_path, photos):
    """Run the command; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tiny.yaml").write_text(TINY)

    return functools.partial(nearkin, "mlrc", "tiny.yaml", "--data", photos)


def test_two_models_side_by_side_and_nothing_the_second_time(command, tmp_path, monkeypatch):
    code, out, err = command("--jobs", 2, "-o", "check")
    assert code == 0, err
    assert "Plan: 2 folds × 1 repeat = 2 models, 0 of them trained already, into check\nTime: " in err
    assert err.count("48 images of 6 classes") == 1, "said once for all runs"
    assert "epoch " not in err, "quiet otherwise when piped"
    assert "MLRC on own photos: proxy_anchor, classes never seen in training" in out
    assert "2 folds, 1 repeat, seeds 0–1" in out
    for name in ("mlrc.md", "mlrc.json", "fold-0/seed-0/scores.json", "fold-1/seed-1/scores.json"):
        assert (tmp_path / "check" / name).is_file()

    def refuse(*_, **__):
        raise AssertionError("nothing should be trained or embedded")

    monkeypatch.setattr(study, "run", refuse)
    monkeypatch.setattr(TrainedRun, "embed", refuse)
    code, out, err = command("-o", "check", "--json", "-v")
    assert code == 0, err
    assert "2 of 2 runs are finished already" in err
    printed = json.loads(out)
    assert printed.pop("folder") == "check"
    assert printed == json.loads((tmp_path / "check" / "mlrc.json").read_text())


def test_the_result_in_other_formats(command, tmp_path):
    code, out, err = command("-o", "check", "--repeats", 2, "--format", "csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["what"] for row in rows] == ["separate"] * 3 + ["concatenated"] * 3
    assert all(len(row["interval"].split("; ")) == 2 for row in rows)
    out = command("-o", "check", "--repeats", 2, "--format", "md")[1]
    assert out.startswith("# MLRC on own photos: proxy_anchor, classes never seen in training\n")
    assert "## Models" not in out
    assert "## Models" in (tmp_path / "check" / "mlrc.md").read_text()


def test_mistakes_have_their_exit_codes(command):
    code, _, err = command("protocol.folds=3")
    assert code == 3
    assert "4 classes that are not tested; 3 folds of at least 2 need 6" in " ".join(err.split())
    assert command("protocol.fold=7")[0] == 2
    assert command("--repeats", 0)[0] == 2
