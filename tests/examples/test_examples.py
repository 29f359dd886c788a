"""Every example runs, is listed, and says what it shows, how it is run and how long that takes."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nearkin
from nearkin.runs.folder import RunFolder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
FEW = ("training.max_steps=2", "training.batch_size=16", "data.image_size=32")


@pytest.mark.parametrize("name", ["in_lightning", "in_hf_trainer"])
def test_a_loss_learns_in_the_loop_of_others(name, example, few_glyphs, capsys):
    module = example(name)
    length = {"in_lightning": ("--epochs", 1, 6), "in_hf_trainer": ("--steps", 3, 20)}[name]
    untrained, trained = (module.main([length[0], str(each), "--images", "416"]) for each in length[1:])
    assert set(trained) == {"R@1", "MAP@R"}
    assert trained["MAP@R"] > untrained["MAP@R"]
    assert f"R@1 {trained['R@1']:.1%}" in capsys.readouterr().out


def test_own_photos_are_trained_on_twice_and_embedded(example, photos, tmp_path, capsys):
    scores = example("own_photos").main(
        ["--photos", str(photos), "--output", str(tmp_path / "out"), "--epochs", "1", *FEW]
    )
    first, final = RunFolder(tmp_path / "out" / "run"), RunFolder(tmp_path / "out" / "final")
    assert first.scores().test == scores
    assert final.scores().final_of is not None
    assert final.card_file.exists()
    out = capsys.readouterr().out
    assert f"{scores['R@1']:.1%} trained" in out
    assert "(5, 256)" in out


def test_photos_are_found_by_index_server_and_client(example, trained, photos, tmp_path, capsys):
    arguments = ["--run", str(trained), "--photos", str(photos), "--output", str(tmp_path)]
    labels = example("search_and_serve").main(arguments)
    assert labels[0] in ("Grüner Specht", "a new class")
    out = capsys.readouterr().out
    assert "Of another class than Grüner Specht:" in out
    assert "Added as item 48; 49 items are served" in out
    assert len(nearkin.Index.open(tmp_path / "photos.index")) == 49


def test_a_row_of_a_table(example, photos, tmp_path, capsys):
    settings = ["--data", str(photos), "--backbone", "small", "--weights", "none", "--output", str(tmp_path / "row")]
    record = example("one_table_row").main([*settings, *FEW])
    (row,) = record["rows"]
    assert row["status"] == "finished"
    (folder,) = row["folders"]
    recall = RunFolder(folder).scores().test["R@1"]
    assert f"{100 * recall:.1f}" in capsys.readouterr().out


@pytest.mark.slow  # tests/training/test_distributed.py has the same in the fast suite
def test_two_processes_have_the_losses_of_one(example, photos, tmp_path, capfd):
    changes = ["--recipe", "own_photos/small", f"data.source={json.dumps(str(photos))}", *FEW, "training.device=cpu"]
    alone = example("two_processes").main(["--output", str(tmp_path / "one"), *changes])
    script = [str(EXAMPLES / "two_processes.py"), "--output", str(tmp_path / "two"), *changes]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, *script], check=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    out = capfd.readouterr().out
    assert out.count("1 processes, 2 steps") == out.count("2 processes, 2 steps") == 1
    first = [float(loss) for loss in re.findall(r"^step +1  loss (\S+) ", out, flags=re.M)]
    assert first == pytest.approx([alone[0]] * 2, rel=1e-4)
    one, two = (RunFolder(tmp_path / each).evaluations()[-1]["loss"] for each in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-4)


def test_photos_are_drawn_once_and_alike(example, tmp_path, capsys):
    module = example("drawn_photos")
    for folder in ("a", "b"):
        module.main([str(tmp_path / folder)])
    assert capsys.readouterr().out.startswith("300 photos of 25 kinds")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").glob("*/*.jpg"))
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    (tmp_path / "a" / files[0]).unlink()
    module.draw_photos(tmp_path / "a")
    assert not (tmp_path / "a" / files[0]).exists()


def test_the_list_of_examples_is_complete():
    listed = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| .+ \|$", (EXAMPLES / "README.md").read_text(), flags=re.M)
    assert all(name == target for name, target in listed)
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert sorted(name for name, _ in listed) == sorted(there)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_says_what_it_shows_the_command_and_how_long_it_takes(name):
    header = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    assert re.search(rf"^ +(python|torchrun --nproc-per-node=2) examples/{name}\.py", header, flags=re.M)
    assert re.search(r"second|minute", header)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_runs_as_its_header_says(name, tmp_path):
    """The first command of the header, from a folder of its own, at its defaults."""
    header = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    program, *words = re.search(r"^ +(?:python|torchrun) .*$", header, flags=re.M).group().split("#")[0].split()
    start = [sys.executable] + (["-m", "torch.distributed.run"] if program == "torchrun" else [])
    words = [str(EXAMPLES.parent / word) if word.startswith("examples/") else word for word in words]
    done = subprocess.run([*start, *words], cwd=tmp_path, timeout=850, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
