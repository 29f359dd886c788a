"""A run by onnxruntime: the same vectors and identity, made when it is asked for or pays, and never in the way."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest

import nearkin
from nearkin.errors import MissingExtraError, Notice, RecipeError
from nearkin.exports import export, runtime
from nearkin.exports.export import TO_TORCH
from nearkin.exports.runtime import kept_file


@pytest.fixture
def run(trained):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the extra onnx is not installed")
    return trained


@pytest.fixture
def with_file(run, tmp_path_factory):
    """The run with its file, which is made once for all tests."""
    identity = nearkin.load(run, device="cpu").identity
    made = tmp_path_factory.getbasetemp() / f"kept-{identity}.onnx"
    if not made.is_file():
        nearkin.load(run, runtime="onnx")
        shutil.copy(kept_file(run, identity), made)
    shutil.copy(made, kept_file(run, identity))
    return run


@pytest.fixture
def paths(photos):
    return sorted(photos.rglob("*.png"))[::4]


def kept(run):
    return sorted(file.name for file in run.glob("*.onnx"))


def test_vectors_and_identity_are_those_of_torch(run, paths):
    torch = nearkin.load(run, runtime="torch", device="cpu")
    onnx = nearkin.load(run, runtime="onnx")
    assert (torch.embed.runtime, onnx.embed.runtime) == ("torch", "onnx")
    assert onnx.identity == torch.identity
    assert np.abs(onnx.encode(paths) - torch.encode(paths)).max() <= TO_TORCH
    assert kept(run) == [kept_file(run, torch.identity).name]


def test_it_is_used_unasked_once_it_is_there(run, monkeypatch, request):
    assert nearkin.load(run, device="cpu").embed.runtime == "torch"
    assert not kept(run)
    request.getfixturevalue("with_file")
    monkeypatch.setattr(export, "keep_onnx", None)  # once is enough
    assert nearkin.load(run, runtime="onnx").embed.runtime == "onnx"
    assert nearkin.load(run, device="cpu").embed.runtime == "onnx"
    assert nearkin.load(run, runtime="torch", device="cpu").embed.runtime == "torch"


def test_other_options_have_a_file_of_their_own(with_file, paths):
    run = with_file
    flipped = nearkin.load(run, flip=True, device="cpu")
    assert flipped.embed.runtime == "torch"
    again = nearkin.load(run, flip=True, runtime="onnx")
    assert np.abs(again.encode(paths) - flipped.encode(paths)).max() <= TO_TORCH
    assert len(kept(run)) == 2


def test_many_images_make_it_by_themselves_where_it_pays(run, paths, monkeypatch):
    monkeypatch.setattr(runtime, "MANY", len(paths))
    model = nearkin.load(run, device="cpu")
    model.encode(paths)
    assert model.embed.runtime == "torch"  # a small network gains nothing
    monkeypatch.setattr(runtime, "_FASTER_IN_TORCH", ())
    model.encode(paths[1:])
    assert model.embed.runtime == "torch"
    index = nearkin.Index.create(run.parent / "a.index", model)
    index.add(paths, None)
    assert model.embed.runtime == "onnx"
    assert len(kept(run)) == 1
    told = nearkin.load(run, runtime="torch", device="cpu")
    told.prepare(10**6)
    assert told.embed.runtime == "torch"


def test_an_index_is_the_same_by_both(run, paths, tmp_path, request):
    index = nearkin.Index.create(tmp_path / "a.index", nearkin.load(run, runtime="torch", device="cpu"))
    index.add(paths[::2], None)
    request.getfixturevalue("with_file")
    again = nearkin.Index.open(tmp_path / "a.index")
    assert again.model.embed.runtime == "onnx"
    again.add(paths, None)
    assert len(again) == len(paths)
    for path in paths:
        best = again.search(path, k=1)[0]
        assert best.path == str(path)
        assert best.score == pytest.approx(1, abs=1e-4)


def test_what_fails_leaves_torch_with_a_word(run, paths, monkeypatch):
    monkeypatch.setattr(runtime, "MANY", 1)
    monkeypatch.setattr(runtime, "_FASTER_IN_TORCH", ())

    def fails(*_):
        raise ValueError("an operator\nthat nobody knows")

    monkeypatch.setattr(export, "write_onnx", fails)
    model = nearkin.load(run, device="cpu")
    with pytest.warns(Notice, match="torch embeds, as onnxruntime cannot: an operator that nobody knows"):
        assert len(model.encode(paths)) == len(paths)
    assert model.embed.runtime == "torch"
    assert not list(run.glob("*.onnx")) + list(run.glob(".*.onnx"))


def test_a_damaged_file_leaves_torch_and_is_made_anew_when_asked_for(run):
    identity = nearkin.load(run, device="cpu").identity
    kept_file(run, identity).write_bytes(b"no model")
    with pytest.warns(Notice, match="cannot be read by onnxruntime"):
        assert nearkin.load(run, device="cpu").embed.runtime == "torch"
    assert nearkin.load(run, runtime="onnx").embed.runtime == "onnx"
    assert nearkin.load(run, device="cpu").embed.runtime == "onnx"


def test_a_file_of_another_encoder_is_not_used(with_file):
    run = with_file
    identity = nearkin.load(run, runtime="onnx").identity
    kept_file(run, identity).rename(kept_file(run, nearkin.load(run, flip=True, device="cpu").identity))
    assert nearkin.load(run, flip=True, device="cpu").embed.runtime == "torch"


def test_without_the_extra_it_is_torch_unless_asked_for(with_file, monkeypatch):
    run = with_file

    def lacking(module, extra):
        raise MissingExtraError(f"this needs {module!r}")

    monkeypatch.setattr("nearkin.exports.model.require", lacking)
    monkeypatch.setattr("nearkin.exports.export.require", lacking)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nearkin.load(run, device="cpu").embed.runtime == "torch"
    with pytest.raises(MissingExtraError):
        nearkin.load(run, runtime="onnx")


def test_mistakes_are_told(with_file):
    run = with_file
    with pytest.raises(RecipeError, match="unknown runtime 'onx': did you mean 'onnx'"):
        nearkin.load(run, runtime="onx")
    with pytest.raises(RecipeError, match="onnxruntime computes on the CPU here, not on cuda"):
        nearkin.load(run, runtime="onnx", device="cuda")
    file = run / kept(run)[0]  # a file like any that was exported
    assert nearkin.load(file, runtime="onnx").identity == nearkin.load(run, device="cpu").identity
    with pytest.raises(RecipeError, match="cannot be computed by 'torch'"):
        nearkin.load(file, runtime="torch")
