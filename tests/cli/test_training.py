"""The command line as a person or a script meets it."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import nearkin as nearkin_package
from nearkin.encoders.architectures import build_backbone
from nearkin.evaluation.protocol import Protocol

QUICK = [
    "encoder.backbone=resnetv2_20",
    "encoder.weights=null",
    "encoder.dim=16",
    "data.image_size=32",
    "training.epochs=2",
    "training.device=cpu",
]


@pytest.fixture
def trained(nearkin, photos, tmp_path):
    code, _, errors = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK)
    assert code == 0, errors
    return tmp_path / "run"


def test_own_photos_with_spaces_and_umlauts(nearkin, photos, tmp_path):
    code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK)
    assert code == 0, err
    assert "classes never" in out
    assert "R@1" in out
    assert "nearkin embed" in out
    assert err.startswith("own photos: 48 images of 6 classes, 8 each\n"), "what was understood is said also when piped"
    assert "epoch" not in err, "and the rest is quiet then"
    assert (tmp_path / "run" / "neighbours.png").stat().st_size > 5000
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    crops = "test crops 1.15 times as large as those of training"
    assert scores["selection"] == f"last epoch; {crops}, embeddings averaged with those of mirror images"


def test_json_output_is_json_alone(nearkin, photos, tmp_path):
    command = [
        "train",
        "--data",
        photos,
        "-o",
        tmp_path / "run",
        "--overwrite",
        "--json",
        *QUICK,
        "training.max_steps=1",
        "protocol.holdout_share=0",
    ]
    code, out, err = nearkin(*command)
    assert code == 0
    assert json.loads(out)["run"] == str(tmp_path / "run")
    assert err == ""
    (photos / "kiwi" / "clip.mov").touch()
    code, out, err = nearkin(*command)
    assert json.loads(out)["run"] == str(tmp_path / "run")
    assert "1 .mov" in err, "never quiet about what was left out"


def test_nested_folders_are_asked_about(nearkin, photos, tmp_path):
    nested = tmp_path / "nested"
    for number, kind in enumerate(sorted(path for path in photos.iterdir())):
        (nested / ("left", "right")[number % 2]).mkdir(parents=True, exist_ok=True)
        kind.rename(nested / ("left", "right")[number % 2] / kind.name)
    command = ["train", "--data", nested, "-o", tmp_path / "run", "--no-figure", *QUICK, "training.max_steps=1"]
    code, _, err = nearkin(*command)
    assert code == 3
    assert "left/" in err
    assert "--class-folders deepest" in err
    assert not (tmp_path / "run").exists()
    code, _, err = nearkin(*command, "--class-folders", "deepest")
    assert code == 0, err
    assert "48 images of 6 classes" in err
    code, out, err = nearkin("evaluate", tmp_path / "run", "--data", nested, "--class-folders", "top", "--json")
    assert json.loads(out)["classes"] == 2, err
    code, out, err = nearkin("evaluate", tmp_path / "run", "--data", nested)
    assert code == 0, "the run's own choice holds"
    assert "48 images of 6 classes" in err
    code, _, err = nearkin("train", "--data", nested, "--class-folders", "deeper", *QUICK)
    assert code == 2
    assert "deepest" in err


def test_images_in_no_class_folder_are_said_plainly_and_once(nearkin, photos, tmp_path):
    shutil.copy(photos / "kiwi" / "Bild 0 ä.png", photos / "cover.png")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, "training.max_steps=1")
    assert code == 0, err
    assert err.count("cover.png") == 1
    assert not [each for each in warned if "cover.png" in str(each.message)]


def test_verbose_shows_every_evaluation(nearkin, photos, tmp_path):
    _, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", "-v", *QUICK)
    assert [line.split()[1] for line in err.splitlines() if line.startswith("epoch")] == ["0", "1", "2"]


def test_evaluate_on_the_runs_own_classes_and_on_others(nearkin, trained, photos):
    code, out, err = nearkin("evaluate", trained, "--json")
    assert code == 0, err
    own = json.loads(out)
    assert own["scores"] == json.loads((trained / "scores.json").read_text())["test"]
    assert own["classes"] == 2
    _, out, _ = nearkin("evaluate", trained, "--data", photos, "--json")
    assert json.loads(out)["classes"] == 6
    only_test = photos.parent / "elsewhere"
    (only_test / "test").mkdir(parents=True)
    for kind in ("kiwi", "rote Ente"):
        (photos / kind).rename(only_test / "test" / kind)
    code, out, err = nearkin("evaluate", trained, "--data", only_test, "--json")
    assert code == 0, err
    assert json.loads(out)["classes"] == 2
    _, out, _ = nearkin("evaluate", trained, "--checkpoint", "last")
    assert "MAP@R" in out


def test_a_run_with_a_model_of_transformers_needs_its_folder_only_for_the_shape(nearkin, photos, tmp_path):
    from transformers import ResNetConfig, ResNetModel

    tiny = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetModel(tiny).save_pretrained(tmp_path / "tiny")
    options = [f"encoder.backbone=hf:{tmp_path / 'tiny'}", *QUICK[1:]]
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *options)
    assert code == 0, err
    (tmp_path / "tiny" / "model.safetensors").unlink()
    code, out, err = nearkin("evaluate", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["scores"] == json.loads((tmp_path / "run" / "scores.json").read_text())["test"]


def test_embed_writes_one_row_per_readable_image(nearkin, trained, photos, tmp_path):
    (photos / "kiwi" / "broken.jpg").write_text("not an image")
    code, out, err = nearkin("embed", trained, photos, "-o", tmp_path / "e.npz")
    assert code == 0, err
    assert "48 images embedded in 16 dimensions" in out
    assert "broken.jpg" in err
    saved = np.load(tmp_path / "e.npz")
    assert saved["embeddings"].shape == (48, 16)
    assert np.allclose(np.linalg.norm(saved["embeddings"], axis=1), 1, atol=1e-5)
    first = saved["ids"].tolist().index("blaue Möwe/Bild 0 ä.png")
    assert saved["labels"][first] == "blaue Möwe"
    assert saved["paths"][first] == str(photos / "blaue Möwe" / "Bild 0 ä.png")
    nearkin("embed", trained, photos, "-o", tmp_path / "e.csv")
    rows = list(csv.reader((tmp_path / "e.csv").open(encoding="utf-8")))
    assert rows[0][:4] == ["id", "path", "label", "e0"]
    first = saved["ids"].tolist().index(rows[1][0])
    assert rows[1][1:3] == [saved["paths"][first], saved["labels"][first]]
    assert np.allclose(np.array(rows[1][3:], dtype=float), saved["embeddings"][first], atol=1e-6)


def test_embed_takes_files_folders_and_lists_together(nearkin, trained, photos, tmp_path):
    one = photos / "kiwi" / "Bild 0 ä.png"
    (tmp_path / "list.csv").write_text(f"path,label\n{photos / 'rote Ente' / 'Bild 1 ä.png'},Ente\n")
    code, out, err = nearkin("embed", trained, one, photos / "kiwi", tmp_path / "list.csv", "-o", tmp_path / "e.npz")
    assert code == 0, err
    assert "9 images embedded" in out
    saved = np.load(tmp_path / "e.npz")
    assert saved["paths"][0] == str(one)
    assert saved["labels"].tolist() == [""] * 8 + ["Ente"]
    code, out, err = nearkin("embed", trained, one, "-o", tmp_path / "one.npz")
    assert code == 0, err
    assert np.allclose(np.load(tmp_path / "one.npz")["embeddings"], saved["embeddings"][:1], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train"], 2, "nothing to train"),
        (["train", "glyphs/dmeo"], 2, "did you mean 'glyphs/demo'"),
        (["train", "a", "b"], 2, "give one recipe"),
        (["train", "my/phots", "--resume"], 2, "did you mean 'my/photos'"),
        (["train", "my/phots", "--finish"], 2, "needs the folder of an interrupted run; did you mean 'my/photos'?"),
        (["train", "--finish"], 2, "--finish needs the folder of an interrupted run: nearkin train RUN --finish"),
        (
            ["train", "--data", "my", "epochs=2"],
            2,
            "error: an override names a section and a key, such as training.epochs=2",
        ),
        (["train", "glyphs/demo", "training.epocs=3"], 2, "did you mean 'epochs'"),
        (["train", "glyphs/demo", "training.device=tpu"], 2, "device"),
        (["train", "--data", "phtos", *QUICK], 3, "neither a folder"),
        (["train", "glyphs/demo", "data.source=cub"], 3, "CUB"),
        (["evaluate", "runs/none"], 3, "no run at"),
        (["embed", "runs/none", ".", "-o", "x.npz"], 3, "no run at"),
        (["embed", "runs/none", ".", "-o", "x.xls"], 2, "must end in .npz or .csv"),
        (["embed", "runs/none", ".", "-o", "no/x.npz"], 2, "there is no folder 'no'"),
        (["train", "--data", "photo.jpg", *QUICK], 3, "is one image: give a folder with one folder per class"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistakes_get_one_clear_line_and_an_exit_code(nearkin, arguments, code, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (tmp_path / "my" / "photos").mkdir(parents=True)
    (tmp_path / "my" / "photos" / "recipe.yaml").touch()
    got, _, err = nearkin(*arguments)
    assert got == code, err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists(), "nothing is written before the mistake is found"


def test_a_typing_mistake_in_a_path_suggests_the_neighbour(nearkin, photos):
    code, _, err = nearkin("train", "--data", photos.parent / "own fotos", *QUICK)
    assert code == 3
    assert "own photos" in err


def test_the_second_run_of_the_same_command_is_refused(nearkin, trained, photos):
    code, _, err = nearkin("train", "--data", photos, "-o", trained, *QUICK)
    assert code == 2
    assert "--resume" in err
    code, out, _ = nearkin("train", "--data", photos, "-o", trained, "--resume", *QUICK)
    assert code == 0
    assert "R@1" in out


def test_too_many_unreadable_images_stop_before_training(nearkin, photos, tmp_path):
    (photos / "kiwi" / "broken.jpg").write_text("not an image")
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK)
    assert code == 3
    assert "broken.jpg" in err
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, "data.unreadable_tolerance=0.05")
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert "broken.jpg" in record["data"]["unreadable"][0]


def test_help_teaches(nearkin):
    code, out, _ = nearkin("--help")
    assert code == 0
    for word in ("train", "evaluate", "embed", "list", "Exit codes"):
        assert word in out
    assert nearkin("--version")[1].startswith("nearkin 0.")
    _, out, _ = nearkin("train", "--help")
    assert "NEARKIN_DATA" in out
    assert "--resume" in out


def test_training_that_did_not_help_is_said(nearkin, photos, tmp_path, monkeypatch):
    falling = iter([0.9, 0.5, 0.4])
    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": (value := next(falling)), "MAP@R": value})
    changes = ["protocol.name=conventional", "training.epochs=1", "--no-figure"]
    code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, *changes)
    assert code == 0, err
    assert "Training did not help: R@1 90.0 → 40.0" in out
    assert "--final" not in out


def test_the_backbone_as_it_is_takes_the_one_command_that_is_given(nearkin, photos, tmp_path, monkeypatch):
    weights = tmp_path / "weights.safetensors"
    save_file(build_backbone("resnetv2_20").state_dict(), weights)
    falling = iter([0.9, 0.5, 0.4])
    changes = ["protocol.name=conventional", "training.epochs=1", f"encoder.weights={weights}", "--no-figure"]
    with monkeypatch.context() as patch:
        patch.setattr(Protocol, "score", lambda *_, **__: {"R@1": (value := next(falling)), "MAP@R": value})
        code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, *changes)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if "use the backbone as it is: nearkin train" in line]
    code, out, err = nearkin(*shlex.split(line.partition("as it is: nearkin ")[2]), "--no-figure")
    assert code == 0, err
    assert "--final" not in out  # which has no epoch to train to
    encoder = nearkin_package.load_run(tmp_path / "run-untrained").encoder
    assert encoder.dim == 64
    for name, tensor in load_file(weights).items():
        assert torch.equal(encoder.backbone.state_dict()[name], tensor), name
    code, _, err = nearkin("index", tmp_path / "run-untrained", photos, "-o", tmp_path / "index")
    assert code == 0, err


def test_training_that_helped_ends_with_the_way_to_the_final_model(nearkin, photos, tmp_path, monkeypatch):
    rising = iter([0.4, 0.5, 0.9])
    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": (value := next(rising)), "MAP@R": value})
    changes = ["protocol.name=conventional", "training.epochs=1", "--no-figure"]
    code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, *changes)
    assert code == 0, err
    assert f"nearkin train --final {tmp_path / 'run'}" in out.splitlines()[-1]


def test_evaluate_and_embed_take_mirror_images_and_larger_crops(nearkin, trained, photos, tmp_path):
    code, out, err = nearkin("evaluate", trained, "--flip", "--eval-size", "40")
    assert code == 0, err
    assert "test crops of 40 pixels, embeddings averaged with those of mirror images" in " ".join(out.split())
    code, out, _ = nearkin("evaluate", trained, "--no-flip", "--json")
    assert (code, json.loads(out)["conditions"]) == (0, "test crops 1.15 times as large as those of training")
    assert nearkin("embed", trained, photos, "-o", tmp_path / "e.npz", "--flip", "--eval-size", "40")[0] == 0
    code, _, err = nearkin("evaluate", trained, "--eval-size", "4")
    assert code != 0
    assert "protocol.eval_size must be at least 8, got 4" in err
    code, out, err = nearkin(
        "evaluate",
        "--backbone",
        "small",
        "--data",
        photos,
        "encoder.weights=null",
        "data.image_size=32",
        "protocol.eval_scale=1",
        "--flip",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["conditions"] == "embeddings averaged with those of mirror images"


def test_evaluate_says_what_was_done_at_test_time(nearkin, trained, tmp_path):
    code, out, err = nearkin("evaluate", trained, "--with", trained, "--flip", "--json")
    assert code == 0, err
    conditions = json.loads(out)["conditions"]
    assert "mirror images" in conditions
    assert f"concatenated with those of {trained}" in conditions
    code, out, err = nearkin("evaluate", trained, "--rerank", 5)
    assert code == 0, err
    assert "k1 5, k2 6, weight 0.3 (transductive)" in " ".join(out.split())
    code, _, err = nearkin("evaluate", "--backbone", "small", "--data", tmp_path, "--rerank", 5)
    assert (code, "--rerank" in err) == (2, True)


def test_an_index_keeps_what_was_asked_of_its_encoder(nearkin, trained, photos, tmp_path):
    index, query = tmp_path / "changed.index", photos / "kiwi" / "Bild 3 ä.png"
    switches = ("--flip", "--eval-size", 40, "--with", trained)
    code, _, err = nearkin("index", trained, photos, "-o", index, *switches)
    assert code == 0, err
    code, out, _ = nearkin("index", "status", index, "--json")
    kept = {"flip": True, "eval_size": 40, "also": [str(trained)]}
    assert json.loads(out)["model_options"] == kept
    _, out, _ = nearkin("index", "status", index)
    assert "flip True, eval_size 40" in " ".join(out.split())
    code, _, err = nearkin("index", trained, photos, "-o", index)
    assert (code, "another encoder" in err, "flip True" in " ".join(err.split())) == (3, True, True)
    code, out, err = nearkin("index", trained, photos, "-o", index, *switches, "--json")
    assert json.loads(out)["known"] == 48, err
    for how in ((), ("--device", "cpu"), ("--run", trained)):
        code, out, err = nearkin("search", index, query, "-k", 48, *how, "--json")
        assert code == 0, err
        (hits,) = [each["hits"] for each in json.loads(out)]
        assert {hit["path"]: hit["score"] for hit in hits}[str(query)] == pytest.approx(1, abs=1e-5)
        assert len(hits) == 48
