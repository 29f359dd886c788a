"""Whether a run fits into the memory there is: asked before the first step, when an answer still helps.

A run that needs too much is killed by the system without a word, often after minutes. What a step keeps for its
backward pass is measured on two small images and grows with pixels and batch, so that it is known beforehand. The
estimates are meant to be low rather than high: nothing that fits may be refused. Measured, as real use over estimate:
training steps 1.1 (small network), 1.2 (ResNet-50), 1.1 to 1.2 (EfficientNet-lite0); evaluations 1.0 to 1.45.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from nearkin.encoders import Encoder
from nearkin.errors import RecipeError
from nearkin.ranks import on_this_machine, share_of
from nearkin.recipe import TrainingSection
from nearkin.training.device import autocast
from nearkin.training.micro_batch import has_batch_statistics
from nearkin.training.state import TrainingState

PROBE_IMAGES, PROBE_SIDE = 2, 96

HELD_AT_ONCE = 2.5
"""Feature maps as large as the largest that a forward pass without gradient holds at a time."""

COPIES = {"adamw": 3, "adam": 3, "sgd": 2}
"""What training adds for every weight: its gradient and what the optimiser remembers of it."""

PIECE_ON_CPU = 1e9
"""Bytes of feature maps that a step on a CPU keeps at a time unasked: a laptop has some gigabytes free. The same
whatever is free just now, so that a run is the same to the bit on any day and after it was stopped."""


def bytes_beside_weights(encoder: Encoder, training: TrainingSection) -> int:
    """What a step keeps of the encoder's weights beside themselves: gradients, moments, an average, where they began.

    >>> from nearkin.encoders import build_encoder
    >>> encoder = build_encoder("small", dim=2)
    >>> weights = sum(p.nbytes for p in encoder.parameters())
    >>> bytes_beside_weights(encoder, TrainingSection(optimiser="sgd", ema_decay=0.99)) == 3 * weights
    True
    """
    copies = COPIES[training.optimiser] + (training.ema_decay is not None) + (training.l2_sp > 0)
    return copies * sum(p.nbytes for p in encoder.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Footprint:
    """Bytes that a backbone takes for every pixel of every image."""

    kept: float
    """Until the backward pass."""
    largest: float
    """Its largest feature map."""


def check_memory(state: TrainingState) -> None:
    """Refuse a run whose steps or evaluations cannot fit into the free memory; ``training.memory_check`` turns it off.

    On a CUDA device only what is computed there counts, elsewhere also the images that wait to be used.
    """
    training, size = state.recipe.training, state.transform.size
    free = free_memory(state.device) if training.memory_check else None
    if free is None or not state.total_steps:
        return
    if state.device.type == "cpu":
        free //= on_this_machine()
    footprint = measure(state.encoder, size, state.device, state.dtype)
    if footprint is None:
        return
    batch = len(share_of(min(training.batch_size, len(state.labels)), of=0))
    held = min(batch, state.micro_batch or batch)
    trains_backbone = state.total_steps > state.warmup_steps
    # While only the head trains, a step keeps no more of the backbone than an evaluation does.
    per_pixel = footprint.kept if trains_backbone else HELD_AT_ONCE * footprint.largest
    copies = bytes_beside_weights(state.encoder, training) if trains_backbone else 0
    what = f"a training step on {batch} images" + (f" ({held} at a time)" if held < batch else "")
    _refuse_if_above(free, per_pixel, held, what, size, _smaller_step(state, held < batch), besides=copies)
    parts = [part for part in (state.protocol.validation, state.protocol.test) if part is not None]
    images = min(state.evaluated_at_a_time, max((len(part.query) for part in parts), default=0))
    what, remedy = f"scoring {images} images at a time", f"lower training.evaluation_batch_size ({images}; {{fits}}) or"
    key = "data.image_size" if state.eval_transform.size == size else "protocol.eval_size"
    _refuse_if_above(free, HELD_AT_ONCE * footprint.largest, images, what, state.eval_transform.size, remedy, key=key)


def _smaller_step(state: TrainingState, in_pieces: bool) -> str:
    """What to change for a smaller step: a smaller batch is another training, where smaller pieces are not."""
    if in_pieces:
        return f"lower training.micro_batch ({state.micro_batch}; {{fits}}) or"
    if not has_batch_statistics(state.encoder):
        return "set training.micro_batch (the same training in pieces; {fits}) or lower"
    pieces = "training.micro_batch instead needs encoder.freeze_batch_norm=true"
    return f"lower training.batch_size ({state.recipe.training.batch_size}; {{fits}}; {pieces}) or"


def fitting_piece(
    encoder: Encoder, batch: int, size: int, device: torch.device, dtype: torch.dtype | None
) -> int | None:
    """Images to have in the network at a time where nobody says how many; None for the whole batch.

    On a CPU equal pieces of the batch, each with feature maps of :data:`PIECE_ON_CPU` at most, where that is the same
    training: not with batch-norm that looks at the batch.

    >>> from nearkin.encoders import build_encoder
    >>> encoder = build_encoder("small", freeze_batch_norm=True)
    >>> [fitting_piece(encoder, batch, 224, torch.device("cpu"), None) for batch in (8, 64)]
    [None, 32]
    """
    if device.type != "cpu" or has_batch_statistics(encoder):
        return None
    footprint = measure(encoder, size, device, dtype)
    pieces = 1 if footprint is None else math.ceil(footprint.kept * batch * size**2 / PIECE_ON_CPU)
    return math.ceil(batch / pieces) if pieces > 1 else None


def measure(encoder: Encoder, size: int, device: torch.device, dtype: torch.dtype | None) -> Footprint | None:
    """What a backbone keeps, by forward passes in training mode that change nothing; None where they fail.

    >>> from nearkin.encoders import build_encoder
    >>> footprint = measure(build_encoder("small"), 64, torch.device("cpu"), None)
    >>> 200 < footprint.kept < 800
    True
    """
    side = min(size, PROBE_SIDE)
    try:
        fewer, more = (_kept(encoder, count, side, device, dtype) for count in (PROBE_IMAGES, PROBE_IMAGES + 1))
    except (RuntimeError, ValueError):  # a network that takes no images of this size: its own error says more later
        return None
    # What another image adds is feature maps; the rest are weights in another precision or with batch-norm in them.
    maps = [tensor.untyped_storage().nbytes() for tensor in fewer if tensor.shape[:1] == (PROBE_IMAGES,)]
    fewer_bytes, more_bytes = (sum(tensor.untyped_storage().nbytes() for tensor in kept) for kept in (fewer, more))
    return Footprint((more_bytes - fewer_bytes) / side**2, max(maps, default=0) / PROBE_IMAGES / side**2)


def _kept(encoder: Encoder, count: int, side: int, device: torch.device, dtype: torch.dtype | None) -> list[Tensor]:
    """What is kept for the backward pass of ``count`` images, each storage once and weights left out."""
    parameters = {name: p.detach().requires_grad_(p.requires_grad) for name, p in encoder.backbone.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in encoder.backbone.named_buffers()}
    weights = {each.untyped_storage().data_ptr() for each in (*parameters.values(), *buffers.values())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    images = torch.zeros(count, 3, side, side, device=device)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(device, dtype),
    ):
        functional_call(encoder.backbone, {**parameters, **buffers}, (images,))
    return [tensor for place, tensor in kept.items() if place not in weights]


def free_memory(device: torch.device) -> int | None:
    """Bytes that a run may still take on a device, or None where that cannot be known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return free_system_memory()


