"""``nearkin report`` and ``nearkin table`` as a person or a script meets them."""

from __future__ import annotations

import csv
import io
import json
import webbrowser

import pytest


def test_a_report_is_written_and_opened(nearkin, four_runs, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(webbrowser, "open", asked.append)
    file = tmp_path / "page.html"
    code, out, err = nearkin("report", four_runs[0], "-o", file, "--open", "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.startswith(f"{file} (")
    assert asked == [file.as_uri()]
    assert "<h1>proxy_anchor on squares</h1>" in file.read_text(encoding="utf-8")


def test_a_program_is_told_what_is_not_shown(nearkin, write_run, tmp_path):
    run = write_run("written", {"R@1": 0.5})
    code, out, _ = nearkin("report", run, "--json")
    said = json.loads(out)
    assert code == 0
    assert said["file"] == str(run / "report.html")
    assert said["bytes"] == (run / "report.html").stat().st_size
    assert any("checkpoint" in line for line in said["not_shown"]), said["not_shown"]


def test_several_runs_go_to_the_working_directory(nearkin, write_run, tmp_path, monkeypatch):
    runs = [write_run(f"r{seed}", {"R@1": 0.5}, seed=seed) for seed in (0, 1)]
    monkeypatch.chdir(tmp_path)
    assert nearkin("report", *runs)[0] == 0
    assert (tmp_path / "report.html").exists()


def test_tables_in_three_formats(nearkin, write_run):
    runs = [write_run(f"r{seed}", {"R@1": 0.5 + seed / 10, "MAP@R": 0.2}, seed=seed) for seed in (0, 1)]
    code, out, _ = nearkin("table", *runs, "--metrics", "R@1")
    assert code == 0
    assert "| proxy_anchor | best evaluation | 2 | 55.0 ± 7.1 |" in out
    assert "MAP@R" not in out.splitlines()[0]
    assert r"\bottomrule" in nearkin("table", *runs, "--format", "latex")[1]
    rows = list(csv.DictReader(io.StringIO(nearkin("table", *runs, "--format", "csv")[1])))
    assert float(rows[0]["R@1"]) == pytest.approx(0.55)


def test_mistakes_are_told_without_a_traceback(nearkin, write_run, tmp_path):
    run = write_run("a", {"R@1": 0.5})
    assert "no score 'R@3'" in nearkin("table", run, "--metrics", "R@3")[2]
    code, _, err = nearkin("table", tmp_path / "nothing")
    assert code == 3
    assert "no run at" in err
    code, _, err = nearkin("report", run, "-o", tmp_path)
    assert code == 2
    assert "is a folder" in err
    code, _, err = nearkin("table", run, write_run("b", {"R@1": 0.6}))
    assert code == 0
    assert "left out" in err
