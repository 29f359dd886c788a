"""A whole run, from a recipe to a folder with scores, and a finished run put to use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin import checkpoint, methods
from nearkin.data.cache import Images, OpenedImages, cache_root, open_images
from nearkin.data.given import Picture, as_images
from nearkin.data.source import is_benchmark, read_source
from nearkin.data.table import ImageTable
from nearkin.data.transforms import Transform, transform_from
from nearkin.data_report import Announce, DataReport, describe_data, parts_of
from nearkin.device import autocast_dtype, describe_hardware, peak_process_memory, pick_device
from nearkin.embedding import embed_images
from nearkin.encoders import Encoder, build_encoder
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.protocol import Protocol
from nearkin.memory import check_memory
from nearkin.objective import build_objective
from nearkin.optimisation import build_optimiser, build_scheduler, check_schedule, parameter_groups
from nearkin.recipe import DataSection, EncoderSection, Recipe
from nearkin.run_folder import RunFolder, environment
from nearkin.samplers import BalancedSampler, BatchSampler, RandomSampler
from nearkin.training import Observer, TrainingState, fit

Progress = Callable[[int, int], None]


def run(
    recipe: Recipe,
    folder: RunFolder,
    observer: Observer,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    score_test: bool = True,
    announce: Announce | None = None,
) -> dict[str, Any]:
    """Train as ``recipe`` says and leave everything in ``folder``; returns what ``scores.json`` holds.

    A folder that already holds a run is never written over by accident: ``resume`` continues it (a finished run just
    gives its scores back), ``overwrite`` begins anew. Without ``score_test`` the test classes are not looked at, as is
    right where several runs are compared to choose between them; the protocol must then choose the epoch without them.
    ``announce`` is told before anything is trained what was understood of the data.
    """
    _admit(recipe, folder, resume=resume, overwrite=overwrite)
    if resume and folder.is_finished:
        return folder.scores()
    data = open_data(recipe.data, progress=progress)
    if announce is not None:
        announce(report_on(recipe, data))
    state = build_state(recipe, data)
    if not score_test:
        state.protocol.test = None
    check_memory(state)
    if resume and folder.last_checkpoint.exists():
        checkpoint.load_last(state, folder)
    else:
        if overwrite:
            folder.clear()
        folder.begin(recipe)
        folder.write_environment(_record(state))
    fit(state, folder, observer)
    scores = _final_scores(state, folder)
    folder.write_scores(scores)
    return scores


def default_folder(recipe: Recipe) -> Path:
    """``runs/<data>-<objective>-<hash>``: the same recipe always has the same folder."""
    source = Path(recipe.data.source).stem or "data"
    method = [] if recipe.method.name == "plain" else [recipe.method.name]
    return Path("runs") / "-".join([source, recipe.objective.name, *method, recipe.fingerprint()])


def open_data(
    section: DataSection, *, table: ImageTable | None = None, progress: Progress | None = None
) -> OpenedImages:
    """Read the table that a recipe names and decode its images once."""
    return open_images(
        read_source(section.source, root=section.root, kinds=section.kinds) if table is None else table,
        cache_dir=cache_root() / "decoded" if section.cache == "disk" else None,
        shorter_side=section.shorter_side,
        tolerance=section.unreadable_tolerance,
        workers=section.workers,
        progress=progress,
    )


def report_on(recipe: Recipe, data: OpenedImages) -> DataReport:
    """What is understood of a recipe's data, and how its protocol divides them, if it can."""
    try:
        parts = parts_of(Protocol(recipe.protocol, data.table))
    except DataError:  # too few classes: what was left out may be why
        parts = {}
    kept = recipe.data.cache == "disk" and not data.table.in_memory
    return describe_data(
        data,
        parts,
        compare=not is_benchmark(recipe.data.source),
        kept_in=str(cache_root()) if kept else None,
    )