def free_system_memory(root: Path = Path("/")) -> int | None:
    """What the system has left, and the control groups that this process is in; None where neither is told."""
    found = []
    meminfo = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in meminfo:
        found.append(1024 * meminfo["MemAvailable:"])
    for folder, limit, used, reclaimable in _control_groups(root):
        most, now = _text(folder / limit), _text(folder / used)
        if most.isdigit() and now.isdigit():  # "max": no limit
            # Pages of files that were read count as used and are given back when memory is wanted.
            found.append(int(most) - int(now) + _numbers(folder / "memory.stat").get(reclaimable, 0))
    return max(0, min(found)) if found else None


def _control_groups(root: Path) -> list[tuple[Path, str, str, str]]:
    """Every folder of the process's control groups up to the topmost, with the names of the files that matter."""
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = top / path.lstrip("/")
        groups += [(folder, *names) for folder in (here, *here.parents) if folder.is_relative_to(top)]
    return groups


def _numbers(file: Path) -> dict[str, int]:
    """The numbers of a file of lines ``name number …``."""
    fields = [line.split() for line in _text(file).splitlines()]
    return {each[0]: int(each[1]) for each in fields if len(each) > 1 and each[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _refuse_if_above(
    free: int,
    per_pixel: float,
    images: int,
    what: str,
    size: int,
    remedy: str,
    *,
    besides: float = 0,
    key: str = "data.image_size",
) -> None:
    """Refuse what needs ``per_pixel`` bytes for each pixel of all ``images``, and some ``besides``."""
    each = per_pixel * size**2
    needed = each * images + besides
    if needed <= free:
        return
    fitting = int(max(0, free - besides) / each) if each else 0
    fits = f"about {fitting} would fit" if fitting else f"not one image of {size} pixels would fit"
    raise RecipeError(
        f"{what} of {size} × {size} pixels needs about {_in_words(needed)} of memory, and {_in_words(free)} are "
        f"free: {remedy.format(fits=fits)} {key} ({size}), or set training.memory_check=false to "
        f"try it all the same"
    )


def _in_words(count: float) -> str:
    """
    >>> _in_words(4e6), _in_words(3.21e9), _in_words(1.3e12)
    ('4 MB', '3.2 GB', '1,300 GB')
    """
    if count < 1e9:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB" if count < 1e10 else f"{count / 1e9:,.0f} GB"
