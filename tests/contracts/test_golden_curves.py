"""Golden curves: the loss of the first twenty steps of every loss and every method, on a share of Glyphs.

The curves are in ``tests/assets/golden``, one file each, beside the images they were trained on. A change that moves
one of them has changed what a training run does. Made anew, where that is meant, by

    pytest tests/contracts/test_golden_curves.py --update-golden

Beside a curve stands ``last_bits``: how far, at most and as a share of the loss, it moves when every parameter starts a
last bit away. A curve that amplifies last bits would be another on every processor, and is no test.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin import losses
from nearkin.data.benchmarks.glyphs import FACES, GlyphClass, draw_glyphs
from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.runs.folder import RunFolder
from nearkin.training import methods
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer, TrainingState

GOLDEN = Path(__file__).parents[1] / "assets" / "golden"
SHEET = GOLDEN / "glyphs.png"
UPDATE = "pytest tests/contracts/test_golden_curves.py --update-golden"

STEPS = 20
TOLERANCE = 1e-7
LAST_BITS = 1e-10

TRAINED, TESTED = "ABCDEFGHIJKLMNOPQRSTUVWX", "34679?&@"
CHOSEN_FACES = FACES[::2] + FACES[1:5:2]
SIDE = 24

RECIPE = {
    "data": {"transform": "glyphs", "image_size": SIDE, "workers": 1},
    "encoder": {"backbone": "small", "dim": 16, "pooling": "avg+max", "options": {"width": 6}},
    "training": {
        "epochs": 50,
        "max_steps": STEPS,
        "evaluate_every_steps": STEPS,
        "batch_size": 48,
        "sampler": "balanced",
        "images_per_class": 4,
        "learning_rate": 3e-3,
        "proxy_lr_multiplier": 10,
        "schedule": "constant",
        "precision": "float32",
        "device": "cpu",
        "seed": 0,
    },
    "protocol": {"name": "conventional"},
}

# What a loss needs to show in twenty steps, five to an epoch, what it does in a long run.
OPTIONS = {
    "cross_batch_memory": ["objective.size=200", "objective.warmup_steps=2"],
    "momentum_proxy_anchor": ["objective.queue_size=200", "objective.momentum=0.9"],
    # Without a shorter search no negative lies so far away that it would count less.
    "proxy_isa": ["objective.volume=5", "objective.sensitivity=0", "objective.search_margin=-0.15"],
    "proxy_isa_without_penalties": ["objective.volume=5"],
    "vcpa": ["objective.tau=1"],
}
CCP = ["method.name=ccp", "method.steps_per_problem=8", "method.proximal_weight=0.01"]
PROFS = ["method.name=profs", "method.steps_per_projection=6", "method.proximal_weight=0.01"]
METHODS = {
    "ccp-contrastive": [*CCP, "objective.name=contrastive", "method.proxies_per_class=4", "method.pool_size=6"],
    "ccp-cosine_contrastive": [
        *CCP,
        "objective.name=cosine_contrastive",
        "method.proxies_per_class=4",
        "method.pool_size=6",
    ],
    "ccp-mpa_ap": [*CCP, "objective.name=mpa_ap", "objective.proxies_per_class=3", "method.pool_size=6"],
    "profs-contrastive": [*PROFS, "objective.name=contrastive"],
    "profs-contrastive-hard_negative_classes": [
        *PROFS,
        "objective.name=contrastive",
        "method.hard_negative_classes=true",
    ],
    "profs-margin": [*PROFS, "objective.name=margin"],
    "momentum-momentum_proxy_anchor": [
        "method.name=momentum",
        "objective.name=momentum_proxy_anchor",
        *OPTIONS["momentum_proxy_anchor"],
    ],
    "proxy_updates-proxy_anchor": ["method.name=proxy_updates", "objective.name=proxy_anchor"],
    "proxy_updates-proxy_anchor-second": [
        "method.name=proxy_updates",
        "objective.name=proxy_anchor",
        "method.order=second",
        "method.damping=30",  # with less the Newton steps overshoot, and twenty steps are chaos
    ],
    "plain-margin-distance_weighted": ["objective.name=margin", "objective.negatives=distance_weighted"],
    "plain-n_pair-length_penalty": ["objective.name=n_pair", "objective.length_penalty=0.002"],
    "plain-vcpa-proxies_per_class": ["objective.name=vcpa", "objective.tau=1", "objective.proxies_per_class=3"],
}
# Their losses go up: a memory joins in, or new proxies start in the last steps.
RISING = {"cross_batch_memory", "ccp-cosine_contrastive"}
CURVES = {name: [f"objective.name={name}", *OPTIONS.get(name, [])] for name in losses.catalogue()} | METHODS


def share_of_glyphs() -> ImageTable:
    """24 classes to train and 8 to test on, ten images each, drawn by whatever FreeType there is."""
    classes = [GlyphClass(ord(c), {face: ord(c) for face in CHOSEN_FACES}) for c in TRAINED + TESTED]
    return draw_glyphs(classes, size=SIDE)


def pixels_in_sheet() -> np.ndarray:
    """The images as they were drawn once, so that the curves do not depend on FreeType: a row is a class."""
    sheet = np.array(Image.open(SHEET)).reshape(len(TRAINED + TESTED), SIDE, len(CHOSEN_FACES), SIDE)
    return np.ascontiguousarray(sheet.swapaxes(1, 2)).reshape(-1, SIDE, SIDE)


def golden_table() -> ImageTable:
    names = [c for c in TRAINED + TESTED for _ in CHOSEN_FACES]
    splits = ["train" if c in TRAINED else "test" for c in names]
    return ImageTable.build("share of glyphs", pixels_in_sheet(), names, splits=splits)


@pytest.fixture
def double_precision():
    """Everything is drawn and computed in float64.

    CPUs draw and add with different last digits. In single precision Adam, hinges and hard pairs make of that a
    difference of several per cent within twenty steps; in double precision nothing of it is left to see.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def nudge(module: torch.nn.Module, seed: int) -> None:
    """Move every parameter by its last bit up, down or not at all, as another processor may have drawn it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            sign = torch.randint(-1, 2, parameter.shape, generator=generator).to(parameter.dtype)
            parameter.mul_(1 + torch.finfo(parameter.dtype).eps * sign)


def curve(overrides: list[str], folder: Path, nudged: int | None = None) -> list[float]:
    """The losses of the real loop, step by step, with every parameter nudged at the start where a seed is given."""
    values: list[float] = []

    class Recorder(Observer):
        def on_step(self, state, loss, images):
            values.append(loss)

    state = state_of(overrides)
    if nudged is not None:
        nudge(state.encoder, nudged)
        nudge(state.objective, nudged)
    fit(state, RunFolder(folder).begin(state.recipe), Recorder())
    return values


def state_of(overrides: list[str]) -> TrainingState:
    recipe = load_recipe(RECIPE, overrides)
    methods.catalogue()[recipe.method.name].check(recipe)
    state = build_state(recipe, open_images(golden_table(), cache_dir=None))
    # The preprocessing is single precision whatever the network is.
    state.encoder.backbone.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    return state


@pytest.fixture
def nudged() -> int | None:
    """The seed by which `make test-portable` has parameters start a last bit away."""
    seed = os.environ.get("NEARKIN_TEST_NUDGE")
    return None if seed is None else int(seed)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    # Where pytest was not started on this folder, it does not know the option.
    return bool(request.config.getoption("--update-golden", default=False))


def test_the_images_are_glyphs(update):
    drawn = share_of_glyphs().images
    if update and not SHEET.exists():
        rows = drawn.reshape(-1, len(CHOSEN_FACES), SIDE, SIDE).swapaxes(1, 2)
        Image.fromarray(rows.reshape(-1, len(CHOSEN_FACES) * SIDE)).save(SHEET, optimize=True)
    # FreeTypes differ in how they smooth an edge, not in where it is.
    assert np.abs(pixels_in_sheet().astype(float) - drawn).mean() < 5


@pytest.mark.parametrize("name", sorted(CURVES))
def test_a_curve_is_as_it_was(name, update, nudged, double_precision, tmp_path, request):
    values = curve(CURVES[name], tmp_path / "run", nudged)
    assert len(values) == STEPS
    file = GOLDEN / f"{name}.json"
    if update or (request.config.getoption("--add-golden", default=False) and not file.exists()):
        others = [curve(CURVES[name], tmp_path / f"nudged {seed}", seed) for seed in (1, 2)]
        moved = float(f"{max(np.abs(np.array(other) / values - 1).max() for other in others):.1e}")
        golden = {"overrides": CURVES[name], "losses": values, "last_bits": moved}
        file.write_text(json.dumps(golden, indent=1) + "\n")
    if not file.exists():
        pytest.fail(f"{name} has no golden curve yet: make it with\nmake added\nand commit {file.name}")
    golden = json.loads(file.read_text())
    again = f"If that is meant, run\n{UPDATE} -k {name}\nand say why in the commit"
    assert golden["overrides"] == CURVES[name], f"{file.name} was made with other options. {again}"
    apart = [step for step, pair in enumerate(zip(values, golden["losses"], strict=True)) if not alike(*pair)]
    if apart:
        step = apart[0]
        pytest.fail(
            f"the losses of {name} have moved from step {step} on: {values[step]!r}, was {golden['losses'][step]!r}. "
            f"{again}"
        )


@pytest.mark.parametrize("name", sorted(CURVES))
def test_steps_in_pieces_are_the_plain_steps(name, double_precision, tmp_path):
    """Gradients of every step, and all that a checkpoint would hold after them; 48 images in pieces of 20, 20 and 8."""

    def outcome(micro_batch: int | None) -> list[object]:
        gradients: list[object] = []

        class Recorder(Observer):
            def on_step(self, state, loss, images):
                parameters = [p for group in state.optimiser.param_groups for p in group["params"]]
                gradients.extend([loss, *(None if p.grad is None else p.grad.clone() for p in parameters)])

        frozen = ["encoder.freeze_batch_norm=true", "training.max_steps=9", "training.evaluate_every_steps=9"]
        state = state_of([*CURVES[name], *frozen, f"training.micro_batch={json.dumps(micro_batch)}"])
        fit(state, RunFolder(tmp_path / str(micro_batch)).begin(state.recipe), Recorder())
        parts = ("encoder", "objective", "method", "optimiser", "sampler")
        return [*gradients, *leaves([getattr(state, part).state_dict() for part in parts])]

    for ours, plain in zip(outcome(20), outcome(None), strict=True):
        if isinstance(plain, float | torch.Tensor):
            torch.testing.assert_close(ours, plain, rtol=TOLERANCE, atol=1e-9)
        else:
            assert ours == plain


def leaves(tree: object) -> list[object]:
    """What nested dictionaries and lists hold in the end."""
    if not isinstance(tree, dict | list | tuple):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


def alike(value: float, golden: float) -> bool:
    return math.isclose(value, golden, rel_tol=TOLERANCE, abs_tol=1e-12)


def test_there_is_no_curve_of_something_that_is_gone():
    assert {file.stem for file in GOLDEN.glob("*.json")} <= set(CURVES)
    named = {option.removeprefix("method.name=") for options in METHODS.values() for option in options}
    assert set(methods.catalogue()) - {"plain"} <= named, "every method has a curve"


def test_the_curves_are_sane():
    for file in GOLDEN.glob("*.json"):
        golden = json.loads(file.read_text())
        values = golden["losses"]
        assert golden["last_bits"] < LAST_BITS, f"{file.stem} is chaotic: make it shorter or better conditioned"
        assert all(math.isfinite(value) and value > 0 for value in values), file.name
        falls = np.mean(values[-5:]) < np.mean(values[:5])
        assert falls != (file.stem in RISING), f"{file.stem}: {values}"
        if file.stem.startswith("ccp-"):
            problems = [values[start : start + 8] for start in range(0, STEPS, 8)]
            assert all(np.mean(part[-2:]) < np.mean(part[:2]) for part in problems), "it falls within a sub-problem"
