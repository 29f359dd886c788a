"""Several processes come to what one comes to: gradients, courses of runs, checkpoints; on gloo, for real.

What they need of their own lies in nearkin.ranks, nearkin.encoders.synchronised, nearkin.losses.proxy_loss and
nearkin.training.checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from nearkin import ranks
from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import checkpoint
from nearkin.training.recipe_check import load_recipe

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("together", HERE / "together.py")
together = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(together)

RESHAPED = ("adamw", "vcpa", "ccp", "updates")
CONTINUED = ("plain", "updates")
WORLDS = (2, 3)
TOLERANCE = {"64": 1e-10, "32": 1e-5, "run": 3e-4, "cli": 1e-6}
"""Of gradients beside one process with the whole batch, in their precision; of weights after six steps in float32."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process comes to, each case when it is first asked for."""
    folder, known = tmp_path_factory.mktemp("alone"), {}

    def found(name):
        if name not in known:
            known[name] = together.cases(1, folder)[name]()
        return known[name]

    return found


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder of runs that one process has begun."""
    folder = tmp_path_factory.mktemp("begun")
    for course in sorted({*RESHAPED, *CONTINUED}):
        together.course_of_a_run(course, folder / course, to_step=3)
    return folder


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory, begun):
    """What every rank comes to, by how many there are; and the folder of runs that two and then three took over."""
    work, continued = tmp_path_factory.mktemp("together"), {}
    shutil.copytree(begun, work / "reshaped")
    for world in WORLDS:
        shutil.copytree(begun, work / f"continued-{world}")
        continued[world] = [[f"reshaped {each}", each, str(work / "reshaped" / each), 3, 3] for each in RESHAPED]
        for each in CONTINUED:
            continued[world].append([f"continued {each}", each, str(work / f"continued-{world}" / each), 3, 6])
    return together.carried_out(work, continued), work


@pytest.mark.parametrize("world", WORLDS)
def test_several_processes_come_to_what_one_comes_to(world, alone, in_processes):
    of_ranks = in_processes[0][world]
    assert len(of_ranks) == world
    for name in together.cases(world, Path()):
        tolerance = TOLERANCE.get(name[-2:] if name.startswith("loss") else name[:3], 1e-12)
        expected, first = alone(name), of_ranks[0][name]
        for results in of_ranks:
            assert set(results[name]) == set(expected)
            for key, value in expected.items():
                assert_close(results[name][key], value, tolerance, f"{name}: {key}")
            if name.startswith("run"):
                assert all(torch.equal(value, results[name][key]) for key, value in first.items()), name


@pytest.mark.parametrize("course", RESHAPED)
def test_a_checkpoint_goes_from_one_process_to_two_to_three_and_back_unchanged(course, begun, in_processes):
    place = in_processes[1] / "reshaped" / course
    assert [file.name for file in (place / "checkpoints").glob("last*")] == ["last.pt"]
    before = checkpoint.read_checkpoint(begun / course / "checkpoints" / "last.pt")
    after = checkpoint.read_checkpoint(place / "checkpoints" / "last.pt")
    for part in ("encoder", "objective", "method", "optimiser", "sampler", "history"):
        assert_same(after[part], before[part], part)
    state = together.state_of(together.recipe_of(course))
    checkpoint.load_last(state, RunFolder(place))
    assert_same(state.optimiser.state_dict()["state"], before["optimiser"]["state"], "optimiser")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("course", CONTINUED)
def test_a_run_that_one_process_began_is_continued_by_several(course, world, alone, in_processes):
    expected = alone(f"run {course}")
    assert expected
    for of_rank in in_processes[0][world]:
        for key, value in expected.items():
            assert_close(of_rank[f"continued {course}"][key], value, TOLERANCE["run"], key)


@pytest.mark.parametrize("size", ["x", "0", "-1", "2.0"])
def test_a_number_of_processes_that_is_none_is_refused(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(RecipeError, match=f"^WORLD_SIZE must be the number .*, got '{size}': .* or unset WORLD_SIZE"):
        ranks.started_together()


def test_no_number_of_processes_is_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert ranks.started_together() == 1


@pytest.mark.parametrize(
    "given, missing",
    [
        ({}, "RANK, MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0", "MASTER_ADDR": "localhost"}, "MASTER_PORT"),
    ],
)
def test_a_process_that_is_told_of_others_but_not_where_they_are_says_what_to_do(given, missing, monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "2", **given}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(RecipeError, match=f"^WORLD_SIZE is 2, but not set: {missing}; start them"),
        ranks.joined(),
    ):
        pass


def test_a_gradient_is_summed_over_processes_and_a_second_one_refused(monkeypatch):
    monkeypatch.setattr(ranks, "_size", 2)
    monkeypatch.setattr(ranks, "_all_reduce", lambda tensor: 2 * tensor)
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(ranks.with_summed_gradient(x).square(), x)[0].tolist() == [12.0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(ranks.with_summed_gradient(x).square(), x, create_graph=True)


def test_alone_nothing_is_gathered_summed_or_waited_for():
    x = torch.ones(2, 3, requires_grad=True)
    assert ranks.gather_rows(x, 2) is ranks.gather_columns(x, 3) is ranks.sum_within(x) is x
    ranks.wait_for_all()
    assert ranks.is_first_to_fail()
    assert ranks.Agreement().on(True, False) == [True, False]


ARGUMENTS = (
    *("data.transform=mild", "data.image_size=16", "data.workers=1", "encoder.backbone=small", "encoder.dim=8"),
    *("encoder.weights=null", "encoder.options={width: 4}", "objective.name=proxy_anchor", "training.device=cpu"),
    *("training.batch_size=7", "training.epochs=3", "training.evaluate_every_steps=4"),
    *("protocol.name=conventional", "protocol.test_share=0.34"),
)
KILLING = """
import os, signal
from nearkin.cli import main
from nearkin.training import loop

