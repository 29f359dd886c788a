"""What several processes do together in the tests, each case a function that gives back tensors.

``test_distributed.py`` calls the cases in its own process, and starts this file in two and in three: a process takes
seconds to start, so each runs all of its cases. Every case must come to the same in any number of processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nearkin import ranks
from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.encoders.synchronised import synchronise_batch_norm
from nearkin.errors import InterruptedRunError, RecipeError
from nearkin.evaluation.retrieval import measure
from nearkin.losses import Contrastive, InformativeSampleWeights, ProxyLoss, catalogue, kind, options
from nearkin.proxies import ProxyBank
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.optimisation import add_up_gradients, clip_gradients
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

CLASSES, DIM = 7, 4
SMALL = {"size": 32, "warmup_steps": 1, "memory_size": 40, "queue_size": 20, "proxies_per_class": 3}


class Hinge(ProxyLoss):
    """A loss as a stranger writes it."""

    def from_similarities(self, similarities, labels):
        positive = similarities.gather(1, labels[:, None])
        return (similarities - positive + 0.2).clamp_min(0).mean()


def weighting():
    return InformativeSampleWeights(CLASSES, DIM, memory_size=40)


LOSSES = {name: {} for name in sorted(catalogue())} | {
    "hinge": {"proxies_per_class": 2, "tau": 0.3},
    "hinge+isa": {"weighting": weighting},
    "proxy_anchor+isa": {"weighting": weighting},
    "mpa+isa": {"weighting": weighting},
    "margin+drawn": {"negatives": "distance_weighted"},
    "mpa+max": {"class_similarity": "max"},
    "mpa+mean": {"class_similarity": "mean"},
    # With so few classes and dimensions a smaller τ makes the Newton steps overshoot.
    "vcpa": {"tau": 20.0},
    "vcpa+optimiser": {"newton_steps": 0},
    "vcpa+softmax": {"tau": 20.0, "newton_steps": 2, "proxies_per_class": 2},
}


def loss_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    cls = (catalogue() | {"hinge": Hinge})[name.partition("+")[0]]
    given = {key: value() if callable(value) else value for key, value in LOSSES[name].items()}
    known = {key: value for key, value in SMALL.items() if key in options(cls)} | given
    first = {"proxy": (CLASSES, DIM), "pair": (), "wrapper": (Contrastive(neg_margin=1.3),)}[kind(cls)]
    return cls(*first, **known)


def course_of_a_loss(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Values and gradients of a few steps of a linear encoder and a loss, with batches that do not divide evenly."""
    loss = loss_of(name).to(dtype)
    torch.manual_seed(1)
    encoder = nn.Linear(6, DIM).to(dtype)
    groups = [{"name": "head", "params": list(encoder.parameters())}]
    banked = [p for module in loss.modules() if isinstance(module, ProxyBank) for p in module.parameters()]
    banked = [p for p in banked if p.requires_grad]
    others = [p for p in loss.parameters() if p.requires_grad and not any(p is each for each in banked)]
    groups += [{"name": "proxies", "params": banked}] if banked else []
    groups += [{"name": "objective", "params": others}] if others else []
    optimiser = torch.optim.SGD(groups, lr=0.01)
    # The last batch may have fewer rows than there are ranks, the one before has an uneven number of them.
    batches = [
        [3, 0, 5, 0, 3, 6, 5, 6, 1, 1, 2, 2, 4, 4],
        [0, 0, 1, 1, 2, 2, 3, 3, 3, 6, 6],
        [2, 2],
    ]
    found = {}
    steps = [*batches, batches[1]] if dtype == torch.float64 else batches[:2]
    for step, labels in enumerate(steps):
        if hasattr(loss, "begin_epoch"):
            loss.begin_epoch(step)
        images = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(step), dtype=dtype)
        own = ranks.share_of(len(labels))
        embeddings = ranks.gather_rows(encoder(images[own.start : own.stop]), len(labels))
        value = loss(embeddings, torch.tensor(labels))
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        add_up_gradients(optimiser)
        found[f"{step} value"] = value.detach()
        for group in optimiser.param_groups:
            for number, p in enumerate(group["params"]):
                if p.grad is not None:
                    shared = group["name"] == "proxies"
                    whole = ranks.gather_rows(p.grad, CLASSES) if shared else p.grad
                    found[f"{step} {group['name']} {number}"] = whole.clone()
        optimiser.step()
    return found | {f"kept {key}": value for key, value in whole_state(loss).items()}


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state with the proxies of all ranks."""
    per_class = {
        f"{prefix}.{name}".lstrip("."): part.classes
        for prefix, part in module.named_modules()
        if isinstance(part, ProxyBank)
        for name, _ in (*part.named_parameters(), *part.named_buffers())
    }
    return {
        key: (ranks.gather_rows(value, per_class[key]) if key in per_class else value).clone()
        for key, value in module.state_dict().items()
    }


def batch_norm(rows: int, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """A batch-norm between two layers, in float64, on a batch that does not divide evenly; then at rest."""
    torch.manual_seed(0)
    norm = (nn.BatchNorm2d if shape else nn.BatchNorm1d)(5, momentum=0.3)
    network = nn.Sequential(nn.Conv2d(3, 5, 1) if shape else nn.Linear(3, 5), norm, nn.Tanh()).double()
    if ranks.world() > 1:
        synchronise_batch_norm(network)
    found = {}
    for step in range(2):
        x = torch.randn(rows, 3, *shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        own = ranks.share_of(rows)
        part = x[own.start : own.stop].requires_grad_()
        y = ranks.gather_rows(network(part), rows)
        network.zero_grad()
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        gradients = [p.grad for p in network.parameters()]
        ranks.add_up_(gradients)
        found |= {f"{step} gradient {number}": gradient.clone() for number, gradient in enumerate(gradients)}
        found |= {f"{step} y": y.detach(), f"{step} x": ranks.gather_rows(part.grad, rows)}
    network.eval()
    found |= {key: value.clone().double() for key, value in network.state_dict().items()}
    return found | {"at rest": ranks.gather_rows(network(x[own.start : own.stop]).detach(), rows)}


def drawn_proxies() -> dict[str, Tensor]:
    """Proxies, of sizes around the blocks they are drawn in, and the random state that drawing them leaves."""
    found = {}
    for classes, per_class, dim in ((3, 1, 1), (4, 2, 5), (50, 1, 3), (65_536, 1, 1), (65_537, 1, 2), (140_001, 1, 1)):
        torch.manual_seed(3)
        bank = ProxyBank(classes, per_class, dim)
        found[f"{classes}"] = bank.whole().detach()
        found[f"{classes} after"] = torch.rand(1)
    return found


def clipped() -> dict[str, Tensor]:
    torch.manual_seed(0)
    weight, bank = nn.Parameter(torch.ones(3)), ProxyBank(5, 2, 3)
    optimiser = torch.optim.SGD([{"name": "head", "params": [weight]}, {"name": "proxies", "params": [bank.vectors]}])
    weight.grad, bank.vectors.grad = torch.full((3,), 4.0), bank.vectors.detach() * 10
    clip_gradients(optimiser, load_recipe({"training": {"max_grad_norm": 1.5}}).training)
    return {"weight": weight.grad, "bank": ranks.gather_rows(bank.vectors.grad, 5)}


def what_is_known_to_all() -> dict[str, Tensor]:
    """The first rank's value and its errors reach all, and a wish of any rank is known to all one step later."""
    values = ranks.from_first(lambda: [ranks.rank(), 7])
    try:
        ranks.from_first(lambda: (_ for _ in ()).throw(RecipeError("of the first")))
        said = "nothing"
    except RecipeError as error:
        said = str(error)
    agreement, last = ranks.Agreement(), ranks.rank() == ranks.world() - 1
    first, second = agreement.on(last, False), agreement.on(False, False)
    wished = [a or b for a, b in zip(first, second, strict=True)]
    shares = torch.cat([torch.tensor(list(ranks.share_of(11, of=number))) for number in range(ranks.world())])
    counted = ranks.first_on_each_machine(lambda: 5)
    return {
        "values": torch.tensor([*values, *wished, counted, said == "of the first"]),
        "shares": shares,
    }


