"""A batch embedded in pieces: the activations of one piece at a time, and the gradient of the whole batch.

Losses of this field compare the images of a batch with each other, so accumulating gradients over small batches would
be a different training. Here the pieces are embedded without their activations, the loss sees all embeddings together,
and in the backward pass each piece is embedded once more, with gradient. Only the last piece keeps its activations, as
the backward pass begins with it. That takes less memory than ``torch.utils.checkpoint`` on every piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.errors import RecipeError
from nearkin.recipe import TrainingSection

Encode = Callable[[Tensor], Tensor]


def embed_in_pieces(encode: Encode, pieces: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> Tensor:
    """``torch.cat([encode(piece) for piece in pieces])`` in the memory of one piece.

    Gradients reach ``parameters`` and nothing else. Random layers draw the same numbers in both passes of a piece.

    >>> layer = nn.Linear(3, 2)
    >>> embed_in_pieces(layer, torch.ones(5, 3).split(2), list(layer.parameters())).sum().backward()
    >>> layer.bias.grad
    tensor([5., 5.])
    """
    embeddings: Tensor = _InPieces.apply(encode, pieces, *parameters)  # type: ignore[no-untyped-call]
    return embeddings


def check_micro_batch(training: TrainingSection, batch_statistics: bool) -> None:
    """Refuse pieces for a network with statistics of the whole batch (:func:`has_batch_statistics`)."""
    pieces = training.micro_batch is not None and training.micro_batch < training.batch_size
    if pieces and batch_statistics:
        raise RecipeError(
            f"training.micro_batch={training.micro_batch} would give every piece batch-norm statistics of its own: set "
            f"encoder.freeze_batch_norm=true, or leave training.micro_batch out"
        )


def has_batch_statistics(network: nn.Module) -> bool:
    """Whether an image's embedding depends on the other images of the batch, by batch-norm in training mode."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    return any(norm.training or norm.running_mean is None for norm in norms)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, encode: Encode, pieces: Sequence[Tensor], *parameters: nn.Parameter) -> Tensor:
        ctx.encode, ctx.pieces, ctx.parameters = encode, pieces, parameters
        ctx.random, embedded = [], []
        for piece in pieces[:-1]:
            ctx.random.append([generator.get_state() for generator in _generators(piece.device)])
            embedded.append(encode(piece))
        with torch.enable_grad():
            ctx.last = encode(pieces[-1])
        return torch.cat([*embedded, ctx.last.detach()])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        generators = _generators(gradient.device)
        later = [generator.get_state() for generator in generators]
        *parts, part = torch.split(gradient, [len(piece) for piece in ctx.pieces])
        gradients = torch.autograd.grad(ctx.last, ctx.parameters, part, allow_unused=True)
        del ctx.last
        # Copied, as autograd may give one tensor to two parameters, and a CUDA graph gives the same one every time.
        sums = [gradient.clone() for gradient in gradients if gradient is not None]
        for piece, states, part in zip(ctx.pieces[:-1], ctx.random, parts, strict=True):
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            with torch.enable_grad():
                embeddings = ctx.encode(piece)
            gradients = torch.autograd.grad(embeddings, ctx.parameters, part, allow_unused=True)
            torch._foreach_add_(sums, [gradient for gradient in gradients if gradient is not None])
        for generator, state in zip(generators, later, strict=True):
            generator.set_state(state)
        whole = iter(sums)
        return None, None, *(None if gradient is None else next(whole) for gradient in gradients)


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]
    if device.type == "mps":
        return [torch.default_generator, torch.mps._get_default_mps_generator()]
    return [torch.default_generator]
