"""What a run leaves in its folder is known, and nothing else is ever removed."""

from __future__ import annotations

import pytest

from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_clearing_a_run_takes_all_of_it_and_nothing_else(nearkin, trained, photos, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    folder = RunFolder(trained)
    assert folder.images == (str(photos), folder.split.images_hash)
    again = ["train", folder.recipe_file, "-o", trained, "--overwrite", "training.track=[tensorboard, wandb]"]
    assert nearkin(*again)[0] == 0
    wandb.teardown()
    assert nearkin("plot", trained, "--only", "curves")[0] == 0
    assert {"split.csv", "neighbours.png", "plots/curves.png"} <= files(trained)
    for kept in ("tensorboard/", "wandb/", "wandb-id.txt"):
        assert any(name.startswith(kept) for name in files(trained))
    mine = {"plots/mine.png", "plots/curves-old.png", "checkpoints/kept.pt", "my split.csv", "x/scores.json"}
    for name in mine:
        (trained / name).parent.mkdir(exist_ok=True)
        (trained / name).write_text("mine")
    run(folder.recipe(), folder, overwrite=True)
    assert not {"neighbours.png", "plots/curves.png"} & files(trained), "figures of the run before"
    folder.clear()
    assert files(trained) == mine | {".lock"}
    assert not list((trained / "wandb").iterdir())