RECIPE = {
    "data": {"transform": "digits", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 6, "options": {"width": 4}},
    "training": {
        "epochs": 50,
        "max_steps": 6,
        "evaluate_every_steps": 3,
        "batch_size": 10,
        "sampler": "balanced",
        "images_per_class": 2,
        "optimiser": "sgd",
        "learning_rate": 1e-3,
        "device": "cpu",
        "precision": "float32",
    },
    "protocol": {"name": "validation"},
}
COURSES = {
    "plain": ["objective.name=proxy_anchor", "training.max_grad_norm=1"],
    "adamw": ["objective.name=proxy_anchor", "training.optimiser=adamw"],
    "averaged": ["objective.name=proxy_anchor", "training.ema_decay=0.9", "training.l2_sp=0.5"],
    "isa": ["objective.name=proxy_isa"],
    "memory": ["objective.name=cross_batch_memory", "objective.pair_loss=contrastive", "objective.size=30"],
    "vcpa": ["objective.name=vcpa", "objective.tau=20"],
    "pieces": ["objective.name=proxy_anchor", "encoder.freeze_batch_norm=true", "training.micro_batch=2"],
    "margin": ["objective.name=margin", "training.max_grad_value=10"],
    # Of two axes: those in which few images hardly differ are made of rounding.
    "axes": ["objective.name=proxy_anchor", "encoder.head_init=pca", "encoder.dim=2", "training.ema_decay=0.9"],
    "frozen": ["objective.name=normalized_softmax", "encoder.freeze_batch_norm=true", "training.batch_size=2"],
    "ccp": [
        "method.name=ccp",
        "objective.name=contrastive",
        "method.steps_per_problem=2",
        "method.proxies_per_class=2",
    ],
    "ccp-own": [
        "method.name=ccp",
        "objective.name=mpa",
        "method.patience=2",
        "training.evaluate_every_steps=1",
        # R@1 of so few images is soon the same, which ends problems at every step; rounding grows with each new one.
        "protocol.select_by=MAP@R",
    ],
    "ccp-released": [
        *("method.name=ccp", "objective.name=contrastive", "method.patience=1", "training.evaluate_every_steps=1"),
        *("method.pool=augmented", "method.raw_proxies=true", "method.best_proxies=true", "method.proxies_per_class=2"),
        *("encoder.head_init=glorot", "encoder.head_bias=false", "encoder.freeze_batch_norm_affine=true"),
        "data.transform=standard",
    ],
    "ccp-samples": [
        *("method.name=ccp", "objective.name=contrastive", "method.steps_per_problem=2", "method.anchors=samples"),
        "method.proxies_per_class=1",
    ],
    "profs": [
        *("method.name=profs", "objective.name=contrastive", "method.steps_per_projection=2"),
        "method.hard_negative_classes=true",
    ],
    "momentum": ["method.name=momentum", "objective.name=momentum_proxy_anchor", "objective.queue_size=20"],
    "updates": ["method.name=proxy_updates", "objective.name=proxy_anchor", "method.updates=3"],
    "newton": [
        *("method.name=proxy_updates", "objective.name=proxy_anchor", "method.updates=2", "method.order=second"),
        "method.damping=100",
    ],
}