def build_state(recipe: Recipe, data: OpenedImages) -> TrainingState:
    """Everything a run needs, at step 0. The seed decides the head, the proxies and the order of the batches."""
    training = recipe.training
    device = pick_device(training.device)
    dtype = autocast_dtype(training.precision, device)
    method_class = methods.catalogue()[recipe.method.name]
    protocol = Protocol(recipe.protocol, data.table)
    protocol.check_trainable()
    labels = protocol.training_labels()
    torch.manual_seed(training.seed)
    encoder = encoder_from(recipe.encoder)
    objective = build_objective(
        recipe.objective,
        num_classes=int(labels.max()) + 1,
        dim=encoder.dim,
        num_images=len(labels),
        normalisation=encoder.normalisation,
    )
    method = method_class(**recipe.method.options)
    learned = method.build(num_classes=int(labels.max()) + 1, dim=encoder.dim, objective=objective)
    modules = [objective] if learned is None else [objective, learned]
    for module in (encoder, *modules):
        module.to(device)
    optimiser = build_optimiser(parameter_groups(encoder, modules, training), training)
    default: BatchSampler
    if training.sampler == "balanced":
        default = BalancedSampler(
            labels,
            batch_size=training.batch_size,
            images_per_class=training.images_per_class,
            seed=training.seed,
        )
    else:
        default = RandomSampler(len(labels), batch_size=training.batch_size, seed=training.seed)
    state = TrainingState(
        recipe=recipe,
        data=data,
        protocol=protocol,
        transform=transform_of(recipe.data),
        encoder=encoder,
        objective=objective,
        method=method,
        optimiser=optimiser,
        scheduler=build_scheduler(optimiser, training),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        device=device,
        dtype=dtype,
        sampler=default,
        labels=labels,
    )
    state.sampler = state.method.sampler(default, state)
    return state


def encoder_from(section: EncoderSection, *, pretrained: bool = True) -> Encoder:
    """The encoder of a recipe; without ``pretrained`` no weights are looked for, as a checkpoint will fill it."""
    options = dict(section.options)
    if not pretrained and ":" in section.backbone:
        options["pretrained"] = False
    return build_encoder(
        section.backbone,
        dim=section.dim,
        pooling=section.pooling,
        normalisation=section.normalisation,
        weights=section.weights if pretrained else None,
        freeze_batch_norm=section.freeze_batch_norm,
        channels_last=section.channels_last,
        options=options,
    )


def transform_of(section: DataSection) -> Transform:
    """The transform that a recipe names; another image size keeps the evaluation crop's share of the image.

    >>> transform_of(DataSection(transform="standard", image_size=112)).resize
    128
    """
    overrides: dict[str, Any] = {}
    if section.image_size is not None:
        preset = transform_from(section.transform)
        overrides |= {"size": section.image_size, "resize": round(preset.resize * section.image_size / preset.size)}
    if section.crop_scale is not None:
        overrides["scale"] = section.crop_scale
    return transform_from(section.transform, **overrides)


@dataclass(frozen=True)
class TrainedRun:
    """A run's encoder, ready to embed images the way it was trained to see them."""

    folder: RunFolder
    recipe: Recipe
    encoder: Encoder
    transform: Transform
    device: torch.device
    dtype: torch.dtype | None

    def embed(self, images: Images | Picture | Iterable[Picture], rows: NDArray[np.int64] | None = None) -> Tensor:
        """Embeddings of images in the order given, float32 ``[N, dim]`` on the run's device.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors, each treated as its
        file would be (:class:`~nearkin.data.given.GivenImages`). Or images that :func:`open_data` has opened, of which
        ``rows`` may choose some.
        """
        return embed_images(
            self.encoder,
            as_images(images, shorter_side=self.recipe.data.shorter_side),
            self.transform,
            rows=rows,
            batch_size=self.recipe.training.evaluation_batch_size,
            workers=self.recipe.data.workers,
            device=self.device,
            dtype=self.dtype,
        )


def load_run(path: str | Path, *, which: str = "best", device: str | None = None) -> TrainedRun:
    """Load the encoder of a run folder, by default its best weights."""
    if which not in ("best", "last"):
        raise RecipeError(f"checkpoint must be 'best' or 'last', got {which!r}")
    folder = RunFolder.existing(path)
    recipe = folder.recipe()
    where = pick_device(device or "auto")
    encoder = encoder_from(recipe.encoder, pretrained=False)
    encoder.load_state_dict(checkpoint.encoder_weights(folder, which))
    precision = recipe.training.precision if where.type != "cpu" else "auto"
    return TrainedRun(
        folder, recipe, encoder.to(where).eval(), transform_of(recipe.data), where, autocast_dtype(precision, where)
    )


