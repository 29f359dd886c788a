"""Building a run from its recipe: encoder, objective, method, optimiser, batches."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nearkin import losses, ranks
from nearkin.data.cache import OpenedImages
from nearkin.data.transforms import Transform, transform_from
from nearkin.encoders import Encoder, build_encoder
from nearkin.encoders.synchronised import synchronise_batch_norm
from nearkin.errors import DataError, TrainingError
from nearkin.evaluation.protocol import Protocol
from nearkin.ranks import share_of, world
from nearkin.recipe import DataSection, EncoderSection, PartSection, Recipe
from nearkin.samplers import BalancedSampler, BatchSampler, RandomSampler
from nearkin.training import methods
from nearkin.training.device import autocast_dtype, keep_freed_memory, pick_device
from nearkin.training.memory import fitting_micro_batch
from nearkin.training.micro_batch import check_micro_batch, has_batch_statistics
from nearkin.training.optimisation import ProximalTerm, WeightEma, build_optimiser, build_scheduler, parameter_groups
from nearkin.training.state import TrainingState

PCA_IMAGES = 10_000


def build_state(
    recipe: Recipe, data: OpenedImages, *, splits: NDArray[np.str_] | None = None, score_test: bool = True
) -> TrainingState:
    """The state of a run at step 0. The seed decides the head, the proxies and the order of the batches.

    ``splits`` and ``score_test`` are those of :class:`~nearkin.evaluation.protocol.Protocol`.
    """
    training = recipe.training
    device = pick_device(training.device)
    keep_freed_memory(device)
    dtype = autocast_dtype(training.precision, device)
    method_class = methods.catalogue()[recipe.method.name]
    protocol = Protocol(recipe.protocol, data.table, splits=splits, score_test=score_test)
    protocol.check_trainable()
    labels = protocol.training_labels()
    num_classes = int(labels.max()) + 1
    torch.manual_seed(training.seed)
    encoder = encoder_from(recipe.encoder)
    check_micro_batch(training, has_batch_statistics(encoder))
    objective = build_objective(
        recipe.objective,
        num_classes=num_classes,
        dim=encoder.dim,
        num_images=len(labels),
        normalisation=encoder.normalisation,
    )
    encoder.keeps_length_in_training = any(getattr(part, "keeps_length", False) for part in objective.modules())
    method = method_class(**recipe.method.options)
    learned = method.build(num_classes=num_classes, dim=encoder.dim, objective=objective)
    modules = [objective] if learned is None else [objective, learned]
    for module in (encoder, *modules):
        module.to(device)
    if world() > 1:
        synchronise_batch_norm(encoder)
    optimiser = build_optimiser(parameter_groups(encoder, modules, training), training)
    transform, micro_batch = transform_of(recipe.data), training.micro_batch
    if transform.erase:  # with the mean colour, which becomes zero
        transform = replace(transform, fill=encoder.preprocessing.mean_pixel)
    if micro_batch is None and ":" not in recipe.encoder.backbone:  # other libraries' may look at the whole batch
        batch = len(share_of(min(training.batch_size, len(labels)), of=0))
        micro_batch = fitting_micro_batch(encoder, batch, transform.size, device, dtype)
    sampled = {"batch_size": training.batch_size, "seed": training.seed}
    if training.sampler == "random":
        sampler: BatchSampler = RandomSampler(len(labels), **sampled)
    else:
        sampler = BalancedSampler(labels, images_per_class=training.images_per_class, **sampled)
    l2_sp, backbone = ProximalTerm(), list(encoder.backbone.parameters())
    if training.l2_sp:
        l2_sp.remember(backbone)  # the initial weights, which a resumed run has here too
    state = TrainingState(
        recipe=recipe,
        data=data,
        protocol=protocol,
        transform=transform,
        eval_transform=eval_transform_of(recipe),
        encoder=encoder,
        objective=objective,
        method=method,
        optimiser=optimiser,
        scheduler=build_scheduler(optimiser, training),
        scaler=_scaler(device, dtype),
        device=device,
        dtype=dtype,
        sampler=sampler,
        labels=labels,
        learned=learned,
        ema=None if training.ema_decay is None else WeightEma(encoder, training.ema_decay),
        add_l2_sp=partial(l2_sp.add_to_gradients, backbone, training.l2_sp),
        micro_batch=micro_batch,
    )
    state.sampler = state.method.sampler(sampler, state)
    return state


def _scaler(device: torch.device, dtype: torch.dtype | None) -> torch.amp.GradScaler:
    """For half precision. With several ranks, a step that one of them must skip is skipped by all."""
    if world() == 1 or dtype != torch.float16:
        return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device.type)


def build_objective(
    section: PartSection, *, num_classes: int, dim: int, num_images: int, normalisation: str
) -> nn.Module:
    """The loss that ``section`` names, with its proxies.

    Two options have defaults from the run: a pair loss takes the encoder's normalisation, and a memory is as large as
    the training set.

    >>> loss = build_objective(PartSection("contrastive"), num_classes=3, dim=8, num_images=30, normalisation="ball")
    >>> loss.normalisation
    'ball'
    """
    loss = losses.loss_named(section.name)
    inferred = {"normalisation": normalisation, **_memory_size(section, num_images)}
    options: dict[str, Any] = {key: value for key, value in inferred.items() if key in losses.options(loss)}
    options |= section.options
    if "weighting" in options:
        weighting: PartSection = options["weighting"]
        chosen = {**_memory_size(weighting, num_images), **weighting.options}
        options["weighting"] = losses.weightings()[weighting.name](num_classes, dim, **chosen)
    if "pair_loss" in options:
        size = {"num_classes": num_classes, "dim": dim, "num_images": num_images}
        options["pair_loss"] = build_objective(options["pair_loss"], **size, normalisation=normalisation)
    return loss(num_classes, dim, **options) if losses.kind(loss) in ("proxy", "pml") else loss(**options)


def _memory_size(section: PartSection, num_images: int) -> dict[str, int]:
    """The default size of a memory; the code that authors released has its own."""
    return {} if section.options.get("as_released") else {"memory_size": num_images}


@torch.no_grad()
def start_head(state: TrainingState) -> None:
    """With ``encoder.head_init: pca``, project onto the principal axes of the training images' features.

    A random projection loses some of what a pretrained backbone has learned. The weights keep their norm, so that
    learning rates mean the same. Dimensions beyond the backbone's channels, or the number of images, begin at zero.
    """
    head = state.encoder.head
    if state.recipe.encoder.head_init != "pca" or not isinstance(head, nn.Linear):
        return
    rows = np.random.default_rng(state.recipe.training.seed).permutation(len(state.train_set))[:PCA_IMAGES]
    plain, what = state.encoder.without_head().without_normalisation(), "learning how the training images differ"
    features = state.train_set.embed(np.sort(rows), encoder=plain, what=what)
    if not features.isfinite().all():
        raise TrainingError("the backbone's features of the training images are not finite: are its weights damaged?")
    if len(features) < 2:
        raise DataError(f"at least two training images are needed to learn how they differ, got {len(features)}")
    kept = min(head.out_features, *features.shape)

    def principal_axes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        from sklearn.decomposition import PCA

        pca = PCA(kept, svd_solver="covariance_eigh").fit(features.double().cpu().numpy())
        return pca.mean_, pca.components_

    mean, axes = ranks.from_first(principal_axes)
    directions = torch.zeros(head.weight.shape, dtype=torch.float64)
    directions[:kept] = torch.from_numpy(axes) * (head.weight.norm().item() / math.sqrt(kept))
    head.weight.copy_(directions)
    if head.bias is not None:
        head.bias.copy_(-directions @ torch.from_numpy(mean))
    if state.ema is not None:
        state.ema.encoder.head.load_state_dict(head.state_dict())


def encoder_from(section: EncoderSection, *, pretrained: bool = True) -> Encoder:
    """The encoder of a recipe; without ``pretrained`` weights where a checkpoint is going to replace them."""
    values: dict[str, Any] = {**vars(section), "options": dict(section.options)}
    if not pretrained:
        values["weights"] = None
        if ":" in section.backbone:
            values["options"]["pretrained"] = False
    return build_encoder(**values)


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
    if section.random_erasing:
        overrides["erase"] = section.random_erasing
    return transform_from(section.transform, **overrides)


def eval_transform_of(recipe: Recipe) -> Transform:
    """The transform that makes the crops to be scored.

    >>> eval_transform_of(Recipe().with_changes({"protocol.eval_scale": 1.15})).size
    256
    """
    plain, scale, size = transform_of(recipe.data), recipe.protocol.eval_scale, recipe.protocol.eval_size
    if size is None and scale != 1:
        size = max(8, 8 * round(plain.size * scale / 8))
    return plain if size is None else transform_of(replace(recipe.data, image_size=size))


def data_of(recipe: Recipe) -> DataSection:
    """A recipe's section on data, with ``shorter_side`` raised to what its crops need.

    >>> data_of(Recipe().with_changes({"data.image_size": 256})).shorter_side
    293
    """
    asked = max(transform_of(recipe.data).resize, eval_transform_of(recipe).resize)
    return replace(recipe.data, shorter_side=max(recipe.data.shorter_side, asked))
