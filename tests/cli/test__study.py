"""Every command that begins many runs says first what and how long, and asks beyond a quarter of an hour."""

from __future__ import annotations

import json
import sys

import pytest

from nearkin.studies.time_plan import plan_time

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 2, max_steps: 2, batch_size: 8, images_per_class: 2, device: cpu}
protocol: {name: validation, test_share: 0.35, folds: 2}
"""


@pytest.fixture
def commands(tmp_path, photos, monkeypatch):
    """The four commands, each with a study of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    data = ["--data", photos, "-o", "study"]
    return {
        "compare": ["compare", "--recipe", "tiny.yaml", "--rows", "proxy_anchor,vcpa", "--seeds", 1, *data],
        "mlrc": ["mlrc", "tiny.yaml", *data],
        "tune": ["tune", "tiny.yaml", "--space", "training.learning_rate=1e-3,1e-2", "--trials", 2, *data],
        "reproduce": ["reproduce", "mpa/table-7", *data],
    }


@pytest.fixture
def slow(monkeypatch):
    """Every run would take an hour."""
    monkeypatch.setattr(plan_time, "__kwdefaults__", {**plan_time.__kwdefaults__, "measure": lambda recipe: 3600.0})


@pytest.mark.parametrize("name", ["compare", "mlrc", "tune", "reproduce"])
def test_where_nobody_can_be_asked_a_long_study_needs_yes(nearkin, commands, slow, tmp_path, name):
    code, out, err = nearkin(*commands[name])
    assert (code, out) == (2, "")
    first, *_, last = err.splitlines()
    assert first.startswith("Plan: ")
    assert "into study" in first
    assert "0 of them" in first
    assert "Time: about " in err
    assert last.startswith("error: this would take about ")
    assert "--yes" in last
    assert not list(tmp_path.glob("study/**/recipe.yaml")), "nothing was begun"


def test_yes_begins_and_the_plan_counts_what_is_finished(nearkin, commands, slow):
    code, out, err = nearkin(*commands["compare"], "--yes", "--json")
    assert code == 0, err
    assert "Plan: 2 rows × 1 seed = 2 runs, 0 of them finished already, into study" in err
    assert "Time: about 2.0 hours, a rough guess from a few timed steps of proxy_anchor on this machine" in err
    assert json.loads(out)["folder"] == "study"
    code, _, err = nearkin(*commands["compare"])
    assert code == 0, err
    assert "2 runs, 2 of them finished already" in err
    assert "Time: nothing is left to run" in err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_in_a_terminal_a_person_is_asked(nearkin, commands, slow, monkeypatch, tmp_path, answer, code):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("nearkin.cli._study.typer.confirm", lambda text, **options: asked.append(text) or answer == "y")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    got, _, err = nearkin(*commands["compare"])
    assert asked == ["Begin?"]
    assert got == code, err
    assert (tmp_path / "study" / "vcpa" / "seed-0" / "scores.json").exists() == (answer == "y")