step = loop.train_step

def step_or_die(state, *others):
    if state.step == 6 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(state, *others)

loop.train_step = step_or_die
main()
"""


def torchrun(options, *arguments, script=("-m", "nearkin")):
    """Start torchrun; without a place to meet, its processes are all that there are."""
    if "--nnodes=2" not in options:
        options = ["--master-addr=127.0.0.1", f"--master-port={together.free_port()}", *options]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *script, *arguments]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(*processes):
    """What every process has written, once all have ended."""
    try:
        return [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Six kinds of eight images."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(6):
        (folder / f"kind {number}").mkdir()
        for index in range(8):
            pixels = rng.normal(60 + 25 * number, 40, (20, 20, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"kind {number}" / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """A run of two machines, which are this one twice, with a process on each."""
    folder, port = tmp_path_factory.mktemp("runs") / "undisturbed", together.free_port()
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    train = ["train", "--data", images, *ARGUMENTS, "-o", folder, "--no-figure"]
    nodes = [torchrun([*meeting, f"--node-rank={number}"], *train) for number in range(2)]
    (said, errors), (other, other_errors) = ended(*nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors + other_errors
    assert "Run folder" in said
    assert not other, "only the first process speaks"
    return RunFolder(folder)


def test_two_machines_train_what_one_process_trains(undisturbed, images, tmp_path, nearkin):
    folder = tmp_path / "alone"
    assert nearkin("train", "--data", images, *ARGUMENTS, "-o", folder, "--no-figure")[0] == 0
    rows, expected = (each.evaluations() for each in (undisturbed, RunFolder(folder)))
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    assert rows[1]["loss"] == pytest.approx(expected[1]["loss"], rel=1e-3)
    scores = undisturbed.scores()
    assert scores.test is not None
    assert scores.untrained == pytest.approx(RunFolder(folder).scores().untrained)
    assert nearkin("evaluate", undisturbed.path, "--json")[0] == 0


GLYPHS = (
    *("data.image_size=16", "data.workers=1", "encoder.dim=8", "encoder.options.width=4", "protocol.train_share=0.1"),
    *("training.batch_size=23", "training.max_steps=3", "training.evaluate_every_steps=3", "training.optimiser=sgd"),
    "training.device=cpu",
)


@pytest.fixture(scope="module")
def glyphs_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    run(load_recipe("glyphs/demo", GLYPHS), folder)
    return RunFolder(folder)


@pytest.mark.parametrize("processes", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_more_than_two_processes_train_on_glyphs_what_one_trains(processes, glyphs_alone, tmp_path):
    train = ["train", "glyphs/demo", *GLYPHS, "-o", tmp_path / "run", "--no-figure"]
    process = torchrun([f"--nproc-per-node={processes}"], *train)
    _, errors = ended(process)[0]
    assert process.returncode == 0, errors
    trained = RunFolder(tmp_path / "run")
    found, expected = (safetensors.torch.load_file(folder.encoder_file) for folder in (trained, glyphs_alone))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-4, atol=1e-6)
    assert trained.evaluations()[1]["loss"] == pytest.approx(glyphs_alone.evaluations()[1]["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_process_that_is_killed_comes_again_and_the_run_ends_as_if_nothing_had_been(undisturbed, images, tmp_path):
    script, folder = tmp_path / "killing.py", tmp_path / "run"
    script.write_text(KILLING)
    train = ["train", "--data", images, *ARGUMENTS, "-o", folder, "--no-figure"]
    process = torchrun(["--nproc-per-node=2", "--max-restarts=1"], *train, script=[script])
    _, errors = ended(process)[0]
    assert process.returncode == 0, errors
    assert "exitcode: -9" in errors
    assert errors.count("another process of this run has ended") <= 1
    again = RunFolder(folder)
    found, expected = (safetensors.torch.load_file(each.encoder_file) for each in (again, undisturbed))
    assert_same(found, expected, "encoder")
    found, expected = (checkpoint.read_checkpoint(each.last_checkpoint) for each in (again, undisturbed))
    assert_same(found["objective"], expected["objective"], "objective")
    assert_same(found["optimiser"], expected["optimiser"], "optimiser")
    assert again.scores().test == undisturbed.scores().test


@pytest.mark.slow
def test_processes_embed_evaluate_and_fail_together(undisturbed, images, tmp_path, nearkin):
    runs = {
        "embed": ["embed", undisturbed.path, images, "-o", tmp_path / "together.npz"],
        "evaluate": ["evaluate", undisturbed.path, "--json"],
        "misspelt": ["train", "--data", images, "training.epoch=1", "-o", tmp_path / "none"],
        "not together": ["list", "recipes"],
    }
    said = {name: ended(torchrun(["--nproc-per-node=2"], *arguments))[0] for name, arguments in runs.items()}
    assert nearkin("embed", undisturbed.path, images, "-o", tmp_path / "alone.npz")[0] == 0
    found, expected = (np.load(tmp_path / f"{name}.npz") for name in ("together", "alone"))
    assert (found["ids"] == expected["ids"]).all()
    assert np.allclose(found["embeddings"], expected["embeddings"], atol=1e-5)
    found, expected = (json.loads(text) for text in (said["evaluate"][0], nearkin(*runs["evaluate"])[1]))
    assert found["scores"] == pytest.approx(expected["scores"])
    assert said["misspelt"][1].count("unknown key 'training.epoch'") == 1
    assert said["not together"][1].count("start nearkin list without it") == 1


@pytest.mark.gpu
def test_two_processes_train_on_a_gpu_what_one_trains(images, tmp_path, nearkin):
    """Where there is one GPU they share it, through gloo; of several each has its own, through NCCL."""
    device = "cuda" if torch.cuda.device_count() > 1 else "cuda:0"
    settings = [*ARGUMENTS, f"training.device={device}", "training.precision=float32", "training.max_steps=8"]
    train = ["train", "--data", images, *settings, "--no-figure"]
    process = torchrun(["--nproc-per-node=2"], *train, "-o", tmp_path / "together")
    _, errors = ended(process)[0]
    assert process.returncode == 0, errors
    assert nearkin(*train, "-o", tmp_path / "alone")[0] == 0
    rows, expected = (RunFolder(tmp_path / name).evaluations() for name in ("together", "alone"))
    assert [row["step"] for row in rows] == [row["step"] for row in expected] == [0, 4, 8]
    assert rows[1]["loss"] == pytest.approx(expected[1]["loss"], rel=1e-2)


def assert_close(found, expected, tolerance, what):
    assert found.shape == expected.shape, what
    scale = max(1.0, expected.double().abs().max().item()) if expected.numel() else 1.0
    assert torch.allclose(found.double(), expected.double(), rtol=0, atol=tolerance * scale), what


def assert_same(found, expected, what):
    """Bit for bit, through dictionaries and lists."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), what
    elif isinstance(expected, dict | list | tuple):
        assert len(found) == len(expected), what
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            assert_same(found[key], expected[key], f"{what}/{key}")
    else:
        assert found == expected, what