def scored(distance: str, copies: int, classes: int = 150) -> dict[str, Tensor]:
    """Retrieval scores of which every process computes a share."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat(600 // classes)
    x = torch.randn(classes, 16, generator=generator)[labels] + 2.0 * torch.randn(600, 16, generator=generator)
    if copies:
        x = x[torch.arange(600) // copies]
    scores = measure(["R@1", "R@100", "MAP@R", "nDCG@20"], x, labels, distance=distance, by_all=True)
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in scores.items()}


def recipe_of(course: str, *overrides: str) -> Recipe:
    return load_recipe(RECIPE, [*COURSES[course], *overrides])


def state_of(recipe: Recipe):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 4)
    pixels = (rng.normal(128, 60, (12, 8, 8))[labels] + rng.normal(0, 25, (48, 8, 8))).clip(0, 255).astype(np.uint8)
    splits = np.select([labels < 6, labels < 9], ["train", "validation"], "test").tolist()
    table = ImageTable.build("toy", pixels, [f"class {label}" for label in labels], splits=splits)
    return build_state(recipe, open_images(table, cache_dir=None))


def course_of_a_run(course: str, folder: Path, *, from_step: int = 0, to_step: int = 6) -> dict[str, Tensor]:
    """Train for some steps, from a checkpoint in ``folder`` if not from the first, and leave one there."""
    recipe, place = recipe_of(course), RunFolder(folder)
    state = state_of(recipe)
    if place.last_checkpoint.exists():
        checkpoint.load_last(state, place)
        assert state.step == from_step, (state.step, from_step)
    else:
        place.begin(recipe)
    state.ended = from_step == to_step
    with contextlib.suppress(InterruptedRunError):
        fit(state, place, Until(to_step))
    return found_in(state)


class Until(Observer):
    """Interrupts the training after a step, if it has not come to its end; of one process, several would go on."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_step(self, state, loss, images):
        if state.step == self.last < state.total_steps:
            signal.raise_signal(signal.SIGTERM)