def _admit(recipe: Recipe, folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Everything that can be refused before the first image is read."""
    device = pick_device(recipe.training.device)
    autocast_dtype(recipe.training.precision, device)
    methods.catalogue()[recipe.method.name].check(recipe)
    check_schedule(recipe)
    transform_of(recipe.data)
    try:
        build_objective(
            recipe.objective, num_classes=2, dim=2, num_images=4, normalisation=recipe.encoder.normalisation
        )
    except ValueError as error:
        raise RecipeError(f"objective.{error}") from error
    weights = recipe.encoder.weights
    if weights not in (None, "imagenet") and not Path(weights).is_file():
        raise DataError(
            f"encoder.weights names {weights!r}, which is not a file: give a local .safetensors or .pth, or "
            f"encoder.weights=null to start from scratch"
        )
    if resume and overwrite:
        raise RecipeError("--resume and --overwrite contradict each other: give one of them")
    if not folder.is_begun:
        if folder.path.exists() and not folder.path.is_dir():
            raise RecipeError(f"{folder.path} is a file: give a folder for the run with -o")
        return
    if resume:
        folder.check_same_recipe(recipe)
    elif not overwrite:
        what = "a finished run" if folder.is_finished else "a run that is not finished"
        raise RecipeError(
            f"{folder.path} holds {what}: continue it with --resume, begin anew with --overwrite, "
            f"or give another folder with -o"
        )


def _record(state: TrainingState) -> dict[str, Any]:
    table, protocol = state.table, state.protocol
    test = protocol.test
    return environment(describe_hardware(state.device)) | {
        "recipe": state.recipe.fingerprint(),
        "seed": state.recipe.training.seed,
        "precision": str(state.dtype or torch.float32).removeprefix("torch."),
        "protocol": protocol.section.name,
        "selection": protocol.selection_rule,
        "transform": state.transform.describe(),
        "data": {
            "name": table.name,
            "images": len(table),
            "classes": len(table.classes()),
            "training_images": len(protocol.train_rows),
            "training_classes": len(set(table.labels[protocol.train_rows].tolist())),
            "training_conditions": protocol.training_conditions,
            "replaced_labels": protocol.replaced_labels,
            "validation_images": 0 if protocol.validation is None else len(protocol.validation.query),
            "test_images": 0 if test is None else len(test.query),
            "unreadable": [str(error) for error in state.data.unreadable],
            "left_out": [str(each) for each in table.left_out],
        },
        "weights": str(state.encoder.weights_report) if state.encoder.weights_report else None,
        "parameters": {
            "encoder": sum(p.numel() for p in state.encoder.parameters()),
            "objective": sum(p.numel() for p in state.objective.parameters()),
        },
    }


def _final_scores(state: TrainingState, folder: RunFolder) -> dict[str, Any]:
    """Restore the best weights, export the encoder and put together what the run reports."""
    protocol = state.protocol
    last = state.history[-1] if state.history else {}
    if protocol.selects_on != "last":
        checkpoint.load_best(state, folder)
    checkpoint.save_encoder(state, folder)
    test = None if protocol.test is None else state.score(protocol.test, final=True)
    return {
        "data": state.table.name,
        "objective": state.recipe.objective.name,
        "method": state.recipe.method.name,
        "protocol": protocol.section.name,
        "selection": protocol.selection_rule,
        "test_classes": protocol.test_classes,
        "training_conditions": protocol.training_conditions,
        "seed": state.recipe.training.seed,
        "hardware": describe_hardware(state.device),
        "recipe": state.recipe.fingerprint(),
        "steps": state.step,
        "epochs": round(state.epoch, 4),
        "seconds": round(state.time.seconds, 1),
        "seconds_by": {part: round(seconds, 1) for part, seconds in state.time.by.items()},
        "cost": _cost(state),
        "untrained": state.untrained,
        "baseline": state.baseline,
        "test": test,
        "best": state.best if protocol.selects_on != "last" else last,
        "last": last,
    }


def _cost(state: TrainingState) -> dict[str, float]:
    """What a training step took, and the most memory that was held: the device's, or on a CPU the process's."""
    seconds = max(state.time.by["steps"], 1e-9)
    if state.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(state.device)
    else:
        peak = peak_process_memory()
    return {
        "step_ms": round(1e3 * seconds / max(state.step, 1), 3),
        "images_per_second": round(state.step * state.recipe.training.batch_size / seconds, 1),
        "peak_mib": round(peak / 2**20, 1),
    }