def found_in(state) -> dict[str, Tensor]:
    """Everything that must be the same however many processes there were."""
    found = {f"encoder {key}": value.clone() for key, value in state.encoder.state_dict().items()}
    found |= {f"objective {key}": value for key, value in whole_state(state.objective).items()}
    if state.learned is not None:
        found |= {f"learned {key}": value for key, value in whole_state(state.learned).items()}
    if state.ema is not None:
        found |= {f"average {key}": value.clone() for key, value in state.ema.encoder.state_dict().items()}
    rows = [[row["step"], row.get("loss", 0.0), row["R@1"]] for row in state.history]
    found["history"] = torch.tensor(rows, dtype=torch.float64)
    if state.best is not None:
        found["best"] = torch.tensor(state.best["step"])
    method = state.method.state_dict()
    for key in ("anchor_rows", "problem"):
        if key in method:
            found[f"method {key}"] = torch.as_tensor(method[key])
    for key, value in (method.get("follower") or {}).items():
        found[f"follower {key}"] = value.clone()
    if events := [event["step"] for event in state.method.events]:
        found["events"] = torch.tensor(events)
    if getattr(state.sampler, "embeddings", None) is not None:
        found["known representatives"] = state.sampler.embeddings.clone()
    return found


def cases(world: int, folder: Path) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """By name, what so many processes do; runs get a folder each."""
    every: dict[str, Callable[[], dict[str, Tensor]]] = {
        "drawn proxies": drawn_proxies,
        "clipped": clipped,
        "known to all": what_is_known_to_all,
        "scores": partial(scored, "cosine", 0),
        "scores of distances": partial(scored, "euclidean", 0),
        "scores of copies": partial(scored, "cosine", 30),
        "scores of large classes": partial(scored, "cosine", 0, classes=3),
        "batch-norm of images": partial(batch_norm, 7, (2, 3)),
        "batch-norm of vectors": partial(batch_norm, 5, ()),
        "batch-norm of fewer images than ranks": partial(batch_norm, 2, (3, 2)),
    }
    every["loss proxy_anchor float32"] = partial(course_of_a_loss, "proxy_anchor", torch.float32)
    for name in LOSSES if world < 3 else ("proxy_anchor", "proxy_isa", "vcpa", "contrastive"):
        every[f"loss {name} float64"] = partial(course_of_a_loss, name, torch.float64)
    for name in COURSES if world < 3 else ("plain", "vcpa", "frozen", "ccp-own"):
        if name != "adamw":  # which makes much of a little
            every[f"run {name}"] = partial(course_of_a_run, name, folder / f"{name}-{world}")
    return every


def main() -> None:
    """Run what ``plan.json`` lists for each number of processes that this one is among, and leave what comes of it."""
    work, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    for world, port, continued in json.loads((work / "plan.json").read_text()):
        if rank >= world:
            continue
        os.environ |= {"WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
        with ranks.joined():
            assert (ranks.world(), ranks.rank()) == (world, rank)
            found = {name: case() for name, case in cases(world, work).items()}
            for name, course, folder, first, last in continued:
                found[name] = course_of_a_run(course, Path(folder), from_step=first, to_step=last)
            torch.save(found, work / f"found-{world}-{rank}.pt")


def carried_out(work: Path, continued: dict[int, list[list[object]]]) -> dict[int, list[dict[str, dict[str, Tensor]]]]:
    """What every rank finds, by how many there are: processes that start once, and join in ever larger numbers."""
    (work / "plan.json").write_text(json.dumps([(world, free_port(), runs) for world, runs in continued.items()]))
    meeting = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(work)],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(max(continued))
    ]
    try:
        said = [process.communicate(timeout=280)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(said)
    return {
        world: [torch.load(work / f"found-{world}-{rank}.pt", weights_only=True) for rank in range(world)]
        for world in continued
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
